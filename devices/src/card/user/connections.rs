//! The TCP connections of a user network: each is one of the guest, whose other end is `glass_lib_tcp`, and a socket of the host. What arrives at one is
//! sent by the other.
//!
//! A connection that the guest opens is answered when the host's socket is connected, so a guest sees what a process of the host would: a port without a
//! listener refuses.

use super::host::{self, Host, Moved, Subject};
use super::packet::Ends;
use glass_api::Instant;
use glass_lib_tcp::congestion::Kind;
use glass_lib_tcp::wire::Flags;
use glass_lib_tcp::{Connection, End, HalfOpen, Header, Reply, Segment, Settings, State, Transmit, initial_number};
use rustix::net::SocketType;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Connections at a time. Further ones of the host wait in the queues of its sockets, those of the guest are refused.
pub(super) const CONNECTIONS_MAX: usize = 1024;
/// Bytes on their way in each direction of a connection, while there are few, and of those that open when there are many.
const BUFFER_BYTES: usize = 1 << 20;
const BUFFER_BYTES_OF_MANY: usize = 64 << 10;
const FEW: usize = 32;
/// What is received at once from a socket that has sent little so far: the buffer does not become longer than it has to.
const LITTLE_BYTES: usize = 16 << 10;
/// What all buffers together have at most.
pub(super) const BUFFERS_BYTES_MAX: u64 = 2 * (FEW * BUFFER_BYTES + CONNECTIONS_MAX * BUFFER_BYTES_OF_MANY) as u64;
/// Payload of a segment: what an Ethernet frame has room for, without the headers of IP and TCP.
pub(super) const SEGMENT_BYTES: u16 = 1460;
/// A guest may still be booting when a client of the host connects.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);
/// A guest that is silent for so long is gone. It may be stopped by its owner or a debugger for a while.
const GUEST_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
const ACK_DELAY: Duration = Duration::from_millis(20);
/// Answers to a SYN until the guest is taken to be gone.
const ANSWERS_MAX: u32 = 5;
/// Headers that wait for the guest, without a connection that remembers them; of more, the oldest are lost.
const REFUSALS_MAX: usize = 256;

/// Where a connection is.
enum Stage {
    /// The guest has sent this SYN, and the host's socket is being connected.
    Connecting(Header),
    /// It is, and the guest has not yet acknowledged our answer.
    Answered(HalfOpen),
    /// The guest's end is open, or was.
    Open(Box<Connection>),
}

/// A connection.
struct Flow {
    ends: Ends,
    stage: Stage,
    /// `None` when it is closed in both directions.
    socket: Option<OwnedFd>,
    /// As far as is known, the socket has something to receive, or room to send.
    is_readable: bool,
    is_writable: bool,
    /// The guest has closed its half, and so has the socket.
    is_shut: bool,
    /// The socket had more to receive than little.
    sends_much: bool,
    is_ready: bool,
    deadline: Option<Instant>,
}

/// A segment for the guest.
pub(super) struct Outgoing<'c> {
    pub ends: Ends,
    pub header: Header,
    pub payload: [&'c [u8]; 2],
    /// It is to be cut into segments with so much payload.
    pub cut_bytes: Option<u16>,
}

impl Outgoing<'_> {
    fn plain(ends: Ends, header: Header) -> Self {
        Outgoing { ends, header, payload: [&[], &[]], cut_bytes: None }
    }
}

/// All connections.
pub(super) struct Connections {
    flows: Vec<Option<Flow>>,
    /// Free places.
    free: Vec<usize>,
    by_ends: HashMap<Ends, usize>,
    /// Those that may have something to do.
    ready: VecDeque<usize>,
    deadlines: BTreeSet<(Instant, usize)>,
    /// Segments that belong to no connection.
    refusals: VecDeque<(Ends, Header)>,
    /// The key of initial sequence numbers.
    secret: RandomState,
}

impl Connections {
    pub fn new() -> Connections {
        Connections {
            flows: Vec::new(),
            free: Vec::new(),
            by_ends: HashMap::new(),
            ready: VecDeque::new(),
            deadlines: BTreeSet::new(),
            refusals: VecDeque::new(),
            secret: RandomState::new(),
        }
    }

    pub fn count(&self) -> usize {
        self.by_ends.len()
    }

