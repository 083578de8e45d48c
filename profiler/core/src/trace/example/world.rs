//! The simulation of the queue, its clients and its disk.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use glass_formats::trace::{BlockKind, Kind, Operation, ValueType, WakeSource};

use super::name;
use super::ring::{Core, Dice, clock_point};
use super::upload::{Need, Step, Upload, WRITES_MAX};
use crate::trace::raw::{ClockPoint, RawRing};

const CLIENTS: u32 = 8;
const LISTENER: u32 = 1;
const HOUSEKEEPER: u32 = 2;
const BLOCK_BYTES: u64 = 65_536;
const SEGMENT_BYTES: u64 = 7_300;
const HOUSEKEEPING_NS: u64 = 5_000_000;
const CLOCK_POINT_NS: u64 = 50_000_000;
/// All groups of events.
const GROUPS: u64 = 127;
const ENTER: Kind = Kind::FunctionEnter;
const EXIT: Kind = Kind::FunctionExit;

/// Events from outside of core 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outside {
    Client,
    Bytes(u32),
    Done(u64),
}

struct World {
    core: Core,
    other: Core,
    dice: Dice,
    outside: BinaryHeap<Reverse<(u64, u64, Outside)>>,
    order: u64,
    uploads: BTreeMap<u32, Upload>,
    ready: VecDeque<u32>,
    requests: BTreeMap<u64, (u32, u64)>,
    next_request: u64,
    next_connection: u32,
    index_owner: Option<u32>,
    index_queue: VecDeque<u32>,
    received: u64,
    clock: Vec<ClockPoint>,
}

/// Runs the world until there are as many events.
pub(super) fn run(events: usize, seed: u64) -> (Vec<RawRing>, Vec<ClockPoint>) {
    let mut world = World {
        core: Core::new("core 0"),
        other: Core::new("core 1"),
        dice: Dice::new(seed),
        outside: BinaryHeap::new(),
        order: 0,
        uploads: BTreeMap::new(),
        ready: VecDeque::new(),
        requests: BTreeMap::new(),
        next_request: 1,
        next_connection: 1,
        index_owner: None,
        index_queue: VecDeque::new(),
        received: 0,
        clock: vec![clock_point(0)],
    };
    world.begin();
    while world.core.count + world.other.count < events {
        world.round();
    }
    world.core.emit(100, Kind::Groups, 0, 0, (0, 0));
    let end = clock_point(world.core.now_ns.max(world.other.now_ns));
    world.clock.push(end);
    (vec![world.core.into_ring(), world.other.into_ring()], world.clock)
}

impl World {
    fn begin(&mut self) {
        self.core.emit(0, Kind::Groups, 0, 0, (GROUPS, 0));
        self.core.emit(0, Kind::TaskSpawn, 1, LISTENER, (name("listener").into(), 0));
        self.other.emit(0, Kind::TaskSpawn, 1, HOUSEKEEPER, (name("housekeeper").into(), 0));
        self.other.emit(0, Kind::IdleBegin, 0, 0, (self.other.now_ns + HOUSEKEEPING_NS, 0));
        for client in 0..CLIENTS {
            self.later(20_000 * u64::from(client), Outside::Client);
        }
    }

    fn later(&mut self, after_ns: u64, what: Outside) {
        self.order += 1;
        self.outside.push(Reverse((self.core.now_ns + after_ns, self.order, what)));
    }

    /// Polls the devices, then runs the runnable tasks, then halts if there is no work.
    fn round(&mut self) {
        let is_due =
            |world: &World| world.outside.peek().is_some_and(|Reverse((time_ns, ..))| *time_ns <= world.core.now_ns);
        if self.ready.is_empty() && !is_due(self) {
            self.sleep();
        }
        self.core.emit(40, ENTER, 0, 11, (0, 0));
        while is_due(self) {
            let Some(Reverse((_, _, what))) = self.outside.pop() else { break };
            self.happens(what);
        }
        self.core.emit(60, EXIT, 0, 11, (0, 0));
        self.core.emit(10, ENTER, 0, 10, (0, 0));
        for _ in 0..self.ready.len() {
            match self.ready.pop_front() {
                Some(0) => self.poll_listener(),
                Some(connection) => self.poll_upload(connection),
                None => {}
            }
        }
        self.core.emit(10, EXIT, 0, 10, (0, 0));
    }

