//! Connections from their first to their last packet: reads and writes, and the end of a connection whose stream was dropped.

use crate::segment::ip_header_bytes;
use crate::state::State;
use crate::table::{ConnectionId, Ends, Lingering, Role};
use crate::trace::{CONNECT, RECEIVE, SEND};
use core::net::SocketAddr;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use glass_api::{Instant, NetError};
use glass_lib_tcp::congestion::Kind;
use glass_lib_tcp::wire;
use glass_lib_tcp::{Connection as Tcp, End, Header, Settings, State as TcpState};
use glass_lib_trace::{BlockKind, Group, Name, is_on};
use smoltcp::wire::IpEndpoint;

use crate::config::{Congestion, Spare};

/// Bytes that a peer may send to a closed connection before it is reset. They are read and dropped,
/// because a reset would make the peer forget the answer that it has not read yet.
const DISCARD_MAX_BYTES: usize = 4 << 20;
/// A writer that waits for space gets so much at once, or a quarter of the buffer, so that it fills whole frames.
const WORTHWHILE_BYTES: usize = 128 << 10;
/// How long an acknowledgement waits for a second segment, or for data that takes it along.
const ACK_DELAY: Duration = Duration::from_millis(10);
/// How long a deadline is postponed that polling did not clear.
const LATE_WAIT: Duration = Duration::from_millis(1);

impl State {
    /// What a connection between these ends is made with.
    pub(crate) fn settings(&self, ends: Ends) -> Settings {
        let (receive_bytes, send_bytes) = self.config.sizes();
        let segment_bytes = self.mtu.saturating_sub(ip_header_bytes(ends) + wire::HEADER_BYTES);
        Settings {
            receive_bytes,
            send_bytes,
            buffer_bytes_max: self.config.buffer_bytes_max(),
            segment_bytes: u16::try_from(segment_bytes).unwrap_or(u16::MAX),
            congestion: match self.config.congestion {
                Congestion::None => Kind::None,
                Congestion::Reno => Kind::NewReno,
                Congestion::Cubic => Kind::Cubic,
                Congestion::Bbr => Kind::Bbr,
            },
            open_timeout: self.config.open_timeout,
            peer_timeout: self.config.peer_timeout,
            ack_delay: ACK_DELAY,
            seed: self.numbers.seed(ends),
        }
    }

    pub(crate) fn tcp(&mut self, id: ConnectionId) -> &mut Tcp {
        &mut self.table.get(id).tcp
    }

    /// Whether one more connection may exist besides `likely` ones, if necessary in place of one in TIME-WAIT.
    pub(crate) fn make_space(&mut self, likely: usize) -> bool {
        if self.table.len() + likely < self.config.connections_max {
            return true;
        }
        let waiting = self.table.iter_mut().find_map(|(id, connection)| {
            let free = matches!(connection.role, Role::Lingering(_));
            (free && connection.tcp.state() == TcpState::TimeWait).then_some(id)
        });
        if let Some(id) = waiting {
            self.table.remove(id);
            self.counters.time_wait_reclaimed += 1;
        }
        waiting.is_some()
    }

