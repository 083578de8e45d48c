//! BBR against the cases of the draft's section *BBR Example Test Cases*, by scripted rounds.

use super::{Bbr, State};
use crate::congestion::tests::{SEGMENT, ack, start};
use crate::congestion::{Ack, Control, Lost, Phase, RateSample};
use core::time::Duration;
use glass_api::Instant;

const MS: Duration = Duration::from_millis(1);
const RTT: Duration = Duration::from_millis(40);
/// 10 MB/s, so 400 segments in a round trip.
const RATE: u64 = 10_000_000;
const BDP: u64 = 400 * SEGMENT;

/// A connection, with what its sender counts.
struct Trace {
    bbr: Bbr,
    now: Instant,
    delivered: u64,
    lost: u64,
    /// What the next rounds report.
    in_flight: u64,
    rtt: Duration,
    is_app_limited: bool,
    is_window_limited: bool,
    phase: Phase,
}

impl Trace {
    fn new() -> Trace {
        Trace {
            bbr: Bbr::new(&start()),
            now: Instant(0),
            delivered: 0,
            lost: 0,
            in_flight: BDP,
            rtt: RTT,
            is_app_limited: false,
            is_window_limited: false,
            phase: Phase::Open,
        }
    }

    /// A connection whose pipe is full at [`RATE`], in the phase Down.
    fn down() -> Trace {
        let mut trace = Trace::new();
        trace.in_flight = 2 * BDP;
        // Four of Startup, four of Drain.
        trace.rounds(8, RATE);
        assert_eq!((trace.bbr.state, trace.pace_percent()), (State::Down, 90));
        trace
    }

    fn cruise() -> Trace {
        let mut trace = Trace::down();
        trace.in_flight = BDP / 2;
        trace.round(RATE);
        assert_eq!(trace.bbr.state, State::Cruise);
        trace
    }

    fn up() -> Trace {
        let mut trace = Trace::cruise();
        trace.now = trace.now + 3001 * MS;
        trace.bbr.model.probe_rtt_min_at = trace.now;
        trace.rounds(2, RATE);
        assert_eq!(trace.bbr.state, State::Up);
        trace
    }

    fn rounds(&mut self, count: u32, rate: u64) {
        (0..count).for_each(|_| self.round(rate));
    }

    /// A round trip at this rate, of which one acknowledgement reports.
    fn round(&mut self, rate: u64) {
        self.round_with_losses(rate, 0);
    }

    /// A round trip in which so many segments are lost, each by itself.
    fn round_with_losses(&mut self, rate: u64, losses: u64) {
        let (prior_delivered, prior_lost) = (self.delivered, self.lost);
        self.now = self.now + self.rtt;
        for _ in 0..losses {
            self.lost += SEGMENT;
            self.bbr.on_lost(&Lost {
                now: self.now,
                bytes: SEGMENT,
                sent_in_flight: self.in_flight,
                lost_since_sent: self.lost - prior_lost,
                prior_delivered,
                is_app_limited: self.is_app_limited,
            });
        }
        if losses > 0 && self.phase == Phase::Open {
            self.phase = Phase::Recovery;
            self.bbr.on_recovery_start(self.now, self.in_flight);
        }
        let bytes = rate / 1000 * self.rtt.as_millis() as u64;
        self.delivered += bytes;
        let rate = RateSample {
            delivered_bytes: bytes,
            interval: self.rtt,
            prior_delivered,
            total_delivered: self.delivered,
            sent_in_flight: self.in_flight,
            lost_bytes: self.lost - prior_lost,
            is_app_limited: self.is_app_limited,
        };
        self.bbr.on_ack(&Ack {
            now: self.now,
            lost_bytes: self.lost - prior_lost,
            in_flight: self.in_flight,
            rtt: Some(self.rtt),
            rate: Some(rate),
            is_window_limited: self.is_window_limited,
            phase: self.phase,
            ..ack(bytes)
        });
    }

