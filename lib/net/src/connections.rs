//! Connections from their first to their last packet: buffers, reads and writes, and what is left of
//! them when their stream has gone.

use crate::state::{State, to_smoltcp_duration};
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use glass_api::{Instant, NetError};
use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp::{self, RecvError};

/// How long a reset may wait for room in the device.
const ABORT_WAIT: Duration = Duration::from_secs(1);
/// What a peer may go on sending to a closed connection before it is reset. It is read and dropped,
/// because a reset would make the peer forget the answer that it has not read yet.
const DISCARD_MAX_BYTES: usize = 4 << 20;

/// A connection without a stream.
pub(crate) struct Lingering {
    handle: SocketHandle,
    since: Instant,
    /// When data went out last.
    progress_at: Instant,
    unsent_bytes: usize,
    discarded_bytes: usize,
    aborted: bool,
}

impl State {
    /// A socket with buffers and options that is not part of the set yet.
    pub(crate) fn make_socket(&mut self) -> Result<tcp::Socket<'static>, NetError> {
        let (Some(receive), Some(send)) = (zeroed(self.config.window_bytes()), zeroed(self.config.send_bytes.max(1)))
        else {
            self.counters.refused_memory += 1;
            return Err(NetError::TooMany);
        };
        let mut socket = tcp::Socket::new(tcp::SocketBuffer::new(receive), tcp::SocketBuffer::new(send));
        // Writers hand over whole messages; waiting for more of them only costs time.
        socket.set_nagle_enabled(false);
        socket.set_congestion_control(self.congestion());
        socket.set_timeout(Some(to_smoltcp_duration(self.config.open_timeout)));
        // Before the socket opens: later it would send a probe at once.
        socket.set_keep_alive(Some(to_smoltcp_duration(self.config.peer_timeout / 4)));
        if self.large_frames {
            socket.set_ack_delay(None);
        }
        Ok(socket)
    }

    pub(crate) fn add_socket(&mut self, socket: tcp::Socket<'static>) -> SocketHandle {
        self.connection_count += 1;
        self.sockets.add(socket)
    }

    pub(crate) fn remove_socket(&mut self, handle: SocketHandle) {
        self.connection_count -= 1;
        self.reset.retain(|reset| *reset != handle);
        self.sockets.remove(handle);
    }

    /// Whether one more connection may exist, if need be in the place of one that only waits for
    /// stray packets.
    pub(crate) fn make_room(&mut self) -> bool {
        if self.connection_count < self.config.connections_max {
            return true;
        }
        let waiting = self
            .lingering
            .iter()
            .position(|lingering| self.sockets.get::<tcp::Socket>(lingering.handle).state() == tcp::State::TimeWait);
        if let Some(index) = waiting {
            let handle = self.lingering.remove(index).handle;
            self.remove_socket(handle);
            self.counters.time_wait_reclaimed += 1;
        }
        waiting.is_some()
    }

    /// Forgets a lingering connection in TIME-WAIT, so that its two ends can connect anew.
    pub(crate) fn end_time_wait(&mut self, handle: SocketHandle) {
        if self.socket(handle).state() != tcp::State::TimeWait {
            return;
        }
        if let Some(index) = self.lingering.iter().position(|lingering| lingering.handle == handle) {
            self.lingering.remove(index);
            self.remove_socket(handle);
        }
    }

    /// Starts to open a connection; [`State::poll_connected`] tells how it went.
    pub(crate) fn connect(&mut self, remote: SocketAddr) -> Result<SocketHandle, NetError> {
        if !self.make_room() {
            self.counters.refused_limit += 1;
            return Err(NetError::TooMany);
        }
        let port = self.free_port().ok_or(NetError::TooMany)?;
        let mut socket = self.make_socket()?;
        match socket.connect(self.interface.context(), remote, port) {
            Ok(()) => {}
            // No address of ours fits, or the remote one is no address.
            Err(_) => return Err(NetError::NoNetwork),
        }
        self.dirty = true;
        Ok(self.add_socket(socket))
    }

    pub(crate) fn poll_connected(&mut self, handle: SocketHandle, waker: &Waker) -> Poll<Result<(), NetError>> {
        let socket = self.socket(handle);
        match socket.state() {
            tcp::State::SynSent | tcp::State::SynReceived => {
                socket.register_send_waker(waker);
                Poll::Pending
            }
            tcp::State::Closed => Poll::Ready(Err(self.why_broken(handle))),
            _ => {
                self.established(handle);
                self.counters.connected += 1;
                Poll::Ready(Ok(()))
            }
        }
    }

    /// Gives a connection that has opened the time limit of an open one.
    pub(crate) fn established(&mut self, handle: SocketHandle) {
        let timeout = to_smoltcp_duration(self.config.peer_timeout);
        self.socket(handle).set_timeout(Some(timeout));
    }

    pub(crate) fn poll_read(
        &mut self,
        handle: SocketHandle,
        buf: &mut [u8],
        context: &mut Context,
    ) -> Poll<Result<usize, NetError>> {
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let socket = self.socket(handle);
        // Unlike `recv`, this takes both pieces when the data wraps around the ring's end.
        match socket.recv_slice(buf) {
            Ok(0) => {
                socket.register_recv_waker(context.waker());
                Poll::Pending
            }
            Ok(count) => {
                // The window has grown; the next poll tells the peer if it matters.
                self.dirty = true;
                Poll::Ready(Ok(count))
            }
            Err(RecvError::Finished) => Poll::Ready(Ok(0)),
            Err(RecvError::InvalidState) => Poll::Ready(Err(self.why_broken(handle))),
        }
    }

    pub(crate) fn poll_write(
        &mut self,
        handle: SocketHandle,
        data: &[u8],
        context: &mut Context,
    ) -> Poll<Result<usize, NetError>> {
        if data.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let socket = self.socket(handle);
        match socket.send_slice(data) {
            Ok(0) => {
                socket.register_send_waker(context.waker());
                Poll::Pending
            }
            Ok(count) => {
                self.dirty = true;
                Poll::Ready(Ok(count))
            }
            Err(_) => Poll::Ready(Err(self.why_broken(handle))),
        }
    }

    /// Queues the end of our half of the connection.
    pub(crate) fn close(&mut self, handle: SocketHandle) -> Result<(), NetError> {
        let socket = self.socket(handle);
        if socket.state() == tcp::State::Closed {
            return Err(self.why_broken(handle));
        }
        socket.close();
        self.dirty = true;
        Ok(())
    }

    fn why_broken(&self, handle: SocketHandle) -> NetError {
        // A connection that is over without the peer's word for it has timed out.
        if self.reset.contains(&handle) { NetError::Reset } else { NetError::TimedOut }
    }

    /// Takes a connection over from its stream. Without a `close` before, it is reset.
    pub(crate) fn release(&mut self, handle: SocketHandle, closed: bool) {
        let now = self.now;
        let socket = self.socket(handle);
        if !closed {
            socket.abort();
        }
        let unsent_bytes = socket.send_queue();
        self.lingering.push(Lingering {
            handle,
            since: now,
            progress_at: now,
            unsent_bytes,
            discarded_bytes: 0,
            aborted: !closed,
        });
        self.dirty = true;
    }

    /// Frees the connections that are over.
    pub(crate) fn reap_lingering(&mut self) {
        let mut lingering = core::mem::take(&mut self.lingering);
        lingering.retain_mut(|lingering| {
            let over = self.is_over(lingering);
            if over {
                self.remove_socket(lingering.handle);
            }
            !over
        });
        self.lingering = lingering;
    }

    fn is_over(&mut self, lingering: &mut Lingering) -> bool {
        let now = self.now;
        let (linger_timeout, linger_max) = (self.config.linger_timeout, self.config.linger_max);
        let socket = self.sockets.get_mut::<tcp::Socket>(lingering.handle);
        if socket.state() == tcp::State::Closed && socket.remote_endpoint().is_none() {
            return true;
        }
        if lingering.aborted {
            return now >= lingering.since + ABORT_WAIT;
        }
        if socket.state() == tcp::State::TimeWait {
            return false;
        }
        while let Ok(count @ 1..) = socket.recv(|piece| (piece.len(), piece.len())) {
            lingering.discarded_bytes += count;
            self.dirty = true;
        }
        let unsent_bytes = socket.send_queue();
        if unsent_bytes < lingering.unsent_bytes {
            lingering.unsent_bytes = unsent_bytes;
            lingering.progress_at = now;
        }
        let late = now >= lingering.progress_at + linger_timeout || now >= lingering.since + linger_max;
        if late || lingering.discarded_bytes > DISCARD_MAX_BYTES {
            socket.abort();
            lingering.aborted = true;
            lingering.since = now;
            self.counters.linger_cut += 1;
            self.dirty = true;
        }
        false
    }

    /// When [`State::reap_lingering`] has to look at the clock next.
    pub(crate) fn lingering_deadline(&self) -> Option<Instant> {
        let deadline = |lingering: &Lingering| {
            if lingering.aborted {
                return lingering.since + ABORT_WAIT;
            }
            let idle = lingering.progress_at + self.config.linger_timeout;
            idle.min(lingering.since + self.config.linger_max)
        };
        self.lingering.iter().map(deadline).min()
    }

    /// Acknowledges at once from now on: a device that merges frames hands over as much in one frame
    /// as the peer may have in flight, and smoltcp would wait for a second one.
    pub(crate) fn acknowledge_large_frames(&mut self) {
        self.large_frames = true;
        for (_, socket) in self.sockets.iter_mut() {
            if let smoltcp::socket::Socket::Tcp(socket) = socket {
                socket.set_ack_delay(None);
            }
        }
    }
}

fn zeroed(bytes: usize) -> Option<Vec<u8>> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(bytes).ok()?;
    buffer.resize(bytes, 0);
    Some(buffer)
}