    /// Memory of the buffers of a connection.
    #[cfg(test)]
    pub fn allocated(&mut self, ends: &Ends) -> usize {
        let flow = self.by_ends.get(ends).and_then(|id| self.flows[*id].as_mut());
        match flow.map(|flow| &mut flow.stage) {
            Some(Stage::Open(connection)) => connection.allocated(),
            _ => 0,
        }
    }

    /// Whether one more can be opened.
    pub fn has_capacity(&self) -> bool {
        self.count() < CONNECTIONS_MAX
    }

    pub fn contains(&self, ends: &Ends) -> bool {
        self.by_ends.contains_key(ends)
    }

    /// When something is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    fn settings(&self, ends: &Ends) -> Settings {
        let bytes = if self.count() < FEW { BUFFER_BYTES } else { BUFFER_BYTES_OF_MANY };
        Settings {
            receive_bytes: bytes,
            send_bytes: bytes,
            buffer_bytes_max: 0,
            segment_bytes: SEGMENT_BYTES,
            // The guest's memory is at the other end of it.
            congestion: Kind::None,
            open_timeout: OPEN_TIMEOUT,
            peer_timeout: GUEST_TIMEOUT,
            ack_delay: ACK_DELAY,
            seed: self.secret.hash_one(ends),
        }
    }

    fn initial(&self, now: Instant, ends: &Ends) -> u32 {
        let remote = [&ends.remote.ip().octets()[..], &ends.remote.port().to_be_bytes()].concat();
        let guest = [&ends.guest.ip().octets()[..], &ends.guest.port().to_be_bytes()].concat();
        initial_number(now, self.secret.build_hasher(), &[remote, guest].concat())
    }

    /// Adds a connection, which has a socket that becomes ready by events of `host`. `None` if the host cannot.
    fn add(&mut self, host: &Host, ends: Ends, stage: Stage, socket: OwnedFd) -> Option<usize> {
        let id = self.free.pop().unwrap_or(self.flows.len());
        if host.watch(&socket, Subject::Connection(id)).is_err() {
            self.free.extend((id < self.flows.len()).then_some(id));
            return None;
        }
        let flow = Flow {
            ends,
            stage,
            socket: Some(socket),
            is_readable: false,
            is_writable: false,
            is_shut: false,
            sends_much: false,
            is_ready: false,
            deadline: None,
        };
        match self.flows.get_mut(id) {
            Some(place) => *place = Some(flow),
            None => self.flows.push(Some(flow)),
        }
        self.by_ends.insert(ends, id);
        Some(id)
    }

    fn remove(&mut self, id: usize) {
        let Some(flow) = self.flows.get_mut(id).and_then(Option::take) else { return };
        self.by_ends.remove(&flow.ends);
        if let Some(deadline) = flow.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        self.free.push(id);
    }

    /// It may have something to do.
    fn wake(&mut self, id: usize) {
        if let Some(Some(flow)) = self.flows.get_mut(id)
            && !flow.is_ready
        {
            flow.is_ready = true;
            self.ready.push_back(id);
        }
    }

    /// A connection of the host was accepted, from `ends.remote` as the guest sees it.
    pub fn accept(&mut self, now: Instant, host: &Host, ends: Ends, socket: OwnedFd) {
        let connection = Connection::connect(now, self.initial(now, &ends), self.settings(&ends));
        if let Some(id) = self.add(host, ends, Stage::Open(Box::new(connection)), socket) {
            self.wake(id);
        }
    }

    /// A socket became ready.
    pub fn became(&mut self, id: usize, is_readable: bool, is_writable: bool) {
        if let Some(Some(flow)) = self.flows.get_mut(id) {
            flow.is_readable |= is_readable;
            flow.is_writable |= is_writable;
            self.wake(id);
        }
    }

    /// Those that are due may have something to do.
    pub fn expire(&mut self, now: Instant) {
        while let Some(&(at, id)) = self.deadlines.first()
            && at <= now
        {
            self.deadlines.pop_first();
            if let Some(Some(flow)) = self.flows.get_mut(id) {
                flow.deadline = None;
            }
            self.wake(id);
        }
    }

    /// A segment of the guest. `target`: where on this host its remote end is; `None` if it has none.
    pub fn receive(&mut self, now: Instant, host: &Host, ends: Ends, segment: &Segment, target: Option<SocketAddrV4>) {
        let flags = segment.header.flags;
        let opens = flags.has(Flags::SYN) && !flags.has(Flags::ACK) && !flags.has(Flags::RST);
        let mut found = self.by_ends.get(&ends).copied();
        if let Some(id) = found
            && opens
            && let Some(Some(Flow { stage: Stage::Open(connection), .. })) = self.flows.get(id)
            && connection.may_reopen(&segment.header)
        {
            self.remove(id);
            found = None;
        }
        match found {
            Some(id) => self.receive_for(now, id, segment),
            None if opens => {
                let socket = target.filter(|_| self.has_capacity());
                let socket = socket.and_then(|target| host::start_connecting(SocketType::STREAM, target).ok());
                let stage = Stage::Connecting(segment.header);
                if socket.and_then(|socket| self.add(host, ends, stage, socket)).is_none() {
                    self.refuse(ends, segment.refusal());
                }
            }
            None => self.refuse(ends, segment.refusal()),
        }
    }

    fn refuse(&mut self, ends: Ends, header: Option<Header>) {
        if self.refusals.len() == REFUSALS_MAX {
            self.refusals.pop_front();
        }
        self.refusals.extend(header.map(|header| (ends, header)));
    }

    fn receive_for(&mut self, now: Instant, id: usize, segment: &Segment) {
        let Some(Some(flow)) = self.flows.get_mut(id) else { return };
        let ends = flow.ends;
        match &mut flow.stage {
            Stage::Connecting(_) if segment.header.flags.has(Flags::RST) => return self.remove(id),
            // It is the SYN again.
            Stage::Connecting(_) => return,
            Stage::Answered(half) => match half.reply(segment) {
                Reply::Opens => {
                    let mut connection = half.open(now);
                    connection.receive(now, segment);
                    flow.stage = Stage::Open(Box::new(connection));
                }
                Reply::Resets => {
                    flow.reset();
                    return self.remove(id);
                }
                Reply::Repeats => {
                    let answer = half.answer(now);
                    return self.refuse(ends, Some(answer));
                }
                Reply::Refuse => return self.refuse(ends, segment.refusal()),
                Reply::Ignore => return,
            },
            Stage::Open(connection) => {
                connection.receive(now, segment);
                flow.send();
            }
        }
        self.wake(id);
    }

    /// The next segment for the guest; `None` if there is none until something happens. `frame_bytes`: see [`Connection::poll_transmit`].
    pub fn poll(&mut self, now: Instant, frame_bytes: usize) -> Option<Outgoing<'_>> {
        if let Some((ends, header)) = self.refusals.pop_front() {
            return Some(Outgoing::plain(ends, header));
        }
        while let Some(id) = self.ready.pop_front() {
            let Some(flow) = self.flows[id].as_mut() else { continue };
            flow.is_ready = false;
            match flow.poll(now, frame_bytes) {
                Step::Send(transmit) => {
                    self.wake(id);
                    return self.flows[id].as_ref().map(|flow| flow.outgoing(&transmit));
                }
                Step::Connected(syn) => {
                    let ends = flow.ends;
                    let (initial, settings) = (self.initial(now, &ends), self.settings(&ends));
                    let mut half = HalfOpen::new(now, &syn, initial, settings);
                    let header = half.answer(now);
                    self.set_stage(id, Stage::Answered(half));
                    return Some(Outgoing::plain(ends, header));
                }
                Step::Answer(header) => {
                    let ends = flow.ends;
                    self.wake(id);
                    return Some(Outgoing::plain(ends, header));
                }
                Step::Wait(deadline) => self.set_deadline(id, deadline),
                Step::End(header) => {
                    let ends = flow.ends;
                    self.remove(id);
                    if let Some(header) = header {
                        return Some(Outgoing::plain(ends, header));
                    }
                }
            }
        }
        None
    }

    fn set_stage(&mut self, id: usize, stage: Stage) {
        if let Some(Some(flow)) = self.flows.get_mut(id) {
            flow.stage = stage;
        }
        // It has a deadline now.
        self.wake(id);
    }

    fn set_deadline(&mut self, id: usize, deadline: Option<Instant>) {
        let Some(Some(flow)) = self.flows.get_mut(id) else { return };
        if flow.deadline == deadline {
            return;
        }
        if let Some(before) = flow.deadline {
            self.deadlines.remove(&(before, id));
        }
        flow.deadline = deadline;
        self.deadlines.extend(deadline.map(|at| (at, id)));
    }
}