    fn sleep(&mut self) {
        let Some(Reverse((time_ns, _, what))) = self.outside.peek().copied() else { return };
        self.core.emit(20, Kind::SpinBegin, 0, 0, (0, 0));
        let spin_ns = 50_000.min(time_ns.saturating_sub(self.core.now_ns));
        self.core.emit(spin_ns, Kind::SpinEnd, 0, 0, (0, 0));
        if self.core.now_ns < time_ns {
            self.core.emit(100, Kind::IdleBegin, 0, 0, (u64::MAX, 0));
            let device = if matches!(what, Outside::Done(_)) { name("disk 0") } else { name("network 0") };
            let left_ns = time_ns.saturating_sub(self.core.now_ns);
            self.core.emit(left_ns + 2_000, Kind::Interrupt, 0, device, (0x31, 0));
            self.core.emit(200, Kind::IdleEnd, WakeSource::Device as u16, device, (0, 0));
        }
        while self.other.now_ns + HOUSEKEEPING_NS < self.core.now_ns {
            self.keep_house();
        }
        if self.clock.last().is_some_and(|point| point.time_ns + CLOCK_POINT_NS < self.core.now_ns) {
            self.clock.push(clock_point(self.core.now_ns));
        }
    }

    fn keep_house(&mut self) {
        let core = &mut self.other;
        let is_long = self.dice.between(0, 10) == 0;
        core.emit(HOUSEKEEPING_NS, Kind::IdleEnd, WakeSource::Timer as u16, 0, (0, 0));
        core.emit(100, Kind::TimersFire, 0, 1, (0, 0));
        core.emit(50, Kind::Wake, 0, HOUSEKEEPER, (0, 0));
        core.emit(90, Kind::PollBegin, 0, HOUSEKEEPER, (name("housekeeper").into(), 0));
        let free = self.dice.between(30 << 20, 40 << 20);
        core.emit(2_000, Kind::Counter, 1, name("free memory"), (free, 0));
        if is_long {
            core.emit(200_000, Kind::Message, 3, name("upload_queue::housekeeping"), (0, 12));
            let text = *b"swept places";
            let word = |at: usize| u32::from_le_bytes([text[at], text[at + 1], text[at + 2], text[at + 3]]);
            core.emit(10, Kind::Text, 12, word(0), (u64::from(word(4)) | u64::from(word(8)) << 32, 0));
        }
        let deadline_ns = core.now_ns + HOUSEKEEPING_NS;
        core.emit(30, Kind::Block, BlockKind::Timer as u16, name("next round"), (deadline_ns, 0));
        core.emit(30, Kind::PollEnd, 0, HOUSEKEEPER, (0, 0));
        core.emit(70, Kind::IdleBegin, 0, 0, (deadline_ns, 0));
    }

    fn happens(&mut self, what: Outside) {
        match what {
            Outside::Client => {
                let number = self.next_connection;
                self.core.emit(
                    400,
                    Kind::Connection,
                    1,
                    number,
                    (0x0a00_0202, 8080 | (40_000 + u64::from(number) % 20_000) << 16),
                );
                self.core.emit(80, Kind::SegmentIn, 2, number, (u64::from(number), 65_535 << 32));
                self.core.emit(120, Kind::Wake, 0, LISTENER, (0, 0));
                self.ready.push_back(0);
            }
            Outside::Bytes(connection) => {
                let segments = self.dice.between(1, 5);
                let Some(upload) = self.uploads.get_mut(&connection) else { return };
                for _ in 0..segments {
                    let b = u64::from(upload.sequence) | 1 << 32;
                    self.core.emit(700, Kind::SegmentIn, 24, connection, (b, SEGMENT_BYTES | 65_535 << 32));
                    upload.sequence = upload.sequence.wrapping_add(SEGMENT_BYTES as u32);
                }
                self.received += segments * SEGMENT_BYTES;
                upload.has_bytes = true;
                if upload.need == Need::Bytes {
                    self.wake(connection);
                }
            }
            Outside::Done(request) => {
                let Some((connection, bytes)) = self.requests.remove(&request) else { return };
                let under_way = self.requests.len() as u64;
                self.core.emit(300, Kind::Complete, 0, name("disk 0"), (request, bytes | under_way << 32));
                let Some(upload) = self.uploads.get_mut(&connection) else { return };
                upload.writes.retain(|write| *write != request);
                if upload.need == Need::Request(request) {
                    self.wake(connection);
                }
            }
        }
    }

