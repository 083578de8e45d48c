//! A network between two connections, with one seed and its own time.

pub mod script;

use glass_api::Instant;
use glass_lib_tcp::congestion::Kind;
use glass_lib_tcp::{Connection, HalfOpen, Reply, Segment, Settings, State, Transmit};
use std::collections::BinaryHeap;
use std::time::Duration;

/// Settings of most tests.
pub fn settings() -> Settings {
    Settings {
        receive_bytes: 64 << 10,
        buffer_bytes_max: 0,
        send_bytes: 64 << 10,
        segment_bytes: 1460,
        congestion: Kind::NewReno,
        open_timeout: Duration::from_secs(10),
        peer_timeout: Duration::from_secs(60),
        ack_delay: Duration::from_millis(40),
        seed: 0,
    }
}

/// A segment's bytes, or those of each segment into which a card cuts it.
pub fn bytes_of(connection: Option<&Connection>, transmit: &Transmit) -> Vec<Vec<u8>> {
    let [first, second] = connection.map_or([&[][..]; 2], |connection| connection.payload(transmit));
    let payload = [first, second].concat();
    let cut = transmit.cut_bytes.map_or(payload.len().max(1), usize::from);
    let count = payload.len().div_ceil(cut).max(1);
    let segment = |index: usize| {
        let mut header = transmit.header;
        header.seq = header.seq.wrapping_add((index * cut) as u32);
        if index + 1 < count {
            header.flags.0 &= !(1 | 8);
        }
        let mut bytes = vec![0; header.bytes()];
        header.write(1, 2, &mut bytes);
        bytes.extend_from_slice(&payload[(index * cut).min(payload.len())..((index + 1) * cut).min(payload.len())]);
        bytes
    };
    (0..count).map(segment).collect()
}

/// How bad the network is. Probabilities of a thousand.
#[derive(Debug, Clone, Copy)]
pub struct Path {
    pub delay: Duration,
    /// Delays differ by so much, so segments overtake each other.
    pub jitter: Duration,
    pub loss: u32,
    pub duplication: u32,
}

/// A slow piece of the network, before the delay, behind a queue that drops what does not fit.
#[derive(Debug, Clone, Copy)]
pub struct Bottleneck {
    bits_per_sec: u64,
    /// How long the last one in the queue may wait.
    queue: Duration,
    /// Of a thousand segments so many arrive when three more have had time to arrive.
    late: u32,
    free_at: Instant,
}

impl Bottleneck {
    pub fn new(bits_per_sec: u64, queue: Duration, late: u32) -> Bottleneck {
        Bottleneck { bits_per_sec, queue, late, free_at: Instant(0) }
    }

    /// When a segment has passed it; `None` if it is dropped.
    fn passes(&mut self, now: Instant, segment_bytes: usize, random: &mut fastrand::Rng) -> Option<Instant> {
        let start = self.free_at.max(now);
        // Ethernet and IP.
        let bits = (segment_bytes as u64 + 34) * 8;
        let time = Duration::from_nanos(bits * 1_000_000_000 / self.bits_per_sec);
        (start.since(now) <= self.queue).then(|| {
            self.free_at = start + time;
            let is_late = self.late > 0 && random.u32(..1000) < self.late;
            if is_late { self.free_at + time * 7 / 2 } else { self.free_at }
        })
    }
}

/// A segment on its way.
#[derive(Debug, PartialEq, Eq)]
struct Flying {
    at: Instant,
    order: u64,
    to: usize,
    bytes: Vec<u8>,
}

