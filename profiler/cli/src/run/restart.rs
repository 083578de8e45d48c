//! `glass run --restart`: starts a service again that has failed.

use std::time::{Duration, Instant};

/// Before the first new start, and before any.
const DELAY_MIN: Duration = Duration::from_millis(500);
const DELAY_MAX: Duration = Duration::from_secs(60);
/// A service that ran for so long ran well: what ends it then is another failure.
const RAN_WELL: Duration = Duration::from_secs(60);

/// How long to wait before the next start: twice as long after each failure.
pub(super) struct Delays {
    next: Duration,
    started: Instant,
}

impl Delays {
    pub(super) fn new() -> Delays {
        Delays { next: DELAY_MIN, started: Instant::now() }
    }

    /// The service starts now.
    pub(super) fn started(&mut self) {
        self.started = Instant::now();
    }

    /// Whether it has run for so long that it can run.
    pub(super) fn has_run_well(&self) -> bool {
        self.started.elapsed() >= RAN_WELL
    }

    /// The service has failed: how long to wait.
    pub(super) fn after_failure(&mut self) -> Duration {
        self.after(self.started.elapsed())
    }

    fn after(&mut self, ran: Duration) -> Duration {
        if ran >= RAN_WELL {
            self.next = DELAY_MIN;
        }
        let delay = self.next;
        self.next = (delay * 2).min(DELAY_MAX);
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_a_limit_and_begin_anew_after_a_good_run() {
        let mut delays = Delays::new();
        let short: Vec<u128> = (0..10).map(|_| delays.after(Duration::from_secs(1)).as_millis()).collect();
        assert_eq!(short, [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000, 60_000]);
        assert_eq!(delays.after(RAN_WELL), DELAY_MIN);
        assert_eq!(delays.after(Duration::ZERO), DELAY_MIN * 2);
    }
}