    fn wake(&mut self, connection: u32) {
        let Some(upload) = self.uploads.get(&connection) else { return };
        self.core.emit(60, Kind::Wake, 0, upload.task, (0, 0));
        self.ready.push_back(connection);
    }

    fn poll_listener(&mut self) {
        let listener = name("listener");
        self.core.emit(50, Kind::PollBegin, 0, LISTENER, (listener.into(), 0));
        let number = self.next_connection;
        self.next_connection += 1;
        let task = number + HOUSEKEEPER;
        let parent = u64::from(LISTENER) << 32;
        self.core.emit(300, Kind::TaskSpawn, 0, task, (u64::from(name("connection")) | parent, 0));
        let blocks = self.dice.between(4, 24);
        self.uploads.insert(number, Upload::new(number, task, blocks));
        self.ready.push_back(number);
        let gauge = self.uploads.len() as u64;
        self.core.emit(40, Kind::Counter, 1, name("open uploads"), (gauge, 0));
        self.core.emit(40, Kind::Block, BlockKind::Accept as u16, name("new client"), (8080, 0));
        self.core.emit(30, Kind::PollEnd, 0, LISTENER, (0, 0));
    }

    fn poll_upload(&mut self, connection: u32) {
        let Some(mut upload) = self.uploads.remove(&connection) else { return };
        let task = upload.task;
        self.core.emit(50, Kind::PollBegin, 0, task, (name("connection").into(), 0));
        if upload.step == Step::Head {
            self.begin_span(&upload);
            upload.step = Step::Body;
        }
        self.core.emit(20, Kind::SpanEnter, 0, 0, (upload.span, 0));
        let need = self.advance(&mut upload);
        self.core.emit(20, Kind::SpanExit, 0, 0, (upload.span, 0));
        let Some(need) = need else {
            self.core.emit(30, Kind::SpanEnd, 0, 0, (upload.span, 0));
            self.core.emit(150, Kind::Connection, 2, connection, (0, 0));
            self.core.emit(90, Kind::PollEnd, 1, task, (0, 0));
            let think_ns = self.dice.between(50_000, 900_000);
            self.later(think_ns, Outside::Client);
            return;
        };
        let (kind, text, object) = match need {
            Need::Bytes => (BlockKind::Receive, "bytes from the client", connection.into()),
            Need::Request(request) => (BlockKind::Request, "disk 0", request),
            Need::Index => (BlockKind::Notify, "index to be free", 1),
        };
        self.core.emit(30, Kind::Block, kind as u16, name(text), (object, 0));
        self.core.emit(30, Kind::PollEnd, 0, task, (0, 0));
        upload.need = need;
        self.uploads.insert(connection, upload);
    }

    fn begin_span(&mut self, upload: &Upload) {
        let bytes = upload.blocks_left * BLOCK_BYTES;
        self.core.emit(800, Kind::SpanBegin, 3, name("upload"), (upload.span, 0));
        self.core.emit(20, Kind::Field, ValueType::Unsigned as u16, name("bytes"), (bytes, upload.span));
        self.core.emit(20, Kind::Field, ValueType::Text as u16, name("client"), (8, upload.span));
        let text = u64::from_le_bytes(*b"10.0.2.2");
        self.core.emit(10, Kind::Text, 8, text as u32, (text >> 32, 0));
    }

