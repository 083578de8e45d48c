//! Round trips and the retransmission timeout (RFC 6298).

use core::time::Duration;
use glass_api::Instant;

/// The timeout before the first measurement (section 2.1).
const RTO_INITIAL: Duration = Duration::from_secs(1);
/// The least that the timeout is longer than the round trip, so the least timeout too: peers delay acknowledgements as long. (RFC 6298 has
/// 1 s; Linux has this.)
const VARIANCE_MIN: Duration = Duration::from_millis(200);
/// The longest timeout (section 2.4).
const RTO_MAX: Duration = Duration::from_secs(60);
/// Timeouts double so often at most: 200 ms become more than a minute.
const BACKOFF_MAX: u32 = 10;
/// The smallest round trip is that of one or two of these periods.
const MIN_PERIOD: Duration = Duration::from_secs(5);

/// The estimator of one connection.
#[derive(Debug, Default)]
pub struct RoundTrip {
    /// Smoothed round trip and its variation, once one was measured.
    smoothed: Option<(Duration, Duration)>,
    backoff: u32,
    /// The smallest round trip of this period, and of the one before.
    min: Option<Duration>,
    min_before: Option<Duration>,
    period_started: Instant,
}

impl RoundTrip {
    /// A round trip was measured (section 2.2 and 2.3).
    pub fn sample(&mut self, now: Instant, rtt: Duration) {
        self.smoothed = Some(match self.smoothed {
            None => (rtt, rtt / 2),
            Some((smoothed, variation)) => {
                let difference = smoothed.abs_diff(rtt);
                ((smoothed * 7 + rtt) / 8, (variation * 3 + difference) / 4)
            }
        });
        self.backoff = 0;
        self.note_min(now, rtt);
    }

    /// Notes a round trip that is not used for the timeout.
    pub fn note_min(&mut self, now: Instant, rtt: Duration) {
        if now.since(self.period_started) >= MIN_PERIOD {
            (self.min_before, self.min, self.period_started) = (self.min, None, now);
        }
        self.min = Some(self.min.map_or(rtt, |min| min.min(rtt)));
    }

    /// The smoothed round trip.
    pub fn smoothed(&self) -> Option<Duration> {
        self.smoothed.map(|(smoothed, _)| smoothed)
    }

    /// The smallest round trip of the last five to ten seconds in which some were measured.
    pub fn min(&self) -> Option<Duration> {
        self.min.into_iter().chain(self.min_before).min()
    }

    /// The timeout now.
    pub fn timeout(&self) -> Duration {
        let base = match self.smoothed {
            None => RTO_INITIAL,
            Some((smoothed, variation)) => smoothed + (4 * variation).max(VARIANCE_MIN),
        };
        (base * (1 << self.backoff)).min(RTO_MAX)
    }

    /// It has expired (section 5.5).
    pub fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
    }

    /// How often the timeout was doubled.
    pub fn backoff(&self) -> u32 {
        self.backoff
    }

    /// Something new was acknowledged, so the peer can be reached: the next timeout is not doubled any more.
    pub fn forgive(&mut self) {
        self.backoff = 0;
    }
}