    /// The pace as a share of the bandwidth, in percent.
    fn pace_percent(&self) -> u64 {
        (self.bbr.pace * 100).div_ceil(self.bbr.model.bw())
    }
}

#[test]
fn startup_ends_on_a_bandwidth_plateau() {
    let mut trace = Trace::new();
    assert_eq!(trace.bbr.pace, 10 * SEGMENT * 25 * 277 / 100);
    for rate in [RATE / 8, RATE / 4, RATE / 2, RATE] {
        trace.round(rate);
        assert_eq!((trace.bbr.state, trace.pace_percent()), (State::Startup, 275));
    }
    trace.in_flight = 2 * BDP;
    trace.rounds(2, RATE);
    assert_eq!((trace.bbr.state, trace.bbr.full_pipe.is_reached), (State::Startup, false));
    // A quarter more is growth.
    trace.round(RATE / 4 * 5);
    trace.rounds(2, RATE / 4 * 5);
    assert_eq!(trace.bbr.state, State::Startup);
    trace.round(RATE / 4 * 5);
    assert!(matches!(trace.bbr.state, State::Drain(_)) && trace.bbr.full_pipe.is_now);
    assert_eq!((trace.bbr.model.max_bw(), trace.pace_percent()), (RATE / 4 * 5, 50));
}

#[test]
fn an_application_that_sends_little_stays_in_startup() {
    let mut trace = Trace::new();
    trace.is_app_limited = true;
    trace.rounds(50, RATE);
    assert_eq!(trace.bbr.state, State::Startup);
}

#[test]
fn startup_ends_on_loss() {
    let mut trace = Trace::new();
    trace.rounds(2, RATE);
    trace.in_flight = 2 * BDP;
    // Less than 2 % of 800 segments, then more.
    trace.round_with_losses(RATE, 15);
    assert_eq!(trace.bbr.state, State::Startup);
    let mut trace = Trace::new();
    trace.rounds(2, RATE);
    trace.in_flight = 2 * BDP;
    trace.round_with_losses(RATE, 17);
    assert!(matches!(trace.bbr.state, State::Drain(_)));
    assert_eq!(trace.bbr.model.inflight_longterm, Some(BDP));
}

#[test]
fn startup_continues_while_losses_do_not_stop_growth() {
    let mut trace = Trace::new();
    for rate in [RATE / 8, RATE / 4, RATE / 2, RATE] {
        trace.round_with_losses(rate, 20);
        assert_eq!(trace.bbr.state, State::Startup);
    }
}

#[test]
fn drain_ends_when_little_is_in_flight_or_after_three_rounds() {
    let drain = || {
        let mut trace = Trace::new();
        trace.in_flight = 2 * BDP;
        trace.rounds(4, RATE);
        assert!(matches!(trace.bbr.state, State::Drain(_)));
        trace
    };
    let mut trace = drain();
    trace.in_flight = BDP;
    trace.round(RATE);
    // Down ends at once for the same reason.
    assert_eq!(trace.bbr.state, State::Cruise);
    let mut trace = drain();
    trace.rounds(3, RATE);
    assert!(matches!(trace.bbr.state, State::Drain(_)));
    trace.round(RATE);
    assert_eq!(trace.bbr.state, State::Down);
}

#[test]
fn down_ends_when_the_queue_is_gone_or_after_its_time() {
    let mut trace = Trace::down();
    trace.in_flight = BDP + SEGMENT;
    trace.round(RATE);
    assert_eq!(trace.bbr.state, State::Down);
    trace.in_flight = BDP;
    trace.round(RATE);
    assert_eq!((trace.bbr.state, trace.pace_percent()), (State::Cruise, 99));
    // The queue stays.
    let mut trace = Trace::down();
    trace.in_flight = 2 * BDP;
    trace.now = trace.now + 3001 * MS;
    trace.round(RATE);
    assert_eq!(trace.bbr.state, State::Refill);
}

