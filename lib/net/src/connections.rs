//! Connections from their first to their last packet: buffers, reads and writes, and the end of a
//! connection whose stream was dropped.

use crate::congestion::Window;
use crate::half_open::Sizes;
use crate::numbers::{interface_for, seed_of};
use crate::segment::segment_of;
use crate::state::{State, from_smoltcp, to_smoltcp, to_smoltcp_duration};
use crate::table::{ConnectionId, Ends, Lingering, Role};
use crate::trace::{CONNECT, RECEIVE, SEND};
use core::net::SocketAddr;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use glass_api::{Instant, NetError, zeroed_bytes};
use glass_lib_trace::{BlockKind, Group, Name, is_on};
use smoltcp::phy::DeviceCapabilities;
use smoltcp::socket::tcp::{self, RecvError, SendError};
use smoltcp::wire::IpEndpoint;

/// How long a reset may wait for room in the device, or for its destination's address: smoltcp requests an address, and then none for a second.
const ABORT_WAIT: Duration = Duration::from_secs(3);
/// Bytes that a peer may send to a closed connection before it is reset. They are read and dropped,
/// because a reset would make the peer forget the answer that it has not read yet.
const DISCARD_MAX_BYTES: usize = 4 << 20;
/// Sockets of ended connections are kept with one part in so many of the spare memory.
const ENDED_SHARE: usize = 2;
/// And connections in TIME-WAIT, which have nothing to receive or send any more, use one part in so many; older ones end early.
const TIME_WAIT_SHARE: usize = 8;
/// How long a deadline is postponed that polling did not clear.
const LATE_WAIT: Duration = Duration::from_millis(1);

impl State {
    /// The sizes of a new connection's buffers.
    pub(crate) fn sizes(&self) -> Sizes {
        self.config.sizes(self.table.spare_bytes() + self.handshakes.spare_bytes())
    }

