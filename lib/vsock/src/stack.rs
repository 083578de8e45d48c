//! All connections of one machine.

use crate::config::Config;
use crate::connection::{Connection, End, Owner, State, Unsent};
use crate::header::{END_OF_MESSAGE, Ends, Header, Operation, SHUTDOWN_RECEIVE, SHUTDOWN_SEND, Type};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::task::{Poll, Waker};
use glass_api::{Buf, Instant, NetError, Port};
use glass_lib_trace::Presence;

/// Resets for packets of no connection that wait to be sent; more are dropped, and their peers run into time-outs.
const REPLIES_MAX: usize = 1024;
/// Ports from here on are chosen for connections that we open.
const FIRST_FREE_PORT: u32 = 49_152;
/// The numbers of vsock's connections in the trace are those from here on; TCP has the lower ones.
const FIRST_NUMBER: u32 = 1 << 31;
/// Both halves.
const SHUTDOWN_BOTH: u32 = SHUTDOWN_RECEIVE | SHUTDOWN_SEND;

/// Names a connection until it is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(usize);

/// Names an open port until it is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(u64);

/// A packet to send.
#[derive(Debug, Clone)]
pub struct Packet {
    /// Its header.
    pub header: Header,
    /// Its data, which must not change until the device has sent it.
    pub data: Option<Buf>,
}

/// What happened since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections that were opened, by either side.
    pub opened: u64,
    /// Requests that were refused, because no port is open there or a bound was reached.
    pub refused: u64,
    /// Connections that the peer has reset.
    pub reset_by_peer: u64,
    /// Connections that were reset because the peer broke a rule of the protocol.
    pub violations: u64,
    /// Packets for another machine, or cut.
    pub malformed: u64,
    /// Connections that were reset because the peer did not answer.
    pub timed_out: u64,
}

struct Listener {
    id: ListenerId,
    kind: Type,
    backlog: VecDeque<ConnectionId>,
    waker: Option<Waker>,
}

/// All connections of one machine; see the crate's documentation.
pub struct Stack {
    cid: u64,
    config: Config,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    /// Those that have not ended.
    by_ends: BTreeMap<Ends, ConnectionId>,
    listeners: BTreeMap<u32, Listener>,
    listeners_made: u64,
    /// Resets that belong to no connection any more.
    replies: VecDeque<Header>,
    /// Connections that have something to send, each once.
    queued: VecDeque<ConnectionId>,
    /// Data of all connections that waits to be sent.
    queued_bytes: usize,
    /// Writers that wait for that to become less.
    without_work: Vec<ConnectionId>,
    deadlines: BTreeSet<(Instant, ConnectionId)>,
    next_port: u32,
    connections_made: u32,
    now: Instant,
    counters: Counters,
}

impl Stack {
    /// The state of a machine with the context identifier `cid` and no connections. `seed` chooses the first free port.
    pub fn new(cid: u64, config: Config, seed: u64) -> Stack {
        let next_port = FIRST_FREE_PORT + (seed % (1 << 30)) as u32;
        Stack {
            cid,
            config,
            connections: Vec::new(),
            free: Vec::new(),
            by_ends: BTreeMap::new(),
            listeners: BTreeMap::new(),
            listeners_made: 0,
            replies: VecDeque::new(),
            queued: VecDeque::new(),
            queued_bytes: 0,
            without_work: Vec::new(),
            deadlines: BTreeSet::new(),
            next_port,
            connections_made: 0,
            now: Instant(0),
            counters: Counters::default(),
        }
    }

    /// Our context identifier.
    pub fn cid(&self) -> u64 {
        self.cid
    }

    /// What happened since the start.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Connections that exist, those included that end by themselves.
    pub fn connection_count(&self) -> usize {
        self.connections.len() - self.free.len()
    }

    /// Opens `port` for connections of this kind, or a free one if it is 0; returns which.
    pub fn listen(&mut self, port: u32, kind: Type) -> Result<(ListenerId, u32), NetError> {
        self.check_kind(kind)?;
        let port = if port == 0 { self.free_port() } else { port };
        if self.listeners.contains_key(&port) {
            return Err(NetError::PortInUse(Port::Vsock(port)));
        }
        self.listeners_made += 1;
        let id = ListenerId(self.listeners_made);
        self.listeners.insert(port, Listener { id, kind, backlog: VecDeque::new(), waker: None });
        Ok((id, port))
    }