/// What a connection does next.
enum Step {
    Send(Transmit),
    /// The host's socket is connected: this SYN of the guest is to be answered.
    Connected(Header),
    /// A header alone.
    Answer(Header),
    Wait(Option<Instant>),
    /// There is no connection any more; the guest's end may have to be refused.
    End(Option<Header>),
}

impl Flow {
    /// The other end of the socket gets a reset.
    fn reset(&mut self) {
        if let Some(socket) = self.socket.take() {
            host::reset_at_close(&socket);
        }
    }

    fn outgoing(&self, transmit: &Transmit) -> Outgoing<'_> {
        let payload = match &self.stage {
            Stage::Open(connection) => connection.payload(transmit),
            Stage::Connecting(_) | Stage::Answered(_) => [&[][..], &[]],
        };
        Outgoing { ends: self.ends, header: transmit.header, payload, cut_bytes: transmit.cut_bytes }
    }

    fn poll(&mut self, now: Instant, frame_bytes: usize) -> Step {
        match &mut self.stage {
            Stage::Connecting(syn) => {
                if !self.is_writable {
                    return Step::Wait(None);
                }
                let syn = *syn;
                if !self.socket.as_ref().is_some_and(host::is_connected) {
                    let segment = Segment { source_port: 0, destination_port: 0, header: syn, payload: &[] };
                    return Step::End(segment.refusal());
                }
                Step::Connected(syn)
            }
            Stage::Answered(half) => match half.resend_at() <= now {
                true if half.answers() >= ANSWERS_MAX => {
                    self.reset();
                    Step::End(None)
                }
                true => Step::Answer(half.answer(now)),
                false => Step::Wait(Some(half.resend_at())),
            },
            Stage::Open(_) => {
                self.send();
                self.receive();
                self.transmit(now, frame_bytes)
            }
        }
    }

    fn transmit(&mut self, now: Instant, frame_bytes: usize) -> Step {
        let Stage::Open(connection) = &mut self.stage else { return Step::Wait(None) };
        if let Some(transmit) = connection.poll_transmit(now, frame_bytes) {
            return Step::Send(transmit);
        }
        let (state, deadline) = (connection.state(), connection.next_deadline(now));
        if !matches!(state, State::Closed | State::TimeWait) {
            return Step::Wait(deadline);
        }
        if state == State::Closed && connection.end() != Some(End::Finished) {
            self.reset();
            return Step::End(None);
        }
        // The guest's end is closed. What it has sent before may still wait for room in the socket. There is no TIME-WAIT: the last acknowledgement is
        // in the guest's memory.
        self.send();
        if self.is_shut || self.socket.is_none() { Step::End(None) } else { Step::Wait(deadline) }
    }

    /// Sends what the guest has sent.
    fn send(&mut self) {
        let (Stage::Open(connection), Some(socket)) = (&mut self.stage, &self.socket) else { return };
        while connection.readable() > 0 && self.is_writable {
            let [first, _] = connection.received();
            match host::send_bytes(socket, first) {
                Moved::Bytes(count) => _ = connection.skip(count),
                Moved::Blocked => self.is_writable = false,
                Moved::End | Moved::Failed => {
                    connection.abort();
                    return self.reset();
                }
            }
        }
        if connection.readable() == 0 && connection.has_peer_closed() && !self.is_shut {
            host::shut(socket);
            self.is_shut = true;
        }
    }

    /// Receives what there is room for.
    fn receive(&mut self) {
        let (Stage::Open(connection), Some(socket)) = (&mut self.stage, &self.socket) else { return };
        while self.is_readable && connection.space() > 0 {
            let mut moved = None;
            let queued = connection.unacknowledged();
            self.sends_much |= queued >= LITTLE_BYTES;
            let most = if self.sends_much { connection.space() } else { LITTLE_BYTES - queued };
            let sends_much = &mut self.sends_much;
            connection.write_with(most, |piece| {
                let now = host::receive(socket, piece);
                moved = Some(now);
                *sends_much |= matches!(now, Moved::Bytes(count) if count == most);
                if let Moved::Bytes(count) = now { count } else { 0 }
            });
            // There is no memory now.
            let Some(moved) = moved else { return };
            match moved {
                Moved::Bytes(_) => {}
                Moved::Blocked => self.is_readable = false,
                Moved::End => {
                    self.is_readable = false;
                    connection.close();
                }
                Moved::Failed => {
                    connection.abort();
                    return self.reset();
                }
            }
        }
    }
}
