//! CUBIC against the formulas and the tables of RFC 9438.

use super::cubic::{Cubic, cube_root};
use super::tests::{SEGMENT, ack, start};
use super::{Ack, Control, Phase, Start};
use core::time::Duration;
use glass_api::Instant;
use std::vec::Vec;

const MS: Duration = Duration::from_millis(1);

/// A connection whose acknowledgements arrive in equal distances, a window in each round trip.
struct Trace {
    control: Cubic,
    rtt: Duration,
    now: Instant,
}

impl Trace {
    /// With a window of so many segments at which slow start has just ended by a loss.
    fn after_loss(segments: u64, rtt: Duration) -> Trace {
        let mut control = Cubic::new(&Start { rtt: Some(rtt), ..start() });
        let growth = segments * SEGMENT - control.window_bytes();
        control.on_ack(&Ack { rtt: Some(rtt), ..ack(growth) });
        assert_eq!(control.window_bytes(), segments * SEGMENT);
        control.on_recovery_start(Instant(0), segments * SEGMENT);
        Trace { control, rtt, now: Instant(0) }
    }

    fn segments(&self) -> f64 {
        self.control.window_bytes() as f64 / SEGMENT as f64
    }

    /// One segment is acknowledged.
    fn ack(&mut self) {
        let window = self.control.window_bytes();
        self.now = self.now + self.rtt.mul_f64(SEGMENT as f64 / window as f64);
        self.control.on_ack(&Ack { now: self.now, rtt: Some(self.rtt), ..ack(SEGMENT) });
    }

    fn until(&mut self, time: Duration) {
        while self.now < Instant(0) + time {
            self.ack();
        }
    }
}

#[test]
fn rfc9438_4_2_the_window_returns_after_k_and_stays_there() {
    let mut trace = Trace::after_loss(400, 100 * MS);
    assert_eq!(trace.segments(), 280.0);
    // K = cbrt((400 - 280) / 0.4) = 6.694 s.
    for (at_ms, expected) in
        [(2000, 358.7), (4000, 392.2), (6000, 399.9), (6694, 400.0), (8000, 400.9), (10_000, 414.5)]
    {
        trace.until(MS * at_ms);
        let error = (trace.segments() - expected).abs();
        // It follows the curve a round trip behind a target that is a round trip ahead.
        assert!(error < 1.0, "{} at {at_ms} ms, expected {expected}", trace.segments());
    }
}

#[test]
fn rfc9438_4_3_a_small_window_grows_as_renos() {
    let mut trace = Trace::after_loss(20, 10 * MS);
    assert_eq!(trace.segments(), 14.0);
    // 9/17 of a segment a round trip, for 10 round trips.
    trace.until(100 * MS);
    assert!((trace.segments() - (14.0 + 90.0 / 17.0)).abs() < 0.3, "{}", trace.segments());
    // From the window before the loss on, a segment a round trip.
    trace.until(120 * MS);
    let before = trace.segments();
    trace.until(220 * MS);
    assert!((trace.segments() - before - 10.0).abs() < 0.5, "{before} to {}", trace.segments());
}

#[test]
fn rfc9438_4_4_growth_in_a_round_trip_has_a_limit() {
    let mut trace = Trace::after_loss(20, 3000 * MS);
    // Long after the plateau the curve is steep: a target of 1.5 times the window at most.
    for _ in 0..6 {
        let (before, until) = (trace.segments(), trace.now + trace.rtt);
        while trace.now < until {
            trace.ack();
        }
        assert!(trace.segments() <= before * 1.7, "{before} to {}", trace.segments());
    }
    assert!(trace.segments() > 150.0, "{}", trace.segments());
}

#[test]
fn rfc9438_4_6_a_loss_leaves_seven_tenths_and_at_least_two_segments() {
    let mut control = Trace::after_loss(10, 40 * MS).control;
    assert_eq!(control.window_bytes(), 7 * SEGMENT);
    for _ in 0..10 {
        control.on_recovery_start(Instant(0), SEGMENT);
    }
    assert_eq!(control.window_bytes(), 2 * SEGMENT);
}

#[test]
fn rfc9438_4_6_nothing_grows_during_recovery() {
    let mut control = Trace::after_loss(10, 40 * MS).control;
    control.on_ack(&Ack { phase: Phase::Recovery, ..ack(9 * SEGMENT) });
    assert_eq!(control.window_bytes(), 7 * SEGMENT);
}

#[test]
fn rfc9438_4_7_flows_give_up_capacity() {
    let mut trace = Trace::after_loss(400, 100 * MS);
    // A second loss below the last goal: the next one is 0.85 of the window, 238 segments.
    trace.control.on_recovery_start(trace.now, 0);
    assert_eq!(trace.segments(), 196.0);
    // K = cbrt((238 - 196) / 0.4) = 4.718 s.
    trace.until(4718 * MS);
    assert!((trace.segments() - 238.0).abs() < 1.0, "{}", trace.segments());
}

#[test]
fn rfc9438_4_8_a_timeout_leaves_a_segment_and_a_flat_start() {
    let mut trace = Trace::after_loss(400, 1000 * MS);
    let rto = |trace: &mut Trace, is_first| {
        trace.control.on_timeout(trace.now, 0, is_first);
        trace.segments()
    };
    assert_eq!((rto(&mut trace, true), rto(&mut trace, false)), (1.0, 1.0));
    // Slow start to 0.7 of 280 segments.
    trace.control.on_ack(&Ack { phase: Phase::Loss, ..ack(1000 * SEGMENT) });
    assert_eq!(trace.segments(), 196.0);
    // K is 0: after five seconds 0.4 * 5^3 segments more, or a little more because the target is a round trip ahead.
    trace.ack();
    trace.until(trace.now.since(Instant(0)) + 5000 * MS);
    assert!((trace.segments() - 246.0).abs() < 8.0, "{}", trace.segments());
}