#[test]
fn a_probe_comes_after_two_to_three_seconds_or_63_rounds() {
    let mut trace = Trace::cruise();
    trace.now = trace.now + 1900 * MS;
    trace.round(RATE);
    assert_eq!(trace.bbr.state, State::Cruise);
    trace.now = trace.now + 1100 * MS;
    trace.round(RATE);
    assert_eq!(trace.bbr.state, State::Refill);
    // With shorter round trips.
    let mut trace = Trace::cruise();
    trace.rtt = MS * 10;
    trace.rounds(1, RATE);
    trace.rtt = MS;
    trace.in_flight = RATE / 1000;
    // Ten segments are in flight: Reno would take ten rounds. The count starts at 0 or 1.
    let mut rounds = 0;
    while trace.bbr.state == State::Cruise {
        trace.round(RATE);
        rounds += 1;
    }
    assert_eq!(trace.bbr.state, State::Refill);
    assert!((6..=9).contains(&rounds), "{rounds}");
}

#[test]
fn up_ends_on_a_plateau() {
    let mut trace = Trace::up();
    assert_eq!(trace.pace_percent(), 124);
    trace.rounds(2, RATE);
    assert_eq!(trace.bbr.state, State::Up);
    trace.round(RATE);
    assert_eq!((trace.bbr.state, trace.bbr.cycle.was_too_high), (State::Down, false));
}

#[test]
fn up_continues_while_it_delivers_more_or_the_application_sends_little() {
    let mut trace = Trace::up();
    trace.rounds(2, RATE);
    trace.round(RATE * 5 / 4);
    trace.rounds(2, RATE * 5 / 4);
    assert_eq!(trace.bbr.state, State::Up);
    let mut trace = Trace::up();
    trace.is_app_limited = true;
    trace.rounds(30, RATE);
    assert_eq!(trace.bbr.state, State::Up);
}

#[test]
fn up_ends_on_loss_with_what_was_in_flight_before() {
    let mut trace = Trace::up();
    trace.in_flight = BDP * 5 / 4;
    trace.round_with_losses(RATE, 10);
    assert_eq!(trace.bbr.state, State::Up, "2 % of 500 segments are 10");
    let mut trace = Trace::up();
    trace.in_flight = BDP * 5 / 4;
    trace.round_with_losses(RATE, 11);
    assert_eq!((trace.bbr.state, trace.bbr.cycle.was_too_high), (State::Down, true));
    let longterm = trace.bbr.model.inflight_longterm.unwrap();
    assert!((BDP..=BDP * 5 / 4).contains(&longterm), "{longterm}");
    // What stays free for others.
    assert_eq!(trace.bbr.inflight_with_headroom(), Some(longterm - longterm / 100 * 15));
}

#[test]
fn after_a_probe_that_was_too_high_the_next_one_is_short() {
    let mut trace = Trace::up();
    trace.in_flight = BDP * 5 / 4;
    trace.round_with_losses(RATE, 11);
    let longterm = trace.bbr.model.inflight_longterm.unwrap();
    (trace.in_flight, trace.phase) = (BDP / 2, Phase::Open);
    trace.bbr.on_recovery_end(trace.now);
    trace.rounds(2, RATE);
    trace.now = trace.now + 3001 * MS;
    trace.bbr.model.probe_rtt_min_at = trace.now;
    trace.rounds(2, RATE);
    assert_eq!(trace.bbr.state, State::Up);
    trace.in_flight = longterm;
    trace.round(RATE);
    assert_eq!(trace.bbr.state, State::Down);
    // No loss in a round: it probes again at once, and for longer.
    trace.round(RATE);
    assert_eq!(trace.bbr.state, State::Refill);
    trace.rounds(2, RATE);
    assert_eq!(trace.bbr.state, State::Up);
}

#[test]
fn the_long_term_limit_grows_by_one_two_four_segments() {
    let mut trace = Trace::up();
    let limit = trace.bbr.window - SEGMENT;
    trace.bbr.model.inflight_longterm = Some(limit);
    (trace.is_window_limited, trace.in_flight) = (true, limit / 2);
    let mut growth = [0; 4];
    for growth in &mut growth {
        let before = trace.bbr.model.inflight_longterm.unwrap();
        trace.bbr.window = before + SEGMENT;
        trace.round(before * 25);
        *growth = (trace.bbr.model.inflight_longterm.unwrap() - before) / SEGMENT;
    }
    assert!(growth.is_sorted() && growth[0] <= 2 && growth[3] >= 4, "{growth:?}");
}