    /// Frees the two ends of a connection that is over, so that they can connect again with this SYN: one in TIME-WAIT is removed, if the
    /// SYN is new, and one that is closed stays for its owner. Returns whether they can.
    pub(crate) fn free_ends(&mut self, id: ConnectionId, syn: &Header) -> bool {
        let connection = self.table.get(id);
        match connection.tcp.state() {
            TcpState::TimeWait if matches!(connection.role, Role::Lingering(_)) => {
                if !connection.tcp.may_reopen(syn) {
                    return false;
                }
                self.table.remove(id);
            }
            // A peer that has reset it may open the next one at once, before the owner has noticed.
            TcpState::Closed => self.table.free_ends(id),
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
        let remote = IpEndpoint::from(remote);
        if !self.can_reach(remote.addr) || !remote.addr.is_unicast() || remote.port == 0 {
            return Err(NetError::NoNetwork);
        }
        let port = self.free_port().ok_or(NetError::TooMany)?;
        let source = self.interface.get_source_address(&remote.addr).ok_or(NetError::NoNetwork)?;
        let ends = Ends { local: IpEndpoint::new(source, port), remote };
        let initial = self.numbers.first_sequence_number(self.now, ends);
        let tcp = Tcp::connect(self.now, initial, self.settings(ends));
        Ok(self.table.insert(tcp, ends, Role::Owned))
    }

    pub(crate) fn poll_connected(&mut self, id: ConnectionId, waker: &Waker) -> Poll<Result<(), NetError>> {
        let connection = self.table.get(id);
        match connection.tcp.state() {
            TcpState::SynSent | TcpState::SynReceived => {
                connection.writer = Some((waker.clone(), 0));
                self.block(BlockKind::Receive, &CONNECT, id);
                Poll::Pending
            }
            TcpState::Closed => Poll::Ready(Err(self.why_broken(id))),
            _ => Poll::Ready(Ok(())),
        }
    }

    pub(crate) fn poll_read(
        &mut self,
        id: ConnectionId,
        buf: &mut [u8],
        context: &mut Context,
    ) -> Poll<Result<usize, NetError>> {
        self.poll_receive(id, buf.len(), context, |tcp| tcp.read(buf))
    }

    /// Drops received data.
    pub(crate) fn poll_skip(
        &mut self,
        id: ConnectionId,
        max_bytes: usize,
        context: &mut Context,
    ) -> Poll<Result<usize, NetError>> {
        self.poll_receive(id, max_bytes, context, |tcp| tcp.skip(max_bytes))
    }

    /// Has `receive` take up to `max_bytes` received bytes and return how many.
    fn poll_receive(
        &mut self,
        id: ConnectionId,
        max_bytes: usize,
        context: &mut Context,
        receive: impl FnOnce(&mut Tcp) -> usize,
    ) -> Poll<Result<usize, NetError>> {
        if max_bytes == 0 {
            return Poll::Ready(Ok(0));
        }
        let connection = self.table.get(id);
        let count = receive(&mut connection.tcp);
        if count > 0 {
            // The window has grown; the next poll announces it to the peer if necessary.
            self.table.touch(id);
            return Poll::Ready(Ok(count));
        }
        if connection.tcp.has_peer_closed() {
            return Poll::Ready(Ok(0));
        }
        if connection.tcp.state() == TcpState::Closed {
            return Poll::Ready(Err(self.why_broken(id)));
        }
        connection.reader = Some(context.waker().clone());
        self.block(BlockKind::Receive, &RECEIVE, id);
        Poll::Pending
    }

    pub(crate) fn poll_write(
        &mut self,
        id: ConnectionId,
        data: &[u8],
        context: &mut Context,
    ) -> Poll<Result<usize, NetError>> {
        self.poll_send(id, data.len(), context, |tcp, space| tcp.write(&data[..space]))
    }

    /// Has `fill`, which is taken then, write up to `max_bytes` into the send buffer.
    pub(crate) fn poll_write_with(
        &mut self,
        id: ConnectionId,
        max_bytes: usize,
        fill: &mut Option<impl FnOnce(&mut [u8])>,
        context: &mut Context,
    ) -> Poll<Result<usize, NetError>> {
        self.poll_send(id, max_bytes, context, |tcp, space| {
            tcp.write_with(space, |piece| {
                if let Some(fill) = fill.take() {
                    fill(piece);
                }
                piece.len()
            })
        })
    }

    /// Has `send` queue up to `max_bytes`, as many as it is given, and return how many.
    fn poll_send(
        &mut self,
        id: ConnectionId,
        max_bytes: usize,
        context: &mut Context,
        send: impl FnOnce(&mut Tcp, usize) -> usize,
    ) -> Poll<Result<usize, NetError>> {
        if max_bytes == 0 {
            return Poll::Ready(Ok(0));
        }
        let connection = self.table.get(id);
        if !connection.tcp.is_writable() {
            return Poll::Ready(Err(self.why_broken(id)));
        }
        let space = connection.tcp.space();
        let worthwhile = max_bytes.min(connection.tcp.send_limit() / 4).clamp(1, WORTHWHILE_BYTES);
        // A writer that waits for space has more, so the last short segment of what is queued waits for that.
        connection.tcp.hold_short(space < max_bytes);
        if space >= worthwhile {
            let count = send(&mut connection.tcp, space.min(max_bytes));
            self.table.touch(id);
            if count > 0 {
                return Poll::Ready(Ok(count));
            }
            // There is no memory for more.
            return Poll::Ready(Err(NetError::TooMany));
        }
        connection.writer = Some((context.waker().clone(), worthwhile));
        self.block(BlockKind::Send, &SEND, id);
        Poll::Pending
    }

    /// Records in the trace what the task waits for on this connection.
    fn block(&mut self, kind: BlockKind, name: &Name, id: ConnectionId) {
        if is_on(Group::Tasks) {
            glass_lib_trace::block(kind, name, self.table.get(id).flow.number.into());
        }
    }

    /// Queues the end of our half of the connection.
    pub(crate) fn close(&mut self, id: ConnectionId) -> Result<(), NetError> {
        let connection = self.table.get(id);
        if connection.tcp.state() == TcpState::Closed {
            return Err(self.why_broken(id));
        }
        connection.tcp.close();
        self.table.touch(id);
        Ok(())
    }

    /// Resets a connection that keeps its owner, whose reads and writes fail from now on.
    pub(crate) fn abort(&mut self, id: ConnectionId) {
        let connection = self.table.get(id);
        connection.tcp.abort();
        connection.wake();
        self.table.touch(id);
    }

    fn why_broken(&mut self, id: ConnectionId) -> NetError {
        match self.tcp(id).end() {
            Some(End::Reset | End::Aborted) => NetError::Reset,
            Some(End::TimedOut | End::Finished) | None => NetError::TimedOut,
        }
    }

    /// Takes a connection over from its owner. Without a `close` before, it is reset.
    pub(crate) fn release(&mut self, id: ConnectionId, closed: bool) {
        let now = self.now;
        let connection = self.table.get(id);
        if !closed {
            connection.tcp.abort();
        }
        let unsent_bytes = connection.tcp.unacknowledged();
        connection.role = Role::Lingering(Lingering { since: now, progress_at: now, unsent_bytes, discarded_bytes: 0 });
        self.table.touch(id);
    }

    /// Serves a connection after it has sent all that it can: frees it when it has ended, and
    /// otherwise computes its next deadline.
    pub(crate) fn settle(&mut self, id: ConnectionId) {
        let deadline = match self.table.get(id).role {
            Role::Owned => {
                self.lengthen(id);
                None
            }
            Role::Pending { listener_id } => {
                if self.settle_pending(id, listener_id) {
                    return;
                }
                None
            }
            Role::Lingering(_) => match self.settle_lingering(id) {
                None => return self.table.remove(id),
                deadline => deadline,
            },
        };
        let connection = self.table.get(id);
        connection.wake();
        // What was due is done. A deadline that has passed nevertheless is never waited for without a pause.
        let late = self.now + LATE_WAIT;
        let protocol = connection.tcp.next_deadline(self.now).map(|at| if at <= self.now { late } else { at });
        self.table.set_deadline(id, protocol.into_iter().chain(deadline).min());
    }

    /// Makes buffers longer that are too short for the path, as far as there is spare memory.
    fn lengthen(&mut self, id: ConnectionId) {
        let tcp = self.tcp(id);
        let (is_receive_short, is_send_short) = (tcp.is_receive_buffer_short(), tcp.is_send_buffer_short());
        if !is_receive_short && !is_send_short {
            return;
        }
        let in_use = self.table.spare();
        let tcp = &mut self.table.get(id).tcp;
        let (receive_most, send_most) = tcp.growth();
        let receive = match is_receive_short {
            true => self.config.growth(tcp.receive_limit(), in_use.receive).min(receive_most),
            false => 0,
        };
        let send = match is_send_short {
            true => self.config.growth(tcp.send_limit(), in_use.send).min(send_most),
            false => 0,
        };
        tcp.lengthen(receive, send);
        if receive + send > 0 {
            self.table.add_spare(id, Spare { receive, send });
        }
    }

    /// Serves a connection without a stream; returns its next deadline, `None` when it has ended.
    fn settle_lingering(&mut self, id: ConnectionId) -> Option<Instant> {
        let now = self.now;
        let connection = self.table.get(id);
        let Role::Lingering(lingering) = &mut connection.role else { return None };
        let discarded = connection.tcp.skip(usize::MAX);
        match connection.tcp.state() {
            TcpState::Closed => return None,
            // It has no buffers any more, and ends by itself.
            TcpState::TimeWait => {
                self.table.return_spare(id);
                return Some(Instant(u64::MAX));
            }
            _ => {}
        }
        lingering.discarded_bytes += discarded;
        let unsent_bytes = connection.tcp.unacknowledged();
        if unsent_bytes < lingering.unsent_bytes {
            lingering.unsent_bytes = unsent_bytes;
            lingering.progress_at = now;
        }
        let idle_end = lingering.progress_at + self.config.linger_timeout;
        let end = idle_end.min(lingering.since + self.config.linger_max);
        if now < end && lingering.discarded_bytes <= DISCARD_MAX_BYTES {
            if discarded > 0 {
                self.table.touch(id);
            }
            return Some(end);
        }
        connection.tcp.abort();
        self.counters.linger_cut += 1;
        self.table.touch(id);
        Some(Instant(u64::MAX))
    }
}