    fn check_kind(&self, kind: Type) -> Result<(), NetError> {
        match kind {
            Type::Message if !self.config.has_messages => Err(NetError::NoMessages),
            _ => Ok(()),
        }
    }

    /// Closes a port. What was not accepted is reset.
    pub fn close_listener(&mut self, id: ListenerId) {
        let port = self.listeners.iter().find(|(_, listener)| listener.id == id).map(|(port, _)| *port);
        let Some(listener) = port.and_then(|port| self.listeners.remove(&port)) else { return };
        for id in listener.backlog {
            self.get(id).owner = Owner::Unheld;
            self.reset(id, End::Reset);
        }
    }

    /// The next connection of a port and its other end.
    pub fn poll_accept(&mut self, id: ListenerId, waker: &Waker) -> Poll<(ConnectionId, Ends)> {
        let Some(listener) = self.listeners.values_mut().find(|listener| listener.id == id) else {
            return Poll::Pending;
        };
        let Some(connection) = listener.backlog.pop_front() else {
            listener.waker = Some(waker.clone());
            return Poll::Pending;
        };
        let state = self.get(connection);
        state.owner = Owner::Service;
        Poll::Ready((connection, state.ends))
    }

    /// Starts to open a connection; [`Stack::poll_connected`] returns how it went.
    pub fn connect(
        &mut self,
        now: Instant,
        peer_cid: u64,
        peer_port: u32,
        kind: Type,
    ) -> Result<ConnectionId, NetError> {
        self.now = now;
        self.check_kind(kind)?;
        if self.by_ends.len() >= self.config.connections_max {
            return Err(NetError::TooMany);
        }
        let ends = Ends { local_port: self.free_port(), peer_cid, peer_port };
        let until = now + self.config.connect_timeout;
        let id = self.insert(Connection::new(ends, kind, State::Connecting(until), Owner::Service));
        self.deadlines.insert((until, id));
        self.get(id).control.request = true;
        self.queue(id);
        Ok(id)
    }

    /// The number of a connection in the trace.
    pub fn number(&mut self, id: ConnectionId) -> u32 {
        self.get(id).number
    }

    /// Whether a connection that we open is open.
    pub fn poll_connected(&mut self, id: ConnectionId, waker: &Waker) -> Poll<Result<(), NetError>> {
        let connection = self.get(id);
        match connection.state {
            State::Connecting(_) => {
                connection.writer = Some(waker.clone());
                Poll::Pending
            }
            State::Ended(end) => Poll::Ready(Err(error(end))),
            State::Open | State::Closing(_) => Poll::Ready(Ok(())),
        }
    }

    /// Reads into `into`; 0 after the peer's end.
    pub fn poll_read(&mut self, id: ConnectionId, into: &mut [u8], waker: &Waker) -> Poll<Result<usize, NetError>> {
        if into.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let count = self.get(id).received.read(into);
        if count == 0 {
            return self.poll_end(id, waker).map_ok(|()| 0);
        }
        self.note_read(id, count);
        Poll::Ready(Ok(count))
    }

