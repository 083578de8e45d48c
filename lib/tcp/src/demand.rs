//! How fast received data is read, for the length of the receive buffer: dynamic right-sizing, as Linux's.

use core::time::Duration;
use glass_api::Instant;

/// The shortest time in which reading is measured. In less, a busy host may not run a thread of the peer or of a device.
const PERIOD_MIN: Duration = Duration::from_millis(4);

/// What is known of it.
#[derive(Debug, Default)]
pub struct Demand {
    /// When the measurement began, and how many bytes had been read by then.
    begin: Option<(Instant, u64)>,
    is_short: bool,
}

impl Demand {
    /// `read` bytes have been read since the connection began. A buffer of `limit` bytes of which half is read within one round trip is too short: the peer's
    /// window may be twice as large at the next one.
    pub fn update(&mut self, now: Instant, read: u64, limit: u64, round_trip: Duration) {
        let (begin, before) = *self.begin.get_or_insert((now, read));
        let is_within = now.since(begin) <= round_trip.max(PERIOD_MIN);
        let is_half = 2 * (read - before) >= limit;
        self.is_short |= is_within && is_half;
        if !is_within || is_half {
            self.begin = Some((now, read));
        }
    }

    /// Whether the buffer is too short.
    pub fn is_short(&self) -> bool {
        self.is_short
    }

    /// The buffer is longer, or there is no memory for that: only what is read from now on counts.
    pub fn clear(&mut self) {
        self.is_short = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When a buffer of 1000 bytes is too short of which `bytes` are read every `pause`, at a round trip of 40 ms.
    fn is_short(bytes: u64, pause: Duration) -> bool {
        let (mut demand, mut now) = (Demand::default(), Instant(0));
        for step in 0..100 {
            demand.update(now, step * bytes, 1000, Duration::from_millis(40));
            now = now + pause;
        }
        demand.is_short()
    }

    #[test]
    fn a_buffer_is_short_of_which_half_is_read_in_a_round_trip() {
        // Windows of 1000 and 500 bytes at once, and as a stream.
        assert!(is_short(1000, Duration::from_millis(40)) && is_short(500, Duration::from_millis(40)));
        assert!(is_short(130, Duration::from_millis(10)));
        assert!(!is_short(490, Duration::from_millis(41)) && !is_short(100, Duration::from_millis(10)));
        assert!(!is_short(0, Duration::from_millis(1)), "nothing is read");
    }

    #[test]
    fn a_short_round_trip_is_measured_for_four_milliseconds() {
        let mut demand = Demand::default();
        for (ms, read) in [(0, 0), (3, 300), (4, 500)] {
            demand.update(Instant(ms * 1_000_000), read, 1000, Duration::from_micros(100));
        }
        assert!(demand.is_short());
        demand.clear();
        demand.update(Instant(9_000_000), 1000, 2000, Duration::from_micros(100));
        assert!(!demand.is_short());
    }
}
