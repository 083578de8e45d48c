//! One connection, as a service holds it.

use crate::state::Shared;
use crate::table::ConnectionId;
use alloc::rc::Rc;
use core::cell::Cell;
use core::future::poll_fn;
use core::net::SocketAddr;
use glass_api::{Address, NetError};

/// A TCP connection; see [`glass_api::Stream`].
///
/// * `read` answers 0 after the peer's end, [`NetError::Reset`] after its reset and
///   [`NetError::TimedOut`] when it has been silent for [`crate::Config::peer_timeout`]. What arrived
///   before is read first.
/// * After `close` the stream may be dropped: queued data is still delivered, within the
///   bounds of [`crate::Config::linger_timeout`] and [`crate::Config::linger_max`].
/// * What was received can be read as long as the stream exists, also after the connection has ended.
pub struct Stream {
    shared: Rc<Shared>,
    id: ConnectionId,
    peer: SocketAddr,
    closed: Cell<bool>,
}

impl Stream {
    pub(crate) fn new(shared: Rc<Shared>, id: ConnectionId, peer: SocketAddr) -> Stream {
        Stream { shared, id, peer, closed: Cell::new(false) }
    }

    pub(crate) async fn connected(&self) -> Result<(), NetError> {
        poll_fn(|context| self.shared.state.borrow_mut().poll_connected(self.id, context.waker())).await
    }

    async fn receive(&self, buf: &mut [u8]) -> Result<usize, NetError> {
        poll_fn(|context| self.shared.state.borrow_mut().poll_read(self.id, buf, context)).await
    }

    async fn skip(&self, max_bytes: usize) -> Result<usize, NetError> {
        poll_fn(|context| self.shared.state.borrow_mut().poll_skip(self.id, max_bytes, context)).await
    }

    async fn send(&self, data: &[u8]) -> Result<usize, NetError> {
        poll_fn(|context| self.shared.state.borrow_mut().poll_write(self.id, data, context)).await
    }

    async fn send_with(&self, max_bytes: usize, fill: impl FnOnce(&mut [u8])) -> Result<usize, NetError> {
        let mut fill = Some(fill);
        poll_fn(|context| self.shared.state.borrow_mut().poll_write_with(self.id, max_bytes, &mut fill, context)).await
    }

    fn end(&self) -> Result<(), NetError> {
        if !self.closed.get() {
            self.shared.state.borrow_mut().close(self.id)?;
            self.closed.set(true);
        }
        Ok(())
    }
}

impl glass_api::Stream for Stream {
    async fn read(&mut self, buf: &mut [u8]) -> Result<usize, NetError> {
        self.receive(buf).await
    }

    async fn skip(&mut self, max_bytes: usize) -> Result<usize, NetError> {
        Stream::skip(self, max_bytes).await
    }

    async fn write(&mut self, data: &[u8]) -> Result<usize, NetError> {
        self.send(data).await
    }

    async fn write_with(&mut self, max_bytes: usize, fill: impl FnOnce(&mut [u8])) -> Result<usize, NetError> {
        self.send_with(max_bytes, fill).await
    }

    async fn close(&mut self) -> Result<(), NetError> {
        self.end()
    }

    fn peer(&self) -> Address {
        self.peer.into()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.shared.state.borrow_mut().release(self.id, self.closed.get());
    }
}

/// What reads of a [`Stream`] in halves.
pub struct ReadHalf {
    stream: Rc<Stream>,
}

/// What writes of a [`Stream`] in halves.
pub struct WriteHalf {
    stream: Rc<Stream>,
}

impl glass_api::Split for Stream {
    type ReadHalf = ReadHalf;
    type WriteHalf = WriteHalf;

    fn split(self) -> (ReadHalf, WriteHalf) {
        let stream = Rc::new(self);
        (ReadHalf { stream: stream.clone() }, WriteHalf { stream })
    }
}

impl glass_api::ReadHalf for ReadHalf {
    async fn read(&mut self, buf: &mut [u8]) -> Result<usize, NetError> {
        self.stream.receive(buf).await
    }

    fn peer(&self) -> Address {
        self.stream.peer.into()
    }
}

impl glass_api::WriteHalf for WriteHalf {
    async fn write(&mut self, data: &[u8]) -> Result<usize, NetError> {
        self.stream.send(data).await
    }

    async fn close(&mut self) -> Result<(), NetError> {
        self.stream.end()
    }

    fn peer(&self) -> Address {
        self.stream.peer.into()
    }
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        if !self.stream.closed.get() {
            self.stream.shared.state.borrow_mut().abort(self.stream.id);
        }
    }
}
