//! The simulated time, which does not pass while a task runs.

use crate::chance::Chance;
use core::cell::Cell;
use core::time::Duration;
use glass_api::Instant;
use std::rc::Rc;

/// Seconds from 1970 to 2000, and from 2000 to 2100: a world begins at any moment of that century.
const WALL_FIRST_SECS: u64 = 946_684_800;
const WALL_SPAN_SECS: u64 = 3_155_760_000;

/// Clones show the same time.
#[derive(Debug, Clone, Default)]
pub(crate) struct SimClock {
    now: Rc<Cell<Instant>>,
    /// Since 1970, when `now` was zero.
    wall_at_zero: Duration,
}

impl SimClock {
    /// At zero, at a time of day that follows from `seed`.
    pub(crate) fn new(seed: u64) -> SimClock {
        // A source of its own, so that everything else that is left to chance does not depend on it.
        let after_first = Duration::from_nanos(Chance::new(!seed).below(WALL_SPAN_SECS * 1_000_000_000));
        SimClock { now: Rc::default(), wall_at_zero: Duration::from_secs(WALL_FIRST_SECS) + after_first }
    }

    /// Time since 1970-01-01T00:00:00Z.
    pub(crate) fn wall(&self) -> Duration {
        self.wall_at_zero + self.now().since(Instant(0))
    }

    pub(crate) fn now(&self) -> Instant {
        self.now.get()
    }

    /// Moves on to `to`; never back.
    pub(crate) fn advance_to(&self, to: Instant) {
        self.now.set(self.now.get().max(to));
    }
}
