//! A model of connections that share a bottleneck: a rate, a queue that drops what does not fit, a delay, random loss. It is driven by events, and by
//! a seed. Each segment is acknowledged by itself, and what follows a lost one by three segments shows the loss.

use core::time::Duration;
use glass_api::Instant;
use glass_lib_tcp::congestion::{Ack, Control, Kind, Lost, Phase, RateSample, Start};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Payload of each segment, and its length on the wire.
pub const SEGMENT: u64 = 1448;
const WIRE: u64 = 1514;
/// Segments that were sent later and arrived show that one is lost.
const REORDERING: u64 = 3;
const RTO_MIN: Duration = Duration::from_millis(200);

/// The path that all connections share.
#[derive(Debug, Clone, Copy)]
pub struct Path {
    pub bits_per_sec: u64,
    /// In bandwidth-delay products.
    pub queue: f64,
    pub rtt: Duration,
    pub loss: f64,
    pub seed: u64,
}

impl Path {
    /// Payload bytes a second that it can deliver without losses.
    pub fn payload_per_sec(&self) -> f64 {
        self.bits_per_sec as f64 / 8.0 * SEGMENT as f64 / WIRE as f64
    }

    fn queue_time(&self) -> Duration {
        self.rtt.mul_f64(self.queue)
    }

    fn wire_time(&self) -> Duration {
        Duration::from_nanos(WIRE * 8 * 1_000_000_000 / self.bits_per_sec)
    }
}

/// What a connection has achieved.
#[derive(Debug, Clone, Copy, Default)]
pub struct Outcome {
    /// Payload bytes that were delivered while it was measured.
    pub delivered: u64,
    /// Segments that were lost, of those that were sent.
    pub lost: u64,
    pub sent: u64,
    /// The sum of the round trips of what was delivered.
    rtt_sum: Duration,
}

impl Outcome {
    /// The mean round trip.
    pub fn rtt(&self) -> Duration {
        let segments = u32::try_from(self.delivered / SEGMENT).unwrap_or(u32::MAX);
        self.rtt_sum / segments.max(1)
    }
}

/// A segment that is not acknowledged.
struct Segment {
    number: u64,
    sent: Instant,
    first_sent: Instant,
    delivered_at: Instant,
    delivered: u64,
    in_flight: u64,
    lost: u64,
}

struct Flow {
    control: Box<dyn Control>,
    start: Instant,
    segments: VecDeque<Segment>,
    next: u64,
    in_flight: u64,
    delivered: u64,
    delivered_at: Instant,
    first_sent: Instant,
    lost: u64,
    /// Nothing is sent before this time.
    released_at: Instant,
    is_waiting: bool,
    rtt: Option<Duration>,
    min_rtt: Option<Duration>,
    /// The first number of this round, and rounds so far.
    round_start: u64,
    round: u64,
    /// The window was full in this round, and in the one before.
    was_full: [bool; 2],
    phase: Phase,
    recovery_end: u64,
    progress_at: Instant,
    timeouts: u32,
    outcome: Outcome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrived(u64),
    Release,
    Timeout,
}

/// Runs connections of these kinds, which start at these times, until `end`. What is delivered from `measured_from` on is counted.
pub fn run(path: Path, flows: &[(Kind, Duration)], measured_from: Duration, end: Duration) -> Vec<Outcome> {
    let mut model = Model::new(path, flows, Instant(0) + measured_from);
    while let Some(Reverse((now, _, flow, event))) = model.events.pop() {
        if now > Instant(0) + end {
            break;
        }
        model.now = now;
        match event {
            Event::Arrived(number) => model.acknowledge(flow, number),
            Event::Release => model.flows[flow].is_waiting = false,
            Event::Timeout => model.check_timeout(flow),
        }
        model.send(flow);
    }
    model.flows.into_iter().map(|flow| flow.outcome).collect()
}

struct Model {
    path: Path,
    random: fastrand::Rng,
    now: Instant,
    measured_from: Instant,
    free_at: Instant,
    events: BinaryHeap<Reverse<(Instant, u64, usize, Event)>>,
    count: u64,
    flows: Vec<Flow>,
}

