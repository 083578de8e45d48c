//! Time as a service sees it.

use crate::WallTime;
use core::fmt;
use core::future::poll_fn;
use core::ops::{Add, Sub};
use core::pin::pin;
use core::task::Poll;
use core::time::Duration;

/// Nanoseconds on the platform's monotonic clock. Zero is an arbitrary moment, usually the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(pub u64);

impl Instant {
    /// Time from `earlier` to `self`; zero if `earlier` is later.
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

/// The time limit was reached before the future completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimedOut;

impl fmt::Display for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "the operation timed out")
    }
}

impl core::error::Error for TimedOut {}

/// Monotonic time, timers, and the time of day.
pub trait Clock {
    /// The time now. Never goes backwards.
    fn now(&self) -> Instant;

    /// Completes at `deadline` or a little later, never earlier. If the deadline has passed, it completes in the next round of the
    /// executor.
    fn sleep_until(&self, deadline: Instant) -> impl Future<Output = ()> + 'static;

    /// Completes after `duration`.
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + 'static {
        self.sleep_until(self.now() + duration)
    }

    /// Returns the output of `future`. If it is not ready after `duration`, drops `future` and returns [`TimedOut`].
    ///
    /// ```
    /// # use glass_api::{Clock, NetError, Stream};
    /// # use core::time::Duration;
    /// async fn greeting(clock: impl Clock, mut peer: impl Stream) -> Result<Vec<u8>, NetError> {
    ///     let mut buf = [0; 100];
    ///     match clock.timeout(Duration::from_secs(5), peer.read(&mut buf)).await {
    ///         Ok(count) => Ok(buf[..count?].to_vec()),
    ///         Err(_) => Err(NetError::TimedOut),
    ///     }
    /// }
    /// ```
    async fn timeout<T>(&self, duration: Duration, future: impl Future<Output = T>) -> Result<T, TimedOut> {
        self.timeout_at(self.now() + duration, future).await
    }

    /// Like [`Clock::timeout`], with a deadline. If `future` is ready at the deadline, its output is returned.
    async fn timeout_at<T>(&self, deadline: Instant, future: impl Future<Output = T>) -> Result<T, TimedOut> {
        let (mut future, mut end) = (pin!(future), pin!(self.sleep_until(deadline)));
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Ok(value)),
            Poll::Pending => end.as_mut().poll(context).map(|()| Err(TimedOut)),
        })
        .await
    }

    /// The time of day, from the best clock that the platform has, which it names; `None` if it has none. In a VM the
    /// source is read at most once a minute, so a change of the host's clock can be noticed a minute late.
    fn wall(&self) -> Option<WallTime> {
        None
    }
}