#[test]
fn a_round_with_many_losses_lowers_the_short_term_model() {
    let mut trace = Trace::cruise();
    trace.rounds(2, RATE);
    // 2 % of the round is tolerated.
    trace.round_with_losses(RATE, 7);
    trace.round(RATE);
    assert_eq!(trace.bbr.model.bw(), RATE);
    // The most that the round before delivered is a bound, then 7/10.
    trace.round_with_losses(RATE / 2, 40);
    assert_eq!(trace.bbr.model.bw(), RATE);
    trace.round_with_losses(RATE / 2, 40);
    trace.rounds(2, RATE / 2);
    assert_eq!(trace.bbr.model.bw(), RATE / 10 * 7);
    assert!(trace.bbr.model.inflight_shortterm.is_some());
    // The next probe forgets it.
    trace.now = trace.now + 3001 * MS;
    trace.bbr.model.probe_rtt_min_at = trace.now;
    trace.round(RATE / 2);
    assert_eq!((trace.bbr.state, trace.bbr.model.bw()), (State::Refill, RATE));
}

#[test]
fn losses_without_a_queue_are_no_sign_of_a_probe_that_was_too_high() {
    let mut trace = Trace::cruise();
    // 3 % in each round, whatever is sent.
    for _ in 0..10 {
        trace.round_with_losses(RATE, 12);
    }
    trace.now = trace.now + 3001 * MS;
    trace.bbr.model.probe_rtt_min_at = trace.now;
    trace.round_with_losses(RATE, 12);
    let tolerated = trace.bbr.cycle.tolerated();
    assert!((20 + 2 * 25..=20 + 2 * 29).contains(&tolerated), "{tolerated}");
    trace.round_with_losses(RATE, 12);
    trace.in_flight = BDP * 5 / 4;
    trace.round_with_losses(RATE, 15);
    assert_eq!((trace.bbr.state, trace.bbr.cycle.was_too_high), (State::Up, false));
    trace.round_with_losses(RATE, 40);
    assert_eq!((trace.bbr.state, trace.bbr.cycle.was_too_high), (State::Down, true));
}

#[test]
fn probe_rtt_lasts_200_ms_and_a_round() {
    let mut trace = Trace::cruise();
    trace.rtt = RTT + MS;
    trace.now = trace.now + 2000 * MS;
    trace.rounds(3, RATE);
    trace.now = trace.now + 3100 * MS;
    trace.in_flight = BDP;
    trace.round(RATE);
    assert_eq!(trace.bbr.state, State::ProbeRtt);
    assert_eq!(trace.bbr.window_bytes(), trace.bbr.bdp(50));
    trace.in_flight = trace.bbr.bdp(50);
    trace.round(RATE / 2);
    let start = trace.now;
    while trace.now < start + 200 * MS {
        assert_eq!(trace.bbr.state, State::ProbeRtt);
        trace.round(RATE / 2);
    }
    trace.round(RATE / 2);
    assert_eq!(trace.bbr.state, State::Cruise);
    // What was seen in it lowers nothing, and the window is as before.
    assert_eq!(trace.bbr.model.bw(), RATE);
    assert!(trace.bbr.window_bytes() > BDP);
}

#[test]
fn probe_rtt_is_skipped_after_a_time_without_data() {
    let mut trace = Trace::cruise();
    trace.rtt = RTT + MS;
    trace.now = trace.now + 6000 * MS;
    trace.in_flight = 0;
    trace.bbr.on_idle_restart(trace.now, 6000 * MS, 200 * MS);
    assert_eq!(trace.pace_percent(), 99);
    trace.in_flight = BDP / 2;
    trace.round(RATE);
    assert_ne!(trace.bbr.state, State::ProbeRtt);
    // The round trip of after that is the smallest one now.
    assert_eq!(trace.bbr.model.probe_rtt_min_at, trace.now);
}