impl Model {
    fn new(path: Path, kinds: &[(Kind, Duration)], measured_from: Instant) -> Model {
        let (now, random) = (Instant(0), fastrand::Rng::with_seed(path.seed));
        let flows = kinds.iter().enumerate().map(|(index, (kind, at))| Flow::new(*kind, Instant(0) + *at, path, index));
        let flows = flows.collect::<Vec<_>>();
        let mut model =
            Model { path, random, now, measured_from, free_at: now, events: BinaryHeap::new(), count: 0, flows };
        for index in 0..model.flows.len() {
            let start = model.flows[index].start;
            model.at(start, index, Event::Release);
            model.at(start + RTO_MIN, index, Event::Timeout);
        }
        model
    }

    fn at(&mut self, time: Instant, flow: usize, event: Event) {
        self.count += 1;
        self.events.push(Reverse((time, self.count, flow, event)));
    }

    /// Sends what the window and the pace permit.
    fn send(&mut self, index: usize) {
        while !self.flows[index].is_waiting {
            let (now, flow) = (self.now, &mut self.flows[index]);
            if flow.in_flight + SEGMENT > flow.control.window_bytes() {
                flow.was_full[0] = true;
                return;
            }
            if flow.released_at > now {
                flow.is_waiting = true;
                let time = flow.released_at;
                return self.at(time, index, Event::Release);
            }
            let number = flow.send(now, self.measured_from);
            let start = self.free_at.max(now);
            if start.since(now) > self.path.queue_time() {
                continue;
            }
            self.free_at = start + self.path.wire_time();
            if self.random.f64() >= self.path.loss {
                let arrival = self.free_at + self.path.rtt;
                self.at(arrival, index, Event::Arrived(number));
            }
        }
    }

    fn acknowledge(&mut self, index: usize, number: u64) {
        let (now, measured_from) = (self.now, self.measured_from);
        self.flows[index].acknowledge(number, now, measured_from);
    }

    fn check_timeout(&mut self, index: usize) {
        let (now, flow) = (self.now, &mut self.flows[index]);
        let rto = flow.rto();
        let mut next = flow.progress_at + rto;
        if flow.in_flight > 0 && now >= next {
            flow.timeout(now);
            next = now + rto;
        }
        self.at(next.max(now + Duration::from_millis(1)), index, Event::Timeout);
    }
}

impl Flow {
    fn new(kind: Kind, start: Instant, path: Path, index: usize) -> Flow {
        let seed = path.seed + index as u64;
        let control = kind.start(&Start { now: start, segment_bytes: SEGMENT, rtt: Some(path.rtt), seed });
        Flow {
            control,
            start,
            segments: VecDeque::new(),
            next: 0,
            in_flight: 0,
            delivered: 0,
            delivered_at: start,
            first_sent: start,
            lost: 0,
            released_at: start,
            is_waiting: true,
            rtt: Some(path.rtt),
            min_rtt: Some(path.rtt),
            round_start: 0,
            round: 0,
            was_full: [false; 2],
            phase: Phase::Open,
            recovery_end: 0,
            progress_at: start,
            timeouts: 0,
            outcome: Outcome::default(),
        }
    }

    fn rto(&self) -> Duration {
        let rtt = self.rtt.unwrap_or(RTO_MIN);
        (rtt * 2).max(RTO_MIN) * (1 << self.timeouts.min(6))
    }

    /// Returns the number of the segment.
    fn send(&mut self, now: Instant, measured_from: Instant) -> u64 {
        if self.in_flight == 0 {
            (self.first_sent, self.delivered_at, self.progress_at) = (now, now, now);
        }
        self.in_flight += SEGMENT;
        let number = self.next;
        self.next += 1;
        let Flow { first_sent, delivered_at, delivered, in_flight, lost, .. } = *self;
        self.segments.push_back(Segment { number, sent: now, first_sent, delivered_at, delivered, in_flight, lost });
        self.outcome.sent += u64::from(now >= measured_from);
        if let Some(rate) = self.control.pacing_bytes_per_sec() {
            // Bursts are as long as those of the sender.
            let burst = Duration::from_nanos(self.control.burst_bytes(SEGMENT) * 1_000_000_000 / rate.max(1));
            let earliest = Instant(now.0.saturating_sub(burst.as_nanos() as u64));
            self.released_at =
                self.released_at.max(earliest) + Duration::from_nanos(SEGMENT * 1_000_000_000 / rate.max(1));
        }
        number
    }