impl Ord for Flying {
    fn cmp(&self, other: &Flying) -> std::cmp::Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl PartialOrd for Flying {
    fn partial_cmp(&self, other: &Flying) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// One end: first a handshake, then a connection.
pub enum End {
    Listens(Settings),
    HalfOpen(HalfOpen),
    Open(Box<Connection>),
}

/// Two ends and what is on its way between them.
pub struct Net {
    pub now: Instant,
    pub ends: [End; 2],
    pub path: Path,
    pub random: fastrand::Rng,
    pub frame_bytes: usize,
    /// Only from the first end to the second one.
    pub bottleneck: Option<Bottleneck>,
    /// The first end is busy with other things for so long, and then receives all that has arrived at once.
    pub busy: Duration,
    /// Longer segments of the first end are dropped, and perhaps this is reported to it, with a length in bytes.
    pub longest: usize,
    pub reports: Option<u16>,
    /// The longest segment of the first end that was not dropped so.
    pub longest_passed: usize,
    flying: BinaryHeap<Flying>,
    sent: u64,
    /// When an end sent something last.
    pub sent_at: Instant,
}

impl Net {
    /// The first end opens a connection to the second one.
    pub fn new(seed: u64, path: Path, settings: [Settings; 2]) -> Net {
        let now = Instant(1_000_000_000);
        let mut random = fastrand::Rng::with_seed(seed);
        let connection = Connection::connect(now, random.u32(..), settings[0]);
        let ends = [End::Open(Box::new(connection)), End::Listens(settings[1])];
        let (flying, sent_at) = (BinaryHeap::new(), now);
        Net {
            now,
            ends,
            path,
            random,
            frame_bytes: 0,
            bottleneck: None,
            busy: Duration::ZERO,
            longest: usize::MAX,
            reports: None,
            longest_passed: 0,
            flying,
            sent: 0,
            sent_at,
        }
    }

    pub fn connection(&mut self, index: usize) -> Option<&mut Connection> {
        if let End::Open(connection) = &mut self.ends[index] { Some(connection) } else { None }
    }

    fn put(&mut self, to: usize, bytes: Vec<u8>) {
        self.sent_at = self.now;
        if to == 1 && bytes.len() > self.longest {
            let number = Segment::parse(&bytes).expect("it is whole").header.seq;
            let now = self.now;
            if let (Some(limit), Some(connection)) = (self.reports, self.connection(0)) {
                connection.limit_segment(now, number, limit);
            }
            return;
        }
        if to == 1 {
            self.longest_passed = self.longest_passed.max(bytes.len());
        }
        let mut departs = self.now;
        if let Some(bottleneck) = self.bottleneck.as_mut().filter(|_| to == 1) {
            let Some(at) = bottleneck.passes(self.now, bytes.len(), &mut self.random) else { return };
            departs = at;
        }
        if self.random.u32(..1000) < self.path.loss {
            return;
        }
        let copies = if self.random.u32(..1000) < self.path.duplication { 2 } else { 1 };
        for _ in 0..copies {
            let jitter = Duration::from_nanos(self.random.u64(..=self.path.jitter.as_nanos() as u64));
            self.sent += 1;
            let mut at = departs + self.path.delay + jitter;
            let busy = self.busy.as_nanos() as u64;
            if to == 0 && busy > 0 {
                at = Instant(at.0.next_multiple_of(busy));
            }
            self.flying.push(Flying { at, order: self.sent, to, bytes: bytes.clone() });
        }
    }

    /// Lets an end send all that it can.
    pub fn send(&mut self, from: usize) {
        for count in 0.. {
            let (now, frame_bytes) = (self.now, self.frame_bytes);
            let Some(connection) = self.connection(from) else { return };
            let Some(transmit) = connection.poll_transmit(now, frame_bytes) else { return };
            for bytes in bytes_of(Some(connection), &transmit) {
                self.put(1 - from, bytes);
            }
            assert!(count < 10_000, "an end sends without an end");
        }
    }

    fn receive(&mut self, to: usize, bytes: &[u8]) {
        let segment = Segment::parse(bytes).expect("it is whole");
        let now = self.now;
        let mut answer = None;
        match &mut self.ends[to] {
            End::Listens(settings) => {
                if segment.header.flags.0 == 2 {
                    let mut half_open = HalfOpen::new(now, &segment.header, self.random.u32(..), *settings);
                    answer = Some(half_open.answer(now));
                    self.ends[to] = End::HalfOpen(half_open);
                }
            }
            End::HalfOpen(half_open) => match half_open.reply(&segment) {
                Reply::Opens => {
                    let mut connection = half_open.open(now);
                    connection.receive(now, &segment);
                    self.ends[to] = End::Open(Box::new(connection));
                }
                Reply::Repeats => answer = Some(half_open.answer(now)),
                Reply::Resets => self.ends[to] = End::Listens(*half_open.settings()),
                Reply::Refuse => answer = segment.refusal(),
                Reply::Ignore => {}
            },
            End::Open(connection) if connection.state() == State::Closed => answer = segment.refusal(),
            End::Open(connection) => connection.receive(now, &segment),
        }
        if let Some(header) = answer {
            let mut bytes = vec![0; header.bytes()];
            header.write(2, 1, &mut bytes);
            self.put(1 - to, bytes);
        }
    }

    /// When something happens next.
    pub fn next(&mut self) -> Option<Instant> {
        let flying = self.flying.peek().map(|flying| flying.at);
        let now = self.now;
        let deadline = |end: &mut End| match end {
            End::Listens(_) => None,
            End::HalfOpen(half_open) => Some(half_open.resend_at()),
            End::Open(connection) => connection.next_deadline(now),
        };
        let deadlines = self.ends.iter_mut().filter_map(deadline).min();
        flying.into_iter().chain(deadlines).min()
    }

    /// Advances to `until` at most, or to the next thing that happens, and does it. Returns whether something was due.
    pub fn step(&mut self, until: Instant) -> bool {
        let next = self.next().filter(|next| *next <= until);
        self.now = self.now.max(next.unwrap_or(until));
        while self.flying.peek().is_some_and(|flying| flying.at <= self.now) {
            let Flying { to, bytes, .. } = self.flying.pop().expect("there is one");
            self.receive(to, &bytes);
        }
        for index in 0..2 {
            if let End::HalfOpen(half_open) = &mut self.ends[index]
                && half_open.resend_at() <= self.now
            {
                let header = half_open.answer(self.now);
                let mut bytes = vec![0; header.bytes()];
                header.write(2, 1, &mut bytes);
                self.put(1 - index, bytes);
            }
            self.send(index);
        }
        next.is_some()
    }
}
