//! What tasks wait on, by name.

use glass_lib_trace::Name;

pub(crate) static CONNECT: Name = Name::new("vsock connect");
pub(crate) static ACCEPT: Name = Name::new("vsock accept");
pub(crate) static RECEIVE: Name = Name::new("vsock receive");
pub(crate) static CREDIT: Name = Name::new("vsock: the peer gives no credit");