    fn acknowledge(&mut self, number: u64, now: Instant, measured_from: Instant) {
        let prior_in_flight = self.in_flight;
        let lost_bytes = self.find_lost(number, now);
        let Some(place) = self.segments.iter().position(|segment| segment.number == number) else { return };
        let segment = self.segments.remove(place).expect("it was found");
        self.in_flight -= SEGMENT;
        self.delivered += SEGMENT;
        self.delivered_at = now;
        self.first_sent = segment.sent;
        self.progress_at = now;
        self.timeouts = 0;
        let rtt = now.since(segment.sent);
        self.rtt = Some(self.rtt.map_or(rtt, |smoothed| (smoothed * 7 + rtt) / 8));
        self.min_rtt = self.min_rtt.min(Some(rtt));
        if now >= measured_from {
            self.outcome.delivered += SEGMENT;
            self.outcome.rtt_sum += rtt;
        }
        let is_round_start = number >= self.round_start;
        if is_round_start {
            (self.round_start, self.round) = (self.next, self.round + 1);
            self.was_full = [false, self.was_full[0]];
        }
        if self.phase != Phase::Open && number >= self.recovery_end {
            self.phase = Phase::Open;
            self.control.on_recovery_end(now);
        }
        let ack = Ack {
            now,
            delivered_bytes: SEGMENT,
            acked_bytes: SEGMENT,
            lost_bytes,
            prior_in_flight,
            in_flight: self.in_flight,
            rtt: Some(rtt),
            min_rtt: self.min_rtt,
            rate: self.rate(&segment, now),
            round: self.round,
            is_round_start,
            is_window_limited: self.was_full != [false; 2],
            phase: self.phase,
        };
        self.control.on_ack(&ack);
    }

    fn rate(&self, segment: &Segment, now: Instant) -> Option<RateSample> {
        let interval = segment.sent.since(segment.first_sent).max(now.since(segment.delivered_at));
        (Some(interval) >= self.min_rtt).then_some(RateSample {
            delivered_bytes: self.delivered - segment.delivered,
            interval,
            prior_delivered: segment.delivered,
            total_delivered: self.delivered,
            sent_in_flight: segment.in_flight,
            lost_bytes: self.lost - segment.lost,
            is_app_limited: false,
        })
    }

    /// Finds what an acknowledgement shows to be lost; returns how many bytes that are.
    fn find_lost(&mut self, number: u64, now: Instant) -> u64 {
        let prior_in_flight = self.in_flight;
        let mut bytes = 0;
        while self.segments.front().is_some_and(|segment| segment.number + REORDERING <= number) {
            self.lose_first(now);
            bytes += SEGMENT;
        }
        if bytes > 0 && self.phase == Phase::Open {
            (self.phase, self.recovery_end) = (Phase::Recovery, self.next);
            self.control.on_recovery_start(now, prior_in_flight);
        }
        bytes
    }

    fn lose_first(&mut self, now: Instant) {
        let segment = self.segments.pop_front().expect("there is one");
        self.in_flight -= SEGMENT;
        self.lost += SEGMENT;
        self.outcome.lost += 1;
        self.control.on_lost(&Lost {
            now,
            bytes: SEGMENT,
            sent_in_flight: segment.in_flight,
            lost_since_sent: self.lost - segment.lost,
            prior_delivered: segment.delivered,
            is_app_limited: false,
        });
    }

    fn timeout(&mut self, now: Instant) {
        let in_flight = self.in_flight;
        while !self.segments.is_empty() {
            self.lose_first(now);
        }
        self.timeouts += 1;
        (self.phase, self.recovery_end) = (Phase::Loss, self.next);
        self.control.on_timeout(now, in_flight, self.timeouts == 1);
    }
}
