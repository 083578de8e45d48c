//! Time as a service sees it.

use core::fmt;
use core::ops::{Add, Sub};
use core::time::Duration;

/// Nanoseconds on the platform's monotonic clock. Zero is an arbitrary moment, usually the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(pub u64);

impl Instant {
    /// Time since `earlier`, zero if that is later.
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Instant) -> Duration {
        self.since(earlier)
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}.{:06} s", self.0 / 1_000_000_000, self.0 / 1000 % 1_000_000)
    }
}

/// Monotonic time and timers.
pub trait Clock {
    /// The time now. Never goes backwards.
    fn now(&self) -> Instant;

    /// Completes at `deadline` or a little later, never earlier; at once if it has passed.
    fn sleep_until(&self, deadline: Instant) -> impl Future<Output = ()> + 'static;

    /// Completes after `duration`.
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + 'static {
        self.sleep_until(self.now() + duration)
    }
}
