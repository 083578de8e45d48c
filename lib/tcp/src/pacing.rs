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
