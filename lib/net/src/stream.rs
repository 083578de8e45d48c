//! One connection, as a service holds it.

use crate::state::Shared;
use crate::table::ConnectionId;
use alloc::rc::Rc;
use core::future::poll_fn;
use core::net::SocketAddr;
use glass_api::NetError;

/// A TCP connection; see [`glass_api::Stream`].
///
/// * `read` answers 0 after the peer's end, [`NetError::Reset`] after its reset and
///   [`NetError::TimedOut`] when it has been silent for [`crate::Config::peer_timeout`]. What arrived
///   before is read first.
/// * After `close` the stream may be dropped: what is queued goes on being delivered, within the
///   bounds of [`crate::Config::linger_timeout`] and [`crate::Config::linger_max`].
/// * When both halves are closed, what is left must be read within ten seconds, which is as long as
///   the protocol keeps the connection; a later read fails with [`NetError::TimedOut`].
pub struct Stream {
    shared: Rc<Shared>,
    id: ConnectionId,
    peer: SocketAddr,
    closed: bool,
}

impl Stream {
    pub(crate) fn new(shared: Rc<Shared>, id: ConnectionId, peer: SocketAddr) -> Stream {
        Stream { shared, id, peer, closed: false }
    }

    pub(crate) async fn connected(&self) -> Result<(), NetError> {
        poll_fn(|context| self.shared.state.borrow_mut().poll_connected(self.id, context.waker())).await
    }
}

impl glass_api::Stream for Stream {
    async fn read(&mut self, buf: &mut [u8]) -> Result<usize, NetError> {
        poll_fn(|context| self.shared.state.borrow_mut().poll_read(self.id, buf, context)).await
    }

    async fn write(&mut self, data: &[u8]) -> Result<usize, NetError> {
        poll_fn(|context| self.shared.state.borrow_mut().poll_write(self.id, data, context)).await
    }

    async fn close(&mut self) -> Result<(), NetError> {
        if !self.closed {
            self.shared.state.borrow_mut().close(self.id)?;
            self.closed = true;
        }
        Ok(())
    }

    fn peer(&self) -> SocketAddr {
        self.peer
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.shared.state.borrow_mut().release(self.id, self.closed);
    }
}
