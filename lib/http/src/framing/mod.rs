//! The bytes of HTTP/1.1 (RFC 9112), without I/O and without time: heads, bodies, chunks, events, each as received and as sent.
//!
//! `wire.rs` moves these bytes over a stream for both the server and the client.

pub(crate) mod chunked;
pub(crate) mod date;
pub(crate) mod event;
pub(crate) mod fields;
pub(crate) mod head;
pub(crate) mod incoming;
pub(crate) mod input;
pub(crate) mod outgoing;
pub(crate) mod request;
pub(crate) mod response;
pub(crate) mod response_head;
pub(crate) mod text;