#[test]
fn rfc9438_4_9_what_a_spurious_loss_took_is_restored() {
    let mut trace = Trace::after_loss(400, 100 * MS);
    trace.until(1000 * MS);
    let before = trace.control;
    trace.control.on_recovery_start(trace.now, 0);
    assert!(trace.control.window_bytes() < before.window_bytes());
    trace.control.on_spurious(trace.now);
    assert_eq!(trace.control.window_bytes(), before.window_bytes());
    // The curve too, and only once.
    let mut other = Trace { control: before, ..trace };
    trace.until(3000 * MS);
    other.until(3000 * MS);
    assert_eq!(trace.control.window_bytes(), other.control.window_bytes());
    trace.control.on_spurious(trace.now);
    assert_eq!(trace.control.window_bytes(), other.control.window_bytes());
}

#[test]
fn rfc9438_4_10_slow_start_ends_without_a_loss() {
    let mut control = Cubic::new(&start());
    let mut windows = Vec::new();
    for round in 0..40 {
        let rtt = if round < 5 { 40 * MS } else { 80 * MS };
        let segments = control.window_bytes() / SEGMENT;
        for index in 0..segments {
            let now = Instant(0) + 80 * MS * round + Duration::from_micros(index);
            control.on_ack(&Ack { now, rtt: Some(rtt), is_round_start: index == 0, ..ack(SEGMENT) });
        }
        windows.push(control.window_bytes() / SEGMENT);
    }
    // Five doublings, then five rounds of a quarter more, then hardly anything.
    assert_eq!(windows[..5], [20, 40, 80, 160, 320]);
    assert!(windows[9] < 320 * 4 && windows[9] > 320 * 2, "{windows:?}");
    assert!(windows[20] < windows[10] + 30, "{windows:?}");
}

#[test]
fn rfc9438_5_2_the_mean_window_is_that_of_the_table() {
    // Tables 1 and 2: loss rate, mean windows of CUBIC at round trips of 0.1 and 0.01 s.
    for (rtt, loss_every, expected) in [
        (100 * MS, 1_000, 36.0),
        (100 * MS, 10_000, 187.0),
        (100 * MS, 100_000, 1054.0),
        (10 * MS, 10_000, 120.0),
        (10 * MS, 1_000_000, 1200.0),
    ] {
        let mut trace = Trace::after_loss(expected as u64, rtt);
        let (mut sum, mut count) = (0.0, 0_u64);
        for sent in 1..loss_every * 30 {
            trace.ack();
            if sent % loss_every == 0 {
                trace.control.on_recovery_start(trace.now, 0);
            }
            // A mean over time: an acknowledgement takes a share of a round trip.
            if sent > loss_every * 10 {
                sum += 1.0 / trace.segments();
                count += 1;
            }
        }
        let mean = count as f64 / sum;
        assert!(
            (0.8..1.25).contains(&(mean / expected)),
            "{mean} at 1 / {loss_every} and {rtt:?}, expected {expected}"
        );
    }
}

#[test]
fn rfc9438_5_8_time_without_use_is_not_part_of_the_curve() {
    let mut trace = Trace::after_loss(400, 100 * MS);
    trace.until(1000 * MS);
    let mut other = Trace { ..trace };
    // Ten seconds in which little is sent.
    for _ in 0..10 {
        trace.now = trace.now + 1000 * MS;
        trace.control.on_ack(&Ack { now: trace.now, is_window_limited: false, ..ack(SEGMENT) });
    }
    assert_eq!(trace.control.window_bytes(), other.control.window_bytes());
    (0..2000).for_each(|_| trace.ack());
    (0..2000).for_each(|_| other.ack());
    assert!(trace.segments() - other.segments() < 1.0, "{} and {}", trace.segments(), other.segments());
}

#[test]
fn rfc2861_a_window_that_rests_is_halved_for_each_timeout() {
    let control = Trace::after_loss(400, 100 * MS).control;
    let after = |idle| {
        let mut control = control;
        control.on_idle_restart(Instant(0), idle, 300 * MS);
        control.window_bytes() / SEGMENT
    };
    assert_eq!([100 * MS, 300 * MS, 900 * MS, 100_000 * MS].map(after), [280, 140, 35, 10]);
}

#[test]
fn sending_is_paced_where_a_round_trip_is_long() {
    let rate = |rtt| Trace::after_loss(10, rtt).control.pacing_bytes_per_sec();
    // 1.2 windows of 7 segments in 40 ms.
    assert_eq!(rate(40 * MS), Some(8400 * 25));
    assert_eq!(rate(MS), None);
    // In slow start two windows of ten.
    assert_eq!(Cubic::new(&start()).pacing_bytes_per_sec(), Some(20_000 * 25));
}

#[test]
fn a_cube_root_is_exact() {
    for root in [0_u64, 1, 2, 3, 10, 4217, 6_694_330, 1 << 32, (1 << 42) - 1] {
        let cube = u128::from(root).pow(3);
        assert_eq!(cube_root(cube), root);
        assert_eq!(cube_root(cube + 1), if root == 0 { 1 } else { root });
        assert_eq!(cube_root(cube.saturating_sub(1)), root.saturating_sub(1));
    }
    assert_eq!(cube_root(u128::MAX), 6_981_463_658_331);
}
