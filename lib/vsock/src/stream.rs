//! One connection, as a service holds it.

use crate::sockets::Shared;
use crate::stack::ConnectionId;
use crate::trace::{CONNECT, CREDIT, RECEIVE};
use alloc::rc::Rc;
use core::cell::Cell;
use core::future::poll_fn;
use core::task::{Poll, Waker};
use glass_api::{Address, Buf, NetError, VsockAddress};
use glass_lib_trace::{BlockKind, Name, block};

/// A vsock connection; see [`glass_api::Stream`].
///
/// After `close` the stream may be dropped: what was written is still sent, for [`Config::close_timeout`](crate::Config::close_timeout)
/// at most.
pub struct Stream {
    shared: Rc<Shared>,
    id: ConnectionId,
    /// In the trace.
    number: u32,
    peer: VsockAddress,
    closed: Cell<bool>,
}

impl Stream {
    pub(crate) fn new(shared: Rc<Shared>, id: ConnectionId, peer: VsockAddress) -> Stream {
        let number = shared.stack.borrow_mut().number(id);
        Stream { shared, id, number, peer, closed: Cell::new(false) }
    }

    /// The result of a poll of the stack; if it is pending, what the task waits on is recorded in the trace.
    fn waits<T>(&self, polled: Poll<T>, kind: BlockKind, name: &'static Name) -> Poll<T> {
        if polled.is_pending() {
            block(kind, name, self.number.into());
        }
        polled
    }

    pub(crate) async fn connected(&self) -> Result<(), NetError> {
        let poll = |waker: &Waker| self.shared.stack.borrow_mut().poll_connected(self.id, waker);
        poll_fn(|context| self.waits(poll(context.waker()), BlockKind::Receive, &CONNECT)).await
    }

    async fn receive(&self, buf: &mut [u8]) -> Result<usize, NetError> {
        let mut poll = |waker: &Waker| self.shared.stack.borrow_mut().poll_read(self.id, buf, waker);
        poll_fn(|context| self.waits(poll(context.waker()), BlockKind::Receive, &RECEIVE)).await
    }

    async fn send(&self, data: &[u8]) -> Result<usize, NetError> {
        let poll = |waker: &Waker| self.shared.stack.borrow_mut().poll_write(self.id, data, waker);
        poll_fn(|context| self.waits(poll(context.waker()), BlockKind::Send, &CREDIT)).await
    }

    async fn send_buf(&self, data: &Buf) -> Result<usize, NetError> {
        let poll = |waker: &Waker| self.shared.stack.borrow_mut().poll_write_buf(self.id, data, waker);
        poll_fn(|context| self.waits(poll(context.waker()), BlockKind::Send, &CREDIT)).await
    }

    pub(crate) async fn receive_message(&self) -> Result<Option<Buf>, NetError> {
        let poll = |waker: &Waker| self.shared.stack.borrow_mut().poll_receive(self.id, waker);
        poll_fn(|context| self.waits(poll(context.waker()), BlockKind::Receive, &RECEIVE)).await
    }

    pub(crate) async fn send_message(&self, message: &[u8]) -> Result<(), NetError> {
        let poll = |waker: &Waker| self.shared.stack.borrow_mut().poll_send(self.id, message, waker);
        poll_fn(|context| self.waits(poll(context.waker()), BlockKind::Send, &CREDIT)).await
    }

    pub(crate) fn address(&self) -> VsockAddress {
        self.peer
    }

    pub(crate) fn end(&self) -> Result<(), NetError> {
        if !self.closed.get() {
            self.shared.stack.borrow_mut().close(self.shared.now(), self.id)?;
            self.closed.set(true);
        }
        Ok(())
    }
}

impl glass_api::Stream for Stream {
    async fn read(&mut self, buf: &mut [u8]) -> Result<usize, NetError> {
        self.receive(buf).await
    }

    async fn write(&mut self, data: &[u8]) -> Result<usize, NetError> {
        self.send(data).await
    }

    async fn write_buf(&mut self, data: &Buf) -> Result<usize, NetError> {
        self.send_buf(data).await
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
        self.shared.stack.borrow_mut().release(self.shared.now(), self.id);
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
            self.stream.shared.stack.borrow_mut().abort(self.stream.id);
        }
    }
}
