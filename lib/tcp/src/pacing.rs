//! When the next segment may be sent.

use core::time::Duration;
use glass_api::Instant;

/// The clock of one connection.
#[derive(Debug, Default)]
pub struct Pacing {
    /// All that was sent before is sent at the wanted rate by then.
    due: Instant,
}

impl Pacing {
    /// When the next segment may be sent, of at most `burst` bytes. `None`: now.
    pub fn release(&self, now: Instant, rate: Option<u64>, burst: u64) -> Option<Instant> {
        let ahead = time_of(burst, rate?);
        let at = Instant(self.due.0.saturating_sub(ahead.as_nanos() as u64));
        (at > now).then_some(at)
    }

    /// `bytes` are sent now.
    pub fn sends(&mut self, now: Instant, bytes: u64, rate: Option<u64>) {
        if let Some(rate) = rate {
            self.due = self.due.max(now) + time_of(bytes, rate);
        }
    }
}

/// How long so many bytes take.
fn time_of(bytes: u64, rate: u64) -> Duration {
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_released_and_then_as_much_as_the_rate_has() {
        let (mut pacing, rate, start) = (Pacing::default(), Some(1_000_000), Instant(1_000_000_000));
        let at = |millis: u64| start + Duration::from_millis(millis);
        for _ in 0..3 {
            assert_eq!(pacing.release(start, rate, 2000), None);
            pacing.sends(start, 1000, rate);
        }
        // Three milliseconds' bytes are sent, and two may be at once.
        assert_eq!(pacing.release(start, rate, 2000), Some(at(1)));
        assert_eq!(pacing.release(at(1), rate, 2000), None);
        // What was not used is not saved.
        pacing.sends(at(50), 1000, rate);
        assert_eq!(
            (pacing.release(at(50), rate, 500), pacing.release(start, None, 1)),
            (Some(Instant(at(50).0 + 500_000)), None)
        );
    }
}
