//! Certificates for TLS in simulations, in PEM. Their key is public: it protects nothing.
//!
//! They are valid from 1999 to 2150 and for the first 16 nodes of a world (10.0.0.1 to 10.0.0.16), 127.0.0.1, `localhost` and 10.0.2.2, the host of a VM.

/// The certificate that clients trust.
pub const ROOT: &str = include_str!("../certificates/root.pem");
/// The certificate of a node, as a server or a client, issued by [`ROOT`].
pub const NODE: &str = include_str!("../certificates/node.pem");
/// Its private key.
pub const NODE_KEY: &str = include_str!("../certificates/node.key");
