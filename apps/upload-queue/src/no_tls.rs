//! In the place of `tls.rs` where there is no TLS: on processors other than x86-64 (decision 60).

use alloc::string::String;
use core::convert::Infallible;
use core::marker::PhantomData;
use glasshouse::{Files, Listener, Net, Platform};

/// The stream of a connection.
pub(crate) type Line<P> = <<P as Platform>::Net as Net>::Stream;

/// There is none.
pub(crate) struct Tls<P> {
    never: Infallible,
    platform: PhantomData<P>,
}

impl<P: Platform> Tls<P> {
    /// Fails always.
    pub(crate) async fn open(_: &P, _: &impl Files, _: &str, _: &str) -> Result<Tls<P>, String> {
        Err("there is no TLS on this processor: leave --tls-chain out, and have a proxy end TLS".into())
    }

    pub(crate) async fn reopen(&self, _: &impl Files) -> Result<(), String> {
        let _ = self.platform;
        match self.never {}
    }
}

/// The listener itself.
pub(crate) fn lines<P: Platform>(
    listener: <P::Net as Net>::Listener,
    _: Option<&Tls<P>>,
) -> impl Listener<Stream = Line<P>> {
    listener
}