    /// Continues as far as possible; returns the next wait, `None` if it has ended.
    fn advance(&mut self, upload: &mut Upload) -> Option<Need> {
        loop {
            match upload.step {
                Step::Head | Step::Body => {
                    if upload.writes.len() >= WRITES_MAX {
                        return upload.writes.front().map(|request| Need::Request(*request));
                    }
                    if !std::mem::take(&mut upload.has_bytes) {
                        return Some(Need::Bytes);
                    }
                    self.receive(upload);
                }
                Step::Drain => match upload.writes.front() {
                    Some(request) => return Some(Need::Request(*request)),
                    None => upload.step = Step::Index,
                },
                Step::Index => {
                    if self.index_owner.is_some_and(|owner| owner != upload.number) {
                        self.index_queue.push_back(upload.number);
                        return Some(Need::Index);
                    }
                    self.index_owner = Some(upload.number);
                    upload.step = Step::IndexWrite;
                    self.submit(upload, Operation::Write, 4_096);
                }
                Step::IndexWrite => match upload.writes.front() {
                    Some(request) => return Some(Need::Request(*request)),
                    None => {
                        upload.step = Step::Flush;
                        self.submit(upload, Operation::Flush, 0);
                    }
                },
                Step::Flush => match upload.writes.front() {
                    Some(request) => return Some(Need::Request(*request)),
                    None => {
                        self.answer(upload);
                        return None;
                    }
                },
            }
        }
    }

    /// Takes bytes that have come, and writes a block if one is full.
    fn receive(&mut self, upload: &mut Upload) {
        for function in [0, 1, 2, 3] {
            self.core.emit(60, ENTER, 0, function, (0, 0));
        }
        let copy_ns = self.dice.between(900, 4_000);
        self.core.emit(copy_ns, EXIT, 0, 3, (0, 0));
        self.core.emit(150, EXIT, 0, 2, (0, 0));
        let b = 1 | u64::from(upload.sequence) << 32;
        self.core.emit(300, Kind::SegmentOut, 16, upload.number, (b, 65_535 << 32));
        self.core.emit(60, EXIT, 0, 1, (0, 0));
        self.core.emit(60, EXIT, 0, 0, (0, 0));
        self.core.emit(20, Kind::Counter, 0, name("bytes received"), (self.received, 0));
        upload.batches_left -= 1;
        if upload.batches_left == 0 {
            upload.batches_left = 3;
            upload.blocks_left -= 1;
            self.submit(upload, Operation::Write, BLOCK_BYTES);
        }
        if upload.blocks_left == 0 {
            upload.step = Step::Drain;
        } else {
            let way_ns = self.dice.between(15_000, 120_000);
            self.later(way_ns, Outside::Bytes(upload.number));
        }
    }

    fn submit(&mut self, upload: &mut Upload, operation: Operation, bytes: u64) {
        let core = &mut self.core;
        core.emit(40, ENTER, 0, 4, (0, 0));
        // A function that calls itself.
        for _ in 0..3 {
            core.emit(80, ENTER, 0, 5, (0, 0));
        }
        for _ in 0..3 {
            core.emit(80, EXIT, 0, 5, (0, 0));
        }
        core.emit(40, ENTER, 0, 6, (0, 0));
        let request = self.next_request;
        self.next_request += 1;
        self.requests.insert(request, (upload.number, bytes));
        upload.writes.push_back(request);
        let size = bytes | (self.requests.len() as u64) << 32;
        core.emit(200, Kind::Submit, operation as u16, name("disk 0"), (request, size));
        // The last thing it does is to jump to another function.
        core.emit(30, Kind::FunctionTailExit, 0, 6, (0, 0));
        core.emit(10, ENTER, 0, 7, (0, 0));
        core.emit(500, Kind::Kick, 0, name("disk 0"), (0, 0));
        core.emit(100, EXIT, 0, 7, (0, 0));
        core.emit(30, EXIT, 0, 4, (0, 0));
        let is_slow = self.dice.between(0, 100) == 0;
        let latency_ns = match (operation, is_slow) {
            (_, true) => self.dice.between(4_000_000, 9_000_000),
            (Operation::Flush, false) => self.dice.between(250_000, 700_000),
            _ => self.dice.between(60_000, 300_000),
        };
        self.later(latency_ns, Outside::Done(request));
    }

    fn answer(&mut self, upload: &Upload) {
        self.core.emit(60, ENTER, 0, 8, (0, 0));
        self.core.emit(60, ENTER, 0, 9, (0, 0));
        let b = 1 | u64::from(upload.sequence) << 32;
        self.core.emit(900, Kind::SegmentOut, 24, upload.number, (b, 92 | 65_535 << 32));
        self.core.emit(60, EXIT, 0, 9, (0, 0));
        self.core.emit(60, EXIT, 0, 8, (0, 0));
        self.index_owner = self.index_queue.pop_front();
        if let Some(next) = self.index_owner {
            self.wake(next);
        }
    }
}