    /// Reads the next piece that was received, without a copy if it is large; an empty one after the peer's end.
    pub fn poll_read_buf(&mut self, id: ConnectionId, waker: &Waker) -> Poll<Result<Buf, NetError>> {
        let no_memory = |_| NetError::TooMany;
        match self.get(id).received.read_buf() {
            None => match self.poll_end(id, waker) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Ok(())) => Poll::Ready(Buf::zeroed(0).map_err(no_memory)),
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            },
            Some(Err(error)) => Poll::Ready(Err(no_memory(error))),
            Some(Ok(buf)) => {
                self.note_read(id, buf.len());
                Poll::Ready(Ok(buf))
            }
        }
    }

    /// Receives a message, without a copy if one packet was all of it and not small; `None` after the peer's end.
    pub fn poll_receive(&mut self, id: ConnectionId, waker: &Waker) -> Poll<Result<Option<Buf>, NetError>> {
        let connection = self.get(id);
        let Some(bytes) = connection.whole.front().map(|bytes| *bytes as usize) else {
            let is_cut = connection.part_bytes > 0;
            return self.poll_end(id, waker).map(|end| match end {
                // The peer has ended within a message.
                Ok(()) if is_cut => Err(NetError::Reset),
                end => end.map(|()| None),
            });
        };
        let Ok(message) = connection.received.take(bytes) else { return Poll::Ready(Err(NetError::TooMany)) };
        connection.whole.pop_front();
        self.note_read(id, bytes);
        Poll::Ready(Ok(Some(message)))
    }

    /// Whether a connection from which there is nothing to read has ended.
    fn poll_end(&mut self, id: ConnectionId, waker: &Waker) -> Poll<Result<(), NetError>> {
        let connection = self.get(id);
        match connection.state {
            State::Ended(End::Closed) => Poll::Ready(Ok(())),
            _ if connection.peer_sends_no_more => Poll::Ready(Ok(())),
            State::Ended(end) => Poll::Ready(Err(error(end))),
            _ => {
                connection.reader = Some(waker.clone());
                Poll::Pending
            }
        }
    }

    fn note_read(&mut self, id: ConnectionId, bytes: usize) {
        let connection = self.connections[id.0].as_mut().expect("the connection exists");
        connection.note_read(bytes, &self.config);
        self.queue(id);
        self.finish(id);
    }

    /// Takes the start of `data` for sending, a packet at most, and returns how much. Pending while the peer gives no credit.
    pub fn poll_write(&mut self, id: ConnectionId, data: &[u8], waker: &Waker) -> Poll<Result<usize, NetError>> {
        if data.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let space = match self.poll_space(id, waker) {
            Poll::Ready(Ok(space)) => space.min(data.len()),
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => return Poll::Pending,
        };
        let Ok(buf) = Buf::copy_of(&data[..space]) else { return Poll::Ready(Err(NetError::TooMany)) };
        self.take(id, Unsent { data: buf, ends_message: false });
        Poll::Ready(Ok(space))
    }

    /// Takes the start of `data` for sending, without a copy, and returns how much. It must not change until it was sent.
    pub fn poll_write_buf(&mut self, id: ConnectionId, data: &Buf, waker: &Waker) -> Poll<Result<usize, NetError>> {
        if data.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.poll_space(id, waker).map_ok(|space| {
            let count = space.min(data.len());
            self.take(id, Unsent { data: data.slice(0..count), ends_message: false });
            count
        })
    }

    /// Takes a whole message for sending. Pending while the peer gives no credit for all of it.
    pub fn poll_send(&mut self, id: ConnectionId, message: &[u8], waker: &Waker) -> Poll<Result<(), NetError>> {
        let is_full = self.queued_bytes >= self.config.queued_bytes_max;
        let packet_bytes_max = self.config.packet_bytes_max;
        self.check_writable(id)?;
        let connection = self.get(id);
        let (bytes, bytes_max) = (message.len(), connection.peer_window as usize);
        if bytes > bytes_max {
            return Poll::Ready(Err(NetError::TooLong { bytes, bytes_max }));
        }
        if is_full || bytes > connection.credit_bytes() as usize {
            connection.writer = Some(waker.clone());
            if is_full {
                self.without_work.push(id);
            }
            // No request for credit: its receiver grants it with each message that was read.
            return Poll::Pending;
        }
        let parts: Result<Vec<Buf>, _> = match message {
            [] => Buf::zeroed(0).map(|empty| [empty].into()),
            _ => message.chunks(packet_bytes_max).map(Buf::copy_of).collect(),
        };
        let Ok(parts) = parts else { return Poll::Ready(Err(NetError::TooMany)) };
        let last = parts.len() - 1;
        for (index, data) in parts.into_iter().enumerate() {
            self.take(id, Unsent { data, ends_message: index == last });
        }
        Poll::Ready(Ok(()))
    }

    fn check_writable(&mut self, id: ConnectionId) -> Result<(), NetError> {
        let connection = self.get(id);
        match connection.state {
            State::Ended(End::TimedOut) => Err(NetError::TimedOut),
            State::Open if !connection.closed && !connection.peer_receives_no_more => Ok(()),
            _ => Err(NetError::Reset),
        }
    }

    /// How long a packet may be that is written now.
    fn poll_space(&mut self, id: ConnectionId, waker: &Waker) -> Poll<Result<usize, NetError>> {
        let is_full = self.queued_bytes >= self.config.queued_bytes_max;
        let packet_bytes_max = self.config.packet_bytes_max;
        self.check_writable(id)?;
        let connection = self.get(id);
        let credit_bytes = connection.credit_bytes() as usize;
        if credit_bytes > 0 && !is_full {
            return Poll::Ready(Ok(credit_bytes.min(packet_bytes_max)));
        }
        connection.writer = Some(waker.clone());
        if credit_bytes == 0 {
            connection.control.credit_request = true;
            self.queue(id);
        } else {
            self.without_work.push(id);
        }
        Poll::Pending
    }

    fn take(&mut self, id: ConnectionId, unsent: Unsent) {
        let bytes = unsent.data.len();
        let connection = self.get(id);
        connection.note_taken(bytes);
        connection.unsent.push_back(unsent);
        connection.unsent_bytes += bytes;
        self.queued_bytes += bytes;
        self.queue(id);
    }

    /// Ends our half of a connection, after what was written. The other half stays readable.
    pub fn close(&mut self, now: Instant, id: ConnectionId) -> Result<(), NetError> {
        self.now = now;
        let connection = self.get(id);
        match connection.state {
            State::Ended(End::Closed) => return Ok(()),
            State::Ended(end) => return Err(error(end)),
            _ => {}
        }
        connection.closed = true;
        connection.control.shutdown |= SHUTDOWN_SEND;
        self.queue(id);
        self.finish(id);
        Ok(())
    }

    /// Resets a connection, which its service still holds.
    pub fn abort(&mut self, id: ConnectionId) {
        if !matches!(self.get(id).state, State::Ended(_)) {
            self.reset(id, End::Reset);
        }
    }

    /// The service releases a connection: one that it has closed is ended in order, any other is reset.
    pub fn release(&mut self, now: Instant, id: ConnectionId) {
        self.now = now;
        let until = now + self.config.close_timeout;
        let connection = self.get(id);
        connection.owner = Owner::Unheld;
        connection.reader = None;
        connection.writer = None;
        match connection.state {
            State::Ended(_) => self.remove(id),
            _ if !connection.closed => self.reset(id, End::Reset),
            _ => {
                connection.control.shutdown |= SHUTDOWN_BOTH;
                connection.state = State::Closing(until);
                self.deadlines.insert((until, id));
                self.queue(id);
                self.finish(id);
            }
        }
    }

    /// Takes a packet that was received in the first `bytes` bytes of `buffer`, without its header. Returns the buffer if it can be
    /// used again at once.
    pub fn receive(&mut self, now: Instant, header: Header, buffer: Buf, bytes: usize) -> Option<Buf> {
        self.now = now;
        if header.destination_cid != self.cid || bytes > buffer.len() {
            self.counters.malformed += 1;
            return Some(buffer);
        }
        let ends = header.ends_of_receiver();
        let id = self.by_ends.get(&ends).copied();
        let is_whole = header.data_bytes as usize == bytes && (bytes == 0 || header.operation == Some(Operation::Data));
        match (id, header.operation) {
            (None, Some(Operation::Reset)) => {}
            (None, Some(Operation::Request)) if is_whole => self.admit(ends, &header),
            (None, _) => self.refuse(&header),
            (Some(id), _) if !is_whole || header.kind != Some(self.get(id).kind) => {
                self.counters.malformed += 1;
                self.reset(id, End::Reset);
            }
            (Some(id), Some(operation)) => return self.receive_for(id, operation, &header, buffer, bytes),
            (Some(id), None) => self.violate(id),
        }
        Some(buffer)
    }

    fn admit(&mut self, ends: Ends, header: &Header) {
        let has_space = self.by_ends.len() < self.config.connections_max;
        let backlog_max = self.config.backlog_max;
        let listener = self.listeners.get_mut(&ends.local_port);
        let admits = |listener: &&mut Listener| {
            has_space && listener.backlog.len() < backlog_max && header.kind == Some(listener.kind)
        };
        let Some(listener) = listener.filter(admits) else { return self.refuse(header) };
        let (owner, kind) = (Owner::Listener(listener.id), listener.kind);
        let id = self.insert(Connection::new(ends, kind, State::Open, owner));
        let connection = self.get(id);
        connection.take_credit(header.window_bytes, header.consumed);
        connection.control.response = true;
        self.queue(id);
        self.counters.opened += 1;
        if let Some(listener) = self.listeners.get_mut(&ends.local_port) {
            listener.backlog.push_back(id);
            if let Some(waker) = listener.waker.take() {
                waker.wake();
            }
        }
    }

    /// Answers a packet of no connection.
    fn refuse(&mut self, header: &Header) {
        self.counters.refused += 1;
        self.reply_reset(header.ends_of_receiver(), header.kind.unwrap_or(Type::Stream));
    }

    fn reply_reset(&mut self, ends: Ends, kind: Type) {
        if self.replies.len() < REPLIES_MAX {
            self.replies.push_back(self.header(ends, kind, Operation::Reset));
        }
    }

    fn receive_for(
        &mut self,
        id: ConnectionId,
        operation: Operation,
        header: &Header,
        buffer: Buf,
        bytes: usize,
    ) -> Option<Buf> {
        let connection = self.connections[id.0].as_mut().expect("the connection exists");
        if operation == Operation::Reset {
            // Its credit may be all zeros.
            self.end_by_peer(id);
            return Some(buffer);
        }
        let is_connecting = matches!(connection.state, State::Connecting(_));
        let is_answer = operation == Operation::Response;
        if is_connecting != is_answer || !connection.take_credit(header.window_bytes, header.consumed) {
            self.violate(id);
            return Some(buffer);
        }
        match operation {
            Operation::Response => {
                if let State::Connecting(until) = connection.state {
                    self.deadlines.remove(&(until, id));
                }
                connection.state = State::Open;
                connection.wake_writer();
                self.counters.opened += 1;
            }
            Operation::Shutdown => {
                connection.peer_receives_no_more |= header.flags & SHUTDOWN_RECEIVE != 0;
                connection.peer_sends_no_more |= header.flags & SHUTDOWN_SEND != 0;
                connection.wake_reader();
                connection.wake_writer();
                self.finish(id);
            }
            Operation::CreditUpdate => {
                // A peer may have ignored a shutdown while it had data that it had not consumed (vhost-device-vsock 0.3.0 does).
                if matches!(connection.state, State::Closing(_)) && connection.is_all_consumed() {
                    connection.control.shutdown |= SHUTDOWN_BOTH;
                    self.queue(id);
                }
            }
            Operation::CreditRequest => {
                connection.control.credit_answer = true;
                self.queue(id);
            }
            Operation::Request | Operation::Reset => self.violate(id),
            Operation::Data
                if connection.peer_sends_no_more || bytes as u32 > connection.granted_bytes(&self.config) =>
            {
                self.violate(id);
            }
            // The service has released it; what is still in flight is dropped.
            Operation::Data if connection.owner == Owner::Unheld => {}
            Operation::Data => match connection.received.push(buffer, bytes) {
                Ok(buffer) => {
                    connection.note_received(bytes as u32);
                    let ends_message = header.flags & END_OF_MESSAGE != 0;
                    if connection.kind == Type::Message
                        && !connection.note_part(bytes as u32, ends_message, &self.config)
                    {
                        self.violate(id);
                    }
                    return buffer;
                }
                Err(_) => {
                    self.reset(id, End::Reset);
                    return None;
                }
            },
        }
        Some(buffer)
    }

    fn end_by_peer(&mut self, id: ConnectionId) {
        let connection = self.get(id);
        // After both have closed their halves a reset is the regular end.
        let is_regular = connection.peer_sends_no_more && (connection.closed || connection.peer_receives_no_more)
            || matches!(connection.state, State::Closing(_));
        if !is_regular {
            self.counters.reset_by_peer += 1;
        }
        self.end(id, if is_regular { End::Closed } else { End::Reset });
    }

    /// The peer has broken a rule.
    fn violate(&mut self, id: ConnectionId) {
        self.counters.violations += 1;
        self.reset(id, End::Reset);
    }

    /// Ends a connection with a reset to the peer.
    fn reset(&mut self, id: ConnectionId, end: End) {
        let Connection { ends, kind, .. } = *self.get(id);
        self.reply_reset(ends, kind);
        self.end(id, end);
    }

    /// Ends a connection that neither side uses any more. What was written to a peer that receives no more is dropped.
    fn finish(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections[id.0].as_mut() else { return };
        if matches!(connection.state, State::Ended(_)) || !connection.peer_sends_no_more {
            return;
        }
        let has_sent = connection.unsent.is_empty() && connection.control.shutdown == 0;
        let writes_no_more = connection.peer_receives_no_more || connection.closed && has_sent;
        let reads_no_more = connection.is_read() || connection.owner == Owner::Unheld;
        if writes_no_more && reads_no_more {
            self.reset(id, End::Closed);
        }
    }

    fn end(&mut self, id: ConnectionId, end: End) {
        let connection = self.connections[id.0].as_mut().expect("the connection exists");
        let ends = connection.ends;
        self.queued_bytes -= connection.unsent_bytes;
        if let State::Connecting(until) | State::Closing(until) = connection.state {
            self.deadlines.remove(&(until, id));
        }
        connection.end(end);
        connection.trace(Presence::Ends);
        let owner = connection.owner;
        self.by_ends.remove(&ends);
        match owner {
            Owner::Service => {}
            Owner::Unheld => self.remove(id),
            // It can be accepted while there is something to read.
            Owner::Listener(_) if !self.get(id).is_read() => {}
            Owner::Listener(_) => {
                if let Some(listener) = self.listeners.get_mut(&ends.local_port) {
                    listener.backlog.retain(|waiting| *waiting != id);
                }
                self.remove(id);
            }
        }
        self.feed_idle();
    }

    /// The next packet to send, one of each connection in turn.
    pub fn next_packet(&mut self) -> Option<Packet> {
        if let Some(header) = self.replies.pop_front() {
            return Some(Packet { header, data: None });
        }
        while let Some(id) = self.queued.pop_front() {
            let Some(connection) = self.connections[id.0].as_mut() else { continue };
            connection.is_queued = false;
            let packet = self.packet_of(id);
            if packet.is_some() {
                self.queue(id);
                self.finish(id);
                return packet;
            }
        }
        None
    }

    fn packet_of(&mut self, id: ConnectionId) -> Option<Packet> {
        let connection = self.connections[id.0].as_mut().expect("the connection exists");
        let Connection { ends, kind, .. } = *connection;
        // Without credit the answer waits until the service has read: the peer would only request again.
        let answers = connection.control.credit_answer && connection.granted_bytes(&self.config) > 0;
        let control = &mut connection.control;
        let (operation, flags) = if core::mem::take(&mut control.request) {
            (Operation::Request, 0)
        } else if core::mem::take(&mut control.response) {
            (Operation::Response, 0)
        } else if let Some(Unsent { data, ends_message }) = connection.unsent.pop_front() {
            connection.unsent_bytes -= data.len();
            self.queued_bytes -= data.len();
            let mut header = self.header(ends, kind, Operation::Data);
            header.flags = if ends_message { END_OF_MESSAGE } else { 0 };
            header.data_bytes = data.len() as u32;
            header.consumed = self.get(id).grant();
            self.feed_idle();
            return Some(Packet { header, data: Some(data) });
        } else if core::mem::take(&mut control.credit_request) {
            (Operation::CreditRequest, 0)
        } else if control.credit_update || answers {
            control.credit_answer = false;
            (Operation::CreditUpdate, 0)
        } else if control.shutdown != 0 {
            (Operation::Shutdown, core::mem::take(&mut control.shutdown))
        } else {
            return None;
        };
        let consumed = connection.grant();
        let header = Header { flags, consumed, ..self.header(ends, kind, operation) };
        Some(Packet { header, data: None })
    }

    fn feed_idle(&mut self) {
        if self.queued_bytes < self.config.queued_bytes_max {
            for id in core::mem::take(&mut self.without_work) {
                if let Some(connection) = &mut self.connections[id.0] {
                    connection.wake_writer();
                }
            }
        }
    }

    /// Ends what has waited for its peer too long.
    pub fn poll(&mut self, now: Instant) {
        self.now = now;
        while let Some(&(until, id)) = self.deadlines.first() {
            if until > now {
                return;
            }
            self.deadlines.pop_first();
            self.counters.timed_out += 1;
            self.reset(id, End::TimedOut);
        }
    }

    /// When [`Stack::poll`] has something to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(until, _)| *until)
    }

    /// Whether [`Stack::next_packet`] may have one.
    pub fn has_packets(&self) -> bool {
        !self.replies.is_empty() || !self.queued.is_empty()
    }

    /// Whether a packet waits for the device, or a connection that the service has closed for its peer.
    pub fn is_delivering(&self) -> bool {
        let is_closing = |connection: &Connection| matches!(connection.state, State::Closing(_));
        self.has_packets() || self.connections.iter().flatten().any(is_closing)
    }

    /// Reports the open connections to the trace.
    pub fn announce(&self) {
        for connection in self.by_ends.values().filter_map(|id| self.connections[id.0].as_ref()) {
            connection.trace(Presence::WasThere);
        }
    }

    /// The device has forgotten all connections, because the VM was moved, and has perhaps another context identifier (virtio 1.2,
    /// section 5.10.6.7). Ports stay open.
    pub fn reset_all(&mut self, cid: u64) {
        self.cid = cid;
        let ids: Vec<ConnectionId> = self.by_ends.values().copied().collect();
        ids.into_iter().for_each(|id| self.end(id, End::Reset));
        self.replies.clear();
    }

    fn header(&self, ends: Ends, kind: Type, operation: Operation) -> Header {
        Header {
            source_cid: self.cid,
            destination_cid: ends.peer_cid,
            source_port: ends.local_port,
            destination_port: ends.peer_port,
            data_bytes: 0,
            kind: Some(kind),
            operation: Some(operation),
            flags: 0,
            window_bytes: self.config.buffer_bytes,
            consumed: 0,
        }
    }

    fn queue(&mut self, id: ConnectionId) {
        let connection = self.connections[id.0].as_mut().expect("the connection exists");
        let has_something = connection.control.is_any() || !connection.unsent.is_empty();
        if has_something && !connection.is_queued && !matches!(connection.state, State::Ended(_)) {
            connection.is_queued = true;
            self.queued.push_back(id);
        }
    }

    fn insert(&mut self, mut connection: Connection) -> ConnectionId {
        let ends = connection.ends;
        connection.number = FIRST_NUMBER | self.connections_made;
        self.connections_made = self.connections_made.wrapping_add(1) & !FIRST_NUMBER;
        connection.trace(Presence::Begins);
        let index = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        self.connections[index] = Some(connection);
        self.by_ends.insert(ends, ConnectionId(index));
        ConnectionId(index)
    }

    /// Forgets a connection that has ended.
    fn remove(&mut self, id: ConnectionId) {
        self.connections[id.0] = None;
        self.free.push(id.0);
        self.without_work.retain(|without_work| *without_work != id);
        self.queued.retain(|queued| *queued != id);
    }

    fn get(&mut self, id: ConnectionId) -> &mut Connection {
        self.connections[id.0].as_mut().expect("the connection exists")
    }

    /// A port that neither a listener nor a connection of ours has.
    fn free_port(&mut self) -> u32 {
        loop {
            let port = self.next_port;
            self.next_port = port.checked_add(1).filter(|port| *port < u32::MAX).unwrap_or(FIRST_FREE_PORT);
            let is_used = self.listeners.contains_key(&port) || self.by_ends.keys().any(|ends| ends.local_port == port);
            if !is_used {
                return port;
            }
        }
    }
}

fn error(end: End) -> NetError {
    match end {
        End::TimedOut => NetError::TimedOut,
        End::Closed | End::Reset => NetError::Reset,
    }
}
