//! When slow start ends without a loss: HyStart++ (RFC 9406). A round trip that takes longer than the one before shows a queue; growth is slower
//! from then on, until that has been so for five round trips, or was a mistake.
//!
//! The limit *L* of section 4.2 is that of paced connections, infinite: ours are paced wherever a burst could matter.

use super::Ack;
use core::time::Duration;

/// Limits of the increase that counts as a queue (section 4.3).
const MIN_RTT_THRESHOLD: Duration = Duration::from_millis(4);
const MAX_RTT_THRESHOLD: Duration = Duration::from_millis(16);
const MIN_RTT_DIVISOR: u32 = 8;
/// Samples of a round trip before it is judged.
const SAMPLES_MIN: u32 = 8;
/// In conservative slow start the window grows by this part.
const CONSERVATIVE_DIVISOR: u64 = 4;
/// Round trips of conservative slow start.
const CONSERVATIVE_ROUNDS: u32 = 5;

/// The state of slow start.
#[derive(Debug, Clone, Copy, Default)]
pub struct HyStart {
    /// The smallest round trips of the last round and of this one.
    last_min: Option<Duration>,
    current_min: Option<Duration>,
    samples: u32,
    conservative: Option<Conservative>,
}

#[derive(Debug, Clone, Copy)]
struct Conservative {
    /// The smallest round trip of the round in which it began.
    baseline: Duration,
    /// Rounds since then, the one in which it began included.
    rounds: u32,
}

/// What slow start does with one acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Growth {
    /// By how many bytes the window grows.
    pub bytes: u64,
    /// Slow start is over after that.
    pub is_last: bool,
}

impl HyStart {
    /// The growth for an acknowledgement in slow start.
    pub fn on_ack(&mut self, ack: &Ack) -> Growth {
        let mut is_last = false;
        if ack.is_round_start {
            self.last_min = self.current_min.take();
            self.samples = 0;
            if let Some(conservative) = &mut self.conservative {
                conservative.rounds += 1;
                is_last = conservative.rounds >= CONSERVATIVE_ROUNDS;
            }
        }
        if let Some(rtt) = ack.rtt {
            self.current_min = Some(self.current_min.map_or(rtt, |min| min.min(rtt)));
            self.samples += 1;
        }
        self.judge();
        let divisor = if self.conservative.is_some() { CONSERVATIVE_DIVISOR } else { 1 };
        Growth { bytes: ack.delivered_bytes / divisor, is_last }
    }

    fn judge(&mut self) {
        let (Some(current), true) = (self.current_min, self.samples >= SAMPLES_MIN) else { return };
        match (self.conservative, self.last_min) {
            (None, Some(last)) => {
                let threshold = (last / MIN_RTT_DIVISOR).clamp(MIN_RTT_THRESHOLD, MAX_RTT_THRESHOLD);
                if current >= last + threshold {
                    self.conservative = Some(Conservative { baseline: current, rounds: 0 });
                }
            }
            // The increase was not a queue.
            (Some(Conservative { baseline, .. }), _) if current < baseline => self.conservative = None,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::ack;
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A round of so many acknowledgements of 1000 bytes, each with this round trip. Returns the growth, and whether slow start ended.
    fn round(slow_start: &mut HyStart, rtt: Duration, acks: u32) -> (u64, bool) {
        let (mut bytes, mut is_last) = (0, false);
        for index in 0..acks {
            let growth = slow_start.on_ack(&Ack { rtt: Some(rtt), is_round_start: index == 0, ..ack(1000) });
            bytes += growth.bytes;
            is_last |= growth.is_last;
        }
        (bytes, is_last)
    }

    #[test]
    fn rfc9406_4_2_without_a_queue_the_window_doubles() {
        let mut slow_start = HyStart::default();
        for acks in [10, 20, 40, 80, 160] {
            assert_eq!(round(&mut slow_start, 40 * MS, acks), (u64::from(acks) * 1000, false));
        }
    }

    #[test]
    fn rfc9406_4_2_a_longer_round_trip_slows_growth_for_five_rounds() {
        let mut slow_start = HyStart::default();
        round(&mut slow_start, 40 * MS, 20);
        // An eighth of 40 ms; seen with the eighth sample.
        assert_eq!(round(&mut slow_start, 45 * MS, 20), (7 * 1000 + 13 * 250, false));
        for _ in 0..4 {
            assert_eq!(round(&mut slow_start, 46 * MS, 20), (20 * 250, false));
        }
        assert_eq!(round(&mut slow_start, 46 * MS, 20), (20 * 250, true));
    }

    #[test]
    fn rfc9406_4_2_growth_resumes_when_the_queue_was_none() {
        let mut slow_start = HyStart::default();
        round(&mut slow_start, 40 * MS, 20);
        round(&mut slow_start, 50 * MS, 20);
        assert_eq!(round(&mut slow_start, 41 * MS, 20), (7 * 250 + 13 * 1000, false));
        assert_eq!(round(&mut slow_start, 41 * MS, 20), (20 * 1000, false));
    }

    #[test]
    fn rfc9406_4_3_the_threshold_has_limits() {
        let is_slowed = |first: Duration, second| {
            let mut slow_start = HyStart::default();
            round(&mut slow_start, first, 20);
            round(&mut slow_start, second, 20).0 < 20_000
        };
        // At least 4 ms, at most 16.
        assert_eq!([is_slowed(8 * MS, 11 * MS), is_slowed(8 * MS, 12 * MS)], [false, true]);
        assert_eq!([is_slowed(400 * MS, 415 * MS), is_slowed(400 * MS, 416 * MS)], [false, true]);
    }

    #[test]
    fn rfc9406_4_2_few_samples_prove_nothing() {
        let mut slow_start = HyStart::default();
        round(&mut slow_start, 40 * MS, 20);
        assert_eq!(round(&mut slow_start, 90 * MS, 7), (7000, false));
    }
}
