//! The world's time, which stands still while something runs.

use core::cell::Cell;
use glass_api::Instant;
use std::rc::Rc;

/// Clones show the same time.
#[derive(Debug, Clone, Default)]
pub(crate) struct SimClock {
    now: Rc<Cell<Instant>>,
}

impl SimClock {
    pub(crate) fn now(&self) -> Instant {
        self.now.get()
    }

    /// Moves on to `to`; never back.
    pub(crate) fn advance_to(&self, to: Instant) {
        self.now.set(self.now.get().max(to));
    }
}
