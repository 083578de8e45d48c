//! Whole connections over long paths: how much of them they use, with each congestion control.

use crate::common::{Bottleneck, Net, Path, settings};
use glass_lib_tcp::Settings;
use glass_lib_tcp::congestion::Kind;
use std::time::Duration;

const DELAY: Duration = Duration::from_millis(20);
pub const TIME: Duration = Duration::from_secs(15);
/// More than a bandwidth-delay product of all paths, with their queues.
const BUFFER_BYTES: usize = 8 << 20;
/// Payload of a segment with timestamps, and its Ethernet frame.
pub const SHARE_OF_PAYLOAD: f64 = 1448.0 / 1514.0;

/// What the path does: its rate, its queue in bandwidth-delay products, and of a thousand segments the lost and the late ones.
#[derive(Debug, Clone, Copy)]
pub struct Conditions {
    pub mbit: u64,
    pub queue: f64,
    pub loss: u32,
    pub late: u32,
    /// In each direction.
    pub delay: Duration,
    /// How long the sender does other things before it receives what has arrived.
    pub busy: Duration,
    pub seed: u64,
}

/// 100 Mbit/s with a queue of one bandwidth-delay product.
pub const GOOD: Conditions =
    Conditions { mbit: 100, queue: 1.0, loss: 0, late: 0, delay: DELAY, busy: Duration::ZERO, seed: 1 };

/// The share of the path that one connection uses from its start on.
pub fn share(kind: Kind, conditions: Conditions) -> f64 {
    let Conditions { mbit, queue, loss, late, delay, busy, seed } = conditions;
    let path = Path { delay, jitter: Duration::ZERO, loss, duplication: 0 };
    let own = Settings { receive_bytes: BUFFER_BYTES, send_bytes: BUFFER_BYTES, congestion: kind, seed, ..settings() };
    let mut net = Net::new(seed, path, [own, own]);
    (net.frame_bytes, net.busy) = (64 << 10, busy);
    net.bottleneck = Some(Bottleneck::new(mbit * 1_000_000, (2 * delay).mul_f64(queue), late));
    net.send(0);
    let end = net.now + TIME;
    let data = vec![7; 256 << 10];
    let mut received = 0;
    while net.now < end {
        if let Some(sender) = net.connection(0) {
            while sender.space() >= data.len() {
                sender.write(&data);
            }
        }
        net.step(end);
        received += net.connection(1).map_or(0, |receiver| receiver.skip(usize::MAX));
        net.send(1);
    }
    received as f64 * 8.0 / TIME.as_secs_f64() / (mbit as f64 * 1e6 * SHARE_OF_PAYLOAD)
}

#[test]
fn a_bottleneck_is_filled() {
    for kind in [Kind::Cubic, Kind::Bbr] {
        for mbit in [20, 100] {
            for queue in [0.5, 1.0, 4.0] {
                let share = share(kind, Conditions { mbit, queue, ..GOOD });
                assert!(share >= 0.95, "{kind:?} has {share:.3} of {mbit} Mbit/s with a queue of {queue}");
            }
        }
    }
}

#[test]
fn random_losses_do_not_slow_bbr_down() {
    for (loss, least) in [(1, 0.92), (10, 0.9), (30, 0.8)] {
        for mbit in [20, 100] {
            for seed in 1..=2 {
                let share = share(Kind::Bbr, Conditions { mbit, loss, seed, ..GOOD });
                assert!(share >= least, "{share:.3} of {mbit} Mbit/s with {loss} of 1000 lost and seed {seed}");
            }
        }
    }
}

#[test]
fn random_losses_leave_cubic_what_its_formula_has() {
    for loss in [1, 10, 30] {
        // RFC 9438, section 5.1: in Reno's region the square root of 3/2 divided by the loss rate, in segments a round trip.
        let expected = (1500.0 / f64::from(loss)).sqrt() * 1448.0 * 8.0 / 0.04 / (100e6 * SHARE_OF_PAYLOAD);
        for seed in 1..=2 {
            let ratio = share(Kind::Cubic, Conditions { loss, seed, ..GOOD }) / expected;
            assert!((0.75..1.7).contains(&ratio), "{ratio:.2} of the formula with {loss} of 1000 lost and seed {seed}");
        }
    }
}

#[test]
fn reordering_costs_little() {
    // A sender that is busy receives what shows a loss and what shows that there was none before it can retransmit. With a tenth of the segments that
    // happens while its window is small.
    for (kind, busy_ms, late) in [(Kind::Cubic, 0, 10), (Kind::Cubic, 2, 100), (Kind::Bbr, 0, 10), (Kind::Bbr, 2, 100)]
    {
        for seed in 1..=2 {
            let conditions = Conditions { busy: Duration::from_millis(busy_ms), seed, ..GOOD };
            let [in_order, reordered] = [0, late].map(|late| share(kind, Conditions { late, ..conditions }));
            assert!(reordered >= 0.9 * in_order, "{kind:?}: {reordered:.3} instead of {in_order:.3}: {conditions:?}");
        }
    }
}

/// How long so many bytes take over a path of 1 ms whose router drops packets of more than 1300 bytes, and reports that or not; and the longest packet
/// that has passed.
fn over_a_short_mtu(
    kind: Kind,
    reports: Option<u16>,
    bottleneck: Option<Bottleneck>,
    bytes: usize,
) -> (Duration, usize) {
    let path = Path { delay: Duration::from_micros(500), jitter: Duration::ZERO, loss: 0, duplication: 0 };
    let own = Settings { receive_bytes: BUFFER_BYTES, send_bytes: BUFFER_BYTES, congestion: kind, ..settings() };
    let mut net = Net::new(1, path, [own, own]);
    (net.frame_bytes, net.longest, net.reports, net.bottleneck) = (64 << 10, 1280, reports, bottleneck);
    net.send(0);
    let (start, end) = (net.now, net.now + Duration::from_secs(60));
    let (data, mut written, mut received) = (vec![7; bytes], 0, 0);
    while received < bytes && net.now < end {
        if let Some(sender) = net.connection(0) {
            written += sender.write(&data[written..]);
        }
        net.send(0);
        net.step(end);
        received += net.connection(1).map_or(0, |receiver| receiver.skip(usize::MAX));
        net.send(1);
    }
    (net.now.since(start), net.longest_passed + 20)
}

#[test]
fn a_short_mtu_costs_a_moment() {
    for kind in [Kind::Cubic, Kind::Bbr] {
        let [reported, silent] = [Some(1260), None].map(|reports| over_a_short_mtu(kind, reports, None, 3_000_000).0);
        assert!(reported < Duration::from_millis(50), "{kind:?}: {reported:?}");
        // A timeout, and a slow start from one segment.
        assert!(silent < Duration::from_millis(500), "{kind:?}: {silent:?}");
    }
}

#[test]
fn the_longest_packets_of_a_silent_path_are_found() {
    for kind in [Kind::Cubic, Kind::Bbr] {
        let bottleneck = Bottleneck::new(100_000_000, Duration::from_millis(2), 0);
        let (time, longest) = over_a_short_mtu(kind, None, Some(bottleneck), 12_000_000);
        // The search costs no rate: of 100 Mbit/s the payload has 0.92, after the timeout.
        assert!(time < Duration::from_millis(1300), "{kind:?}: {time:?}");
        assert!((1300 - 16..=1300).contains(&longest), "{kind:?}: {longest}");
    }
}
