//! Servers.

use crate::provider::Provider;
use crate::resumption::Tickets;
use crate::session::Side;
use crate::{Identity, Roots, TlsError, TlsStream};
use alloc::rc::Rc;
use alloc::string::String;
use alloc::sync::Arc;
use core::time::Duration;
use glass_api::{Clock, Listener, NetError, Port, Random, Split};
use rustls::ServerConfig;
use rustls::server::{
    ClientHello, NoServerSessionStorage, ResolvesServerCert, UnbufferedServerConnection, WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use spin::Mutex;

/// What a server accepts.
#[derive(Clone)]
pub struct ServerOptions {
    /// Protocols above TLS, best first (ALPN, RFC 7301); a client that offers others only is refused. Empty: none is negotiated.
    pub protocols: alloc::vec::Vec<String>,
    /// Clients have to present a certificate that one of these has issued; `None`: they are not requested to.
    pub clients: Option<Roots>,
    /// A handshake that takes longer ends the connection.
    pub handshake_timeout: Duration,
}

impl Default for ServerOptions {
    /// No protocols, no certificates of clients, ten seconds.
    fn default() -> ServerOptions {
        ServerOptions { protocols: alloc::vec::Vec::new(), clients: None, handshake_timeout: Duration::from_secs(10) }
    }
}

/// A server of TLS 1.3. Make one for each identity; clones share it.
///
/// ```
/// use glass_api::{Listener, Net, Platform};
/// use glass_lib_tls::{Identity, Server, ServerOptions};
///
/// /// Listens on port 443 with a certificate from files.
/// async fn listen<P: Platform>(platform: P) -> Result<impl Listener, Box<dyn std::error::Error>> {
///     let files = platform.files().ok_or("there is no directory")?;
///     let identity = Identity::from_files(&files, "chain.pem", "key.pem").await?;
///     let server = Server::new(&platform, identity, ServerOptions::default())?;
///     Ok(server.listen(platform.net().listen(443).await?))
/// }
/// ```
pub struct Server<P> {
    inner: Rc<Inner<P>>,
}

struct Inner<P> {
    platform: P,
    provider: Provider,
    identity: Arc<Current>,
    config: Arc<ServerConfig>,
    handshake_timeout: Duration,
}

impl<P> Clone for Server<P> {
    fn clone(&self) -> Server<P> {
        Server { inner: self.inner.clone() }
    }
}

/// The identity that handshakes get.
#[derive(Debug)]
struct Current(Mutex<Arc<CertifiedKey>>);

impl ResolvesServerCert for Current {
    fn resolve(&self, _client: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.lock().clone())
    }
}

impl<P: Clock + Random + Clone + 'static> Server<P> {
    /// Fails with [`TlsError::Credentials`] when the key and the chain's first certificate do not belong together, or cannot be used.
    pub fn new(platform: &P, identity: Identity, options: ServerOptions) -> Result<Server<P>, TlsError> {
        let provider = Provider::new(platform);
        let identity = Arc::new(Current(Mutex::new(certified(&provider, identity)?)));
        let builder = ServerConfig::builder_with_details(provider.algorithms.clone(), provider.time.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(TlsError::credentials)?;
        let builder = match options.clients {
            None => builder.with_no_client_auth(),
            Some(roots) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.0, provider.algorithms.clone());
                builder.with_client_cert_verifier(verifier.build().map_err(TlsError::credentials)?)
            }
        };
        let mut config = builder.with_cert_resolver(identity.clone());
        config.alpn_protocols = options.protocols.into_iter().map(String::into_bytes).collect();
        config.ticketer = Arc::new(Tickets::new(provider.entropy, provider.time.clone()));
        config.session_storage = Arc::new(NoServerSessionStorage {});
        // One is what a client needs for its next connection.
        config.send_tls13_tickets = 1;
        let handshake_timeout = options.handshake_timeout;
        let config = Arc::new(config);
        Ok(Server {
            inner: Rc::new(Inner { platform: platform.clone(), provider, identity, config, handshake_timeout }),
        })
    }

    /// Replaces the identity, for handshakes from now on; open connections continue, and tickets remain valid.
    pub fn set_identity(&self, identity: Identity) -> Result<(), TlsError> {
        *self.inner.identity.0.lock() = certified(&self.inner.provider, identity)?;
        Ok(())
    }

    /// The server's end of an accepted stream, whose handshake is to come.
    pub fn accept<S: Split>(&self, stream: S) -> Result<TlsStream<S, P>, TlsError> {
        let Inner { platform, provider, config, handshake_timeout, .. } = &*self.inner;
        provider.refresh(platform);
        let connection = UnbufferedServerConnection::new(config.clone()).map_err(|error| TlsError::refused(&error))?;
        Ok(TlsStream::new(stream, Side::Server(connection), platform.clone(), *handshake_timeout))
    }

    /// A listener whose connections are those of `listener` with TLS. Handshakes happen when a connection is first read or written, so a
    /// client that stalls delays no other one.
    pub fn listen<L: Listener<Stream: Split>>(&self, listener: L) -> TlsListener<L, P> {
        TlsListener { listener, server: self.clone() }
    }
}

fn certified(provider: &Provider, identity: Identity) -> Result<Arc<CertifiedKey>, TlsError> {
    let key =
        CertifiedKey::from_der(identity.chain, identity.key, &provider.algorithms).map_err(TlsError::credentials)?;
    Ok(Arc::new(key))
}

/// Accepts connections of a [`Server`].
pub struct TlsListener<L, P> {
    listener: L,
    server: Server<P>,
}

impl<L: Listener<Stream: Split>, P: Clock + Random + Clone + 'static> Listener for TlsListener<L, P> {
    type Stream = TlsStream<L::Stream, P>;

    async fn accept(&mut self) -> Result<Self::Stream, NetError> {
        let stream = self.listener.accept().await?;
        self.server.accept(stream).map_err(|error| error.of_stream())
    }

    fn port(&self) -> Port {
        self.listener.port()
    }
}