#[test]
fn a_timeout_leaves_a_segment_until_recovery_ends() {
    let mut trace = Trace::cruise();
    let before = trace.bbr.window_bytes();
    trace.bbr.on_timeout(trace.now, BDP, true);
    assert_eq!(trace.bbr.window_bytes(), SEGMENT);
    trace.bbr.on_timeout(trace.now, SEGMENT, false);
    trace.bbr.on_recovery_end(trace.now);
    assert_eq!(trace.bbr.window_bytes(), before);
}

#[test]
fn a_spurious_loss_returns_to_the_probe() {
    let mut trace = Trace::up();
    trace.in_flight = BDP * 5 / 4;
    trace.round_with_losses(RATE, 11);
    assert!(trace.bbr.state == State::Down && trace.bbr.model.inflight_longterm.is_some());
    trace.bbr.on_spurious(trace.now);
    assert_eq!((trace.bbr.state, trace.bbr.model.inflight_longterm), (State::Refill, None));
    let mut trace = Trace::new();
    trace.rounds(2, RATE);
    trace.in_flight = 2 * BDP;
    trace.round_with_losses(RATE, 17);
    trace.bbr.on_spurious(trace.now);
    assert_eq!((trace.bbr.state, trace.bbr.full_pipe.is_reached), (State::Startup, false));
}

#[test]
fn acknowledgements_that_arrive_together_widen_the_window() {
    let mut trace = Trace::cruise();
    let before = trace.bbr.model.extra_acked();
    // Two round trips' data at once, half of them late.
    let rate = RateSample {
        delivered_bytes: BDP,
        interval: RTT,
        prior_delivered: trace.delivered,
        total_delivered: trace.delivered + 2 * BDP,
        sent_in_flight: BDP,
        lost_bytes: 0,
        is_app_limited: false,
    };
    trace.now = trace.now + MS;
    trace.bbr.on_ack(&Ack { now: trace.now, rtt: Some(RTT), rate: Some(rate), in_flight: BDP, ..ack(2 * BDP) });
    let extra = trace.bbr.model.extra_acked();
    assert!(extra > before && extra > BDP, "{before} to {extra}");
    assert!(trace.bbr.window_bytes() > 2 * BDP, "{}", trace.bbr.window_bytes());
}

#[test]
fn a_bandwidth_is_forgotten_after_two_cycles() {
    let mut trace = Trace::cruise();
    let mut seen = [0; 3];
    for seen in &mut seen {
        trace.now = trace.now + 3001 * MS;
        trace.bbr.model.probe_rtt_min_at = trace.now;
        // Refill, Up until its plateau, Down, and the round that is still about the probe.
        trace.rounds(8, RATE / 2);
        assert_eq!(trace.bbr.state, State::Cruise);
        *seen = trace.bbr.model.max_bw();
    }
    assert_eq!(seen, [RATE, RATE / 2, RATE / 2]);
}

#[test]
fn offloads_have_three_quanta_in_flight() {
    let mut trace = Trace::new();
    trace.rtt = MS;
    trace.rounds(8, 5 * RATE);
    // Less than a millisecond's data in a quantum, but more than the path of a millisecond has.
    assert_eq!(trace.bbr.model.bdp(5 * RATE, 100), Some(50_000));
    assert_eq!(trace.bbr.inflight(), 3 * trace.bbr.quantum());
    assert!(trace.bbr.quantum() > 40_000);
}

#[test]
fn the_window_never_falls_below_four_segments() {
    let mut trace = Trace::cruise();
    for _ in 0..100 {
        trace.round_with_losses(SEGMENT * 25, 40);
    }
    assert!(trace.bbr.window_bytes() >= 4 * SEGMENT);
    assert!(trace.bbr.pacing_bytes_per_sec().unwrap() >= SEGMENT);
}