    /// A socket with buffers of these sizes and options.
    pub(crate) fn make_socket(&mut self, (receive, send, _): Sizes) -> Result<tcp::Socket<'static>, NetError> {
        let mut socket = match self.ended.take(receive, send) {
            // It forgets its connection when it opens.
            Some(socket) => socket,
            None => {
                let (Ok(receive), Ok(send)) = (zeroed_bytes(receive), zeroed_bytes(send)) else {
                    return Err(NetError::TooMany);
                };
                tcp::Socket::new(tcp::SocketBuffer::new(receive), tcp::SocketBuffer::new(send))
            }
        };
        // Writers pass whole messages; waiting for more of them only adds delay (but see `State::poll_write`).
        socket.set_nagle_enabled(false);
        // `congestion.rs` controls it.
        socket.set_congestion_control(tcp::CongestionControl::None);
        socket.set_timeout(Some(to_smoltcp_duration(self.config.open_timeout)));
        // Before the socket opens: later it would send a probe at once.
        socket.set_keep_alive(Some(to_smoltcp_duration(self.config.peer_timeout / 4)));
        if self.large_frames {
            socket.set_ack_delay(None);
        }
        Ok(socket)
    }

    /// Removes a connection from the table and keeps its socket for a new one.
    pub(crate) fn remove(&mut self, id: ConnectionId) {
        if let Some(socket) = self.table.remove(id) {
            self.ended.keep(socket, self.config.spare_bytes / ENDED_SHARE);
        }
    }

    pub(crate) fn socket(&mut self, id: ConnectionId) -> &mut tcp::Socket<'static> {
        self.table.get(id).socket()
    }

    /// Whether one more connection may exist besides `likely` ones, if necessary in place of one in TIME-WAIT.
    pub(crate) fn make_space(&mut self, likely: usize) -> bool {
        if self.table.len() + likely < self.config.connections_max {
            return true;
        }
        let waiting = self.table.iter_mut().find_map(|(id, connection)| {
            let free = matches!(connection.role, Role::Lingering(_));
            (free && connection.socket().state() == tcp::State::TimeWait).then_some(id)
        });
        if let Some(id) = waiting {
            self.remove(id);
            self.counters.time_wait_reclaimed += 1;
        }
        waiting.is_some()
    }

    /// Frees the two ends of a connection that is over, so that they can connect again with this SYN: one in TIME-WAIT is removed, if the
    /// SYN is newer than everything that the connection received (RFC 9293, section 3.10.7.4; ours has no timestamps), and one that is
    /// closed stays for its owner. Returns whether they can.
    pub(crate) fn free_ends(&mut self, id: ConnectionId, syn: &[u8]) -> bool {
        let connection = self.table.get(id);
        match connection.socket().state() {
            tcp::State::TimeWait if matches!(connection.role, Role::Lingering(_)) => {
                let number = segment_of(syn).map(|packet| packet.seq_number());
                if !number.is_some_and(|number| connection.recovery.is_new(number)) {
                    return false;
                }
                self.remove(id);
            }
            // A peer that has reset it may open the next one at once, before the owner has noticed.
            tcp::State::Closed => self.table.free_ends(id),
            _ => return false,
        }
        true
    }

    /// Starts to open a connection; [`State::poll_connected`] returns the result.
    pub(crate) fn connect(&mut self, remote: SocketAddr) -> Result<ConnectionId, NetError> {
        if !self.make_space(0) {
            self.counters.refused_limit += 1;
            return Err(NetError::TooMany);
        }
        if !self.can_reach(remote.ip().into()) {
            return Err(NetError::NoNetwork);
        }
        let port = self.free_port().ok_or(NetError::TooMany)?;
        let sizes = self.sizes();
        let mut socket = self.make_socket(sizes)?;
        let (remote, source) = (IpEndpoint::from(remote), self.interface.get_source_address(&remote.ip().into()));
        let local = IpEndpoint::new(source.ok_or(NetError::NoNetwork)?, port);
        let ends = Ends { local, remote };
        // The socket takes its first sequence number from the interface.
        let seed = seed_of(self.numbers.first_sequence_number(self.now, ends));
        let mut interface = interface_for(seed, source, DeviceCapabilities::default(), self.now);
        // It fails when the remote address is invalid.
        socket.connect(interface.context(), remote, local).map_err(|_| NetError::NoNetwork)?;
        let window = Window::new(self.config.congestion);
        Ok(self.table.insert(socket, sizes.2, window, ends, Role::Owned))
    }

    pub(crate) fn poll_connected(&mut self, id: ConnectionId, waker: &Waker) -> Poll<Result<(), NetError>> {
        let socket = self.socket(id);
        match socket.state() {
            tcp::State::SynSent | tcp::State::SynReceived => {
                socket.register_send_waker(waker);
                self.block(BlockKind::Receive, &CONNECT, id);
                Poll::Pending
            }
            tcp::State::Closed => Poll::Ready(Err(self.why_broken(id))),
            _ => {
                self.established(id);
                Poll::Ready(Ok(()))
            }
        }
    }

    /// Gives a connection that has opened the time limit of an open one.
    pub(crate) fn established(&mut self, id: ConnectionId) {
        let timeout = to_smoltcp_duration(self.config.peer_timeout);
        self.socket(id).set_timeout(Some(timeout));
        self.table.touch(id);
    }

    pub(crate) fn poll_read(
        &mut self,
        id: ConnectionId,
        buf: &mut [u8],
        context: &mut Context,
    ) -> Poll<Result<usize, NetError>> {
        // Unlike `recv`, this takes both pieces when the data wraps around the ring's end.
        self.poll_receive(id, buf.len(), context, |socket| socket.recv_slice(buf))
    }

    /// Drops received data.
    pub(crate) fn poll_skip(
        &mut self,
        id: ConnectionId,
        max_bytes: usize,
        context: &mut Context,
    ) -> Poll<Result<usize, NetError>> {
        self.poll_receive(id, max_bytes, context, |socket| {
            socket.recv(|piece| (piece.len().min(max_bytes), piece.len().min(max_bytes)))
        })
    }

    /// Has `receive` take up to `max_bytes` received bytes and return how many.
    fn poll_receive(
        &mut self,
        id: ConnectionId,
        max_bytes: usize,
        context: &mut Context,
        receive: impl FnOnce(&mut tcp::Socket<'static>) -> Result<usize, RecvError>,
    ) -> Poll<Result<usize, NetError>> {
        if max_bytes == 0 {
            return Poll::Ready(Ok(0));
        }
        let socket = self.socket(id);
        match receive(socket) {
            Ok(0) => {
                socket.register_recv_waker(context.waker());
                self.block(BlockKind::Receive, &RECEIVE, id);
                Poll::Pending
            }
            Ok(count) => {
                // The window has grown; the next poll announces it to the peer if necessary.
                self.table.touch(id);
                Poll::Ready(Ok(count))
            }
            Err(RecvError::Finished) => Poll::Ready(Ok(0)),
            Err(RecvError::InvalidState) => Poll::Ready(Err(self.why_broken(id))),
        }
    }

    pub(crate) fn poll_write(
        &mut self,
        id: ConnectionId,
        data: &[u8],
        context: &mut Context,
    ) -> Poll<Result<usize, NetError>> {
        self.poll_send(id, data.len(), context, |socket, space| socket.send_slice(&data[..space]))
    }

    /// Has `fill`, which is taken then, write up to `max_bytes` into the send buffer.
    pub(crate) fn poll_write_with(
        &mut self,
        id: ConnectionId,
        max_bytes: usize,
        fill: &mut Option<impl FnOnce(&mut [u8])>,
        context: &mut Context,
    ) -> Poll<Result<usize, NetError>> {
        self.poll_send(id, max_bytes, context, |socket, space| {
            socket.send(|piece| {
                let count = piece.len().min(space);
                if count > 0
                    && let Some(fill) = fill.take()
                {
                    fill(&mut piece[..count]);
                }
                (count, count)
            })
        })
    }

    /// Has `send` queue up to `max_bytes`, as many as it is given, and return how many.
    fn poll_send(
        &mut self,
        id: ConnectionId,
        max_bytes: usize,
        context: &mut Context,
        send: impl FnOnce(&mut tcp::Socket<'static>, usize) -> Result<usize, SendError>,
    ) -> Poll<Result<usize, NetError>> {
        if max_bytes == 0 {
            return Poll::Ready(Ok(0));
        }
        let connection = self.table.get(id);
        let (queued, capacity) = (connection.socket().send_queue(), connection.socket().send_capacity());
        let space = connection.window.space(max_bytes, queued, capacity);
        let socket = connection.socket();
        // A writer that waits for room has more, so the last short segment of what is queued waits for that.
        socket.set_nagle_enabled(space < max_bytes);
        match send(socket, space) {
            Ok(0) => {
                socket.register_send_waker(context.waker());
                self.block(BlockKind::Send, &SEND, id);
                Poll::Pending
            }
            Ok(count) => {
                self.table.touch(id);
                Poll::Ready(Ok(count))
            }
            Err(_) => Poll::Ready(Err(self.why_broken(id))),
        }
    }

    /// Records in the trace what the task waits for on this connection.
    fn block(&mut self, kind: BlockKind, name: &Name, id: ConnectionId) {
        if is_on(Group::Tasks) {
            glass_lib_trace::block(kind, name, self.table.get(id).flow.number.into());
        }
    }

    /// Queues the end of our half of the connection.
    pub(crate) fn close(&mut self, id: ConnectionId) -> Result<(), NetError> {
        let socket = self.socket(id);
        if socket.state() == tcp::State::Closed {
            return Err(self.why_broken(id));
        }
        socket.set_nagle_enabled(false);
        socket.close();
        self.table.touch(id);
        Ok(())
    }

    /// Resets a connection that keeps its owner, whose reads and writes fail from now on.
    pub(crate) fn abort(&mut self, id: ConnectionId) {
        let connection = self.table.get(id);
        connection.reset |= connection.socket().state() != tcp::State::Closed;
        connection.socket().abort();
        self.table.touch(id);
    }

    fn why_broken(&mut self, id: ConnectionId) -> NetError {
        // A connection that ended without a FIN or reset of the peer has timed out.
        if self.table.get(id).reset { NetError::Reset } else { NetError::TimedOut }
    }

    /// Takes a connection over from its owner. Without a `close` before, it is reset.
    pub(crate) fn release(&mut self, id: ConnectionId, closed: bool) {
        let now = self.now;
        let connection = self.table.get(id);
        let socket = connection.socket();
        if !closed {
            socket.abort();
        }
        let unsent_bytes = socket.send_queue();
        let (since, progress_at) = (now, now);
        connection.role =
            Role::Lingering(Lingering { since, progress_at, unsent_bytes, discarded_bytes: 0, aborted: !closed });
        self.table.touch(id);
    }

    /// Serves a connection after it has sent all that it can: frees it when it has ended, and
    /// otherwise computes its next deadline.
    pub(crate) fn settle(&mut self, id: ConnectionId) {
        let deadline = match self.table.get(id).role {
            Role::Owned => None,
            Role::Pending { listener_id } => {
                if self.settle_pending(id, listener_id) {
                    return;
                }
                None
            }
            Role::Lingering(_) => match self.settle_lingering(id) {
                None => return self.remove(id),
                deadline => {
                    if self.socket(id).state() == tcp::State::TimeWait {
                        self.rest(id);
                    }
                    deadline
                }
            },
        };
        let connection = self.table.get(id);
        let protocol = self.interface.poll_at(to_smoltcp(self.now), &connection.sockets).map(from_smoltcp);
        // With nothing to send and a deadline that has passed: never spin on it.
        let protocol = protocol.map(|at| if at <= self.now { self.now + LATE_WAIT } else { at });
        let queued = connection.socket().send_queue();
        let probe = connection.recovery.settle(self.now, queued);
        self.table.set_deadline(id, [protocol, deadline, probe].into_iter().flatten().min());
    }

    /// Limits the spare memory of connections in TIME-WAIT, of which `id` is one: new connections need it.
    fn rest(&mut self, id: ConnectionId) {
        self.table.rest(id);
        while let Some(oldest) = self.table.longest_in_time_wait(id, self.config.spare_bytes / TIME_WAIT_SHARE) {
            self.remove(oldest);
            self.counters.time_wait_reclaimed += 1;
        }
    }

    /// Serves a connection without a stream; returns its next deadline, `None` when it has ended.
    fn settle_lingering(&mut self, id: ConnectionId) -> Option<Instant> {
        let now = self.now;
        let connection = self.table.get(id);
        let closed = connection.socket().state() == tcp::State::Closed;
        let over = closed && connection.socket().remote_endpoint().is_none();
        let time_wait = connection.socket().state() == tcp::State::TimeWait;
        let discarded = if closed { 0 } else { discard(connection.socket()) };
        let unsent_bytes = connection.socket().send_queue();
        let Role::Lingering(lingering) = &mut connection.role else { return None };
        if over {
            return None;
        }
        if lingering.aborted {
            let end = lingering.since + ABORT_WAIT;
            return (now < end).then_some(end);
        }
        lingering.discarded_bytes += discarded;
        if unsent_bytes < lingering.unsent_bytes {
            lingering.unsent_bytes = unsent_bytes;
            lingering.progress_at = now;
        }
        let idle_end = lingering.progress_at + self.config.linger_timeout;
        let end = idle_end.min(lingering.since + self.config.linger_max);
        if time_wait || (now < end && lingering.discarded_bytes <= DISCARD_MAX_BYTES) {
            if discarded > 0 {
                self.table.touch(id);
            }
            // smoltcp closes the others itself.
            return Some(if time_wait { Instant(u64::MAX) } else { end });
        }
        lingering.aborted = true;
        lingering.since = now;
        connection.socket().abort();
        self.counters.linger_cut += 1;
        self.table.touch(id);
        Some(now + ABORT_WAIT)
    }

    /// Acknowledges without delay from now on: a device that merges frames delivers as much in one frame
    /// as the peer may have in flight, and smoltcp would wait for a second one.
    pub(crate) fn acknowledge_large_frames(&mut self) {
        self.large_frames = true;
        for (_, connection) in self.table.iter_mut() {
            connection.socket().set_ack_delay(None);
        }
    }
}

/// Drops the received data and returns how much that was.
fn discard(socket: &mut tcp::Socket<'static>) -> usize {
    let mut discarded = 0;
    while let Ok(count @ 1..) = socket.recv(|piece| (piece.len(), piece.len())) {
        discarded += count;
    }
    discarded
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Stack;
    use crate::config::{Address, Config};
    use crate::long_frames::Shape;
    use smoltcp::phy::Medium;
    use smoltcp::wire::IpAddress;

    #[test]
    fn half_of_the_spare_memory_keeps_sockets_of_ended_connections_for_new_ones() {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 1514;
        let config = Config { spare_bytes: 8000, ..Config::for_memory(Address::Dhcp, 1 << 20) };
        let stack = Stack::new(Shape(capabilities), [2, 0, 0, 0, 0, 1], config, 1, Instant(0)).unwrap();
        let sockets = stack.sockets();
        let mut state = sockets.shared().unwrap().state.borrow_mut();
        let end = |port| IpEndpoint::new(IpAddress::v4(10, 0, 0, 1), port);
        let ids = [1, 2, 3, 4].map(|port| {
            let socket = state.make_socket((1000, 1000, 0)).unwrap();
            let (window, ends) = (Window::new(state.config.congestion), Ends { local: end(80), remote: end(port) });
            state.table.insert(socket, 0, window, ends, Role::Owned)
        });
        for id in ids {
            state.remove(id);
        }
        assert_eq!(core::iter::from_fn(|| state.ended.take(1000, 1000)).count(), 2);
    }
}
