//! CUBIC (RFC 9438): after a loss the window returns to what it was along a cubic curve of time, stays there for a while, then probes for more.
//!
//! Slow start ends by HyStart++ (RFC 9406). The window at a loss is the congestion window, not what is in flight (section 4.6 permits it, because
//! the window grows only while it limits the sender). All arithmetic is that of integers: bytes and microseconds.

use super::hystart::HyStart;
use super::{Ack, Control, MIN_SEGMENTS, Phase, Start, initial_window};
use core::time::Duration;
use glass_api::Instant;

/// A loss leaves 7/10 of the window (section 4.6).
const BETA: (u64, u64) = (7, 10);
/// If flows give up capacity, the next one's goal is 17/20 of the window: (1 + beta) / 2 (section 4.7).
const FAST_CONVERGENCE: (u64, u64) = (17, 20);
/// C is 4/10 of a segment per cubic second (section 5.1).
const C: (u128, u128) = (4, 10);
/// Growth of Reno that has the same mean window: 3 * (1 - beta) / (1 + beta) segments a round trip (section 4.3).
const ALPHA: (u128, u128) = (9, 17);
/// Cubic microseconds in a cubic second.
const CUBIC_US: u128 = 1_000_000_000_000_000_000;
/// Longer times are treated as this; the curve has left every window behind by then.
const TIME_MAX_US: u64 = 3_600_000_000;
/// Sending is paced if a round trip takes longer: in a local network bursts are short, and timers cost more than they help.
const PACED_FROM: Duration = Duration::from_millis(2);
/// The rate is that of the window in a smoothed round trip, times two in slow start, and a fifth more later, so that it never limits.
const PACING_GAIN_SLOW_START: (u64, u64) = (2, 1);
const PACING_GAIN: (u64, u64) = (6, 5);

/// See the module's description.
#[derive(Debug, Clone, Copy)]
pub struct Cubic {
    segment_bytes: u64,
    smoothed_rtt: Option<Duration>,
    slow_start: HyStart,
    state: State,
    /// The state before the last reduction (section 4.9).
    before: Option<State>,
}

/// What a reduction changes, and what a spurious one restores.
#[derive(Debug, Clone, Copy)]
struct State {
    window: u64,
    /// Slow start ends here.
    threshold: u64,
    /// `W_max`: the window just before the last reduction, or less by fast convergence. 0 before the first.
    goal: u64,
    /// The window at the last reduction (`cwnd_prior`).
    prior: u64,
    /// The present stage of congestion avoidance.
    curve: Option<Curve>,
    /// The last reduction was a timeout, or slow start ended without one: the next curve starts at its plateau.
    starts_flat: bool,
}

/// A stage of congestion avoidance.
#[derive(Debug, Clone, Copy)]
struct Curve {
    /// Time that the sender did not use its window is not part of it (section 5.8).
    start: Instant,
    updated: Instant,
    /// `W_max` and `K`, in microseconds.
    goal: u64,
    k_us: u64,
    /// `W_est`: the window of Reno.
    reno: u64,
    /// What was too little for a byte: of `reno`, and of the window.
    reno_rest: u128,
    rest: u128,
}

impl Cubic {
    /// For a connection that has just opened.
    pub fn new(start: &Start) -> Cubic {
        let segment_bytes = start.segment_bytes.max(1);
        let window = initial_window(segment_bytes);
        let state = State { window, threshold: u64::MAX, goal: 0, prior: 0, curve: None, starts_flat: true };
        Cubic { segment_bytes, smoothed_rtt: start.rtt, slow_start: HyStart::default(), state, before: None }
    }

    fn min(&self) -> u64 {
        MIN_SEGMENTS * self.segment_bytes
    }

    /// The common part of all reductions (sections 4.6 to 4.8).
    fn reduce(&mut self, after_timeout: bool) {
        self.before = Some(self.state);
        let State { window, goal, .. } = self.state;
        self.state.goal = if window < goal { scaled(window, FAST_CONVERGENCE) } else { window };
        self.state.prior = window;
        self.state.threshold = scaled(window, BETA).max(self.min());
        self.state.curve = None;
        self.state.starts_flat = after_timeout;
    }

    fn avoid_congestion(&mut self, ack: &Ack) {
        let segment_bytes = self.segment_bytes;
        let rtt = self.smoothed_rtt.unwrap_or_default();
        let state = &mut self.state;
        let window = state.window;
        let curve = state
            .curve
            .get_or_insert_with(|| Curve::new(ack.now, state.goal, window, state.starts_flat, segment_bytes));
        let idle = if ack.is_window_limited { Duration::ZERO } else { ack.now.since(curve.updated) };
        curve.start = curve.start + idle;
        curve.updated = ack.now;
        if !ack.is_window_limited {
            return;
        }
        curve.grow_reno(ack.delivered_bytes, window, state.prior, segment_bytes);
        let elapsed = ack.now.since(curve.start);
        if curve.at(elapsed, segment_bytes) < curve.reno {
            // The region of Reno (section 4.3).
            state.window = window.max(curve.reno);
            return;
        }
        // The concave and the convex region (sections 4.4 and 4.5): a target one round trip ahead.
        let target = curve.at(elapsed + rtt, segment_bytes).clamp(window, window + window / 2);
        curve.rest += u128::from(target - window) * u128::from(ack.delivered_bytes);
        let bytes = curve.rest / u128::from(window);
        curve.rest %= u128::from(window);
        state.window = window + bytes as u64;
    }
}

impl Curve {
    fn new(now: Instant, goal: u64, window: u64, starts_flat: bool, segment_bytes: u64) -> Curve {
        // Section 4.8, and 4.10 for a slow start that ended without a loss.
        let goal = if starts_flat || goal < window { window } else { goal };
        let k_us = cube_root(u128::from(goal - window) * CUBIC_US * C.1 / (C.0 * u128::from(segment_bytes)));
        Curve { start: now, updated: now, goal, k_us, reno: window, reno_rest: 0, rest: 0 }
    }

    /// `W_cubic` (figure 1): `C * (t - K)^3 + W_max`.
    fn at(&self, elapsed: Duration, segment_bytes: u64) -> u64 {
        let elapsed_us = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX).min(TIME_MAX_US);
        let from_plateau = u128::from(elapsed_us.abs_diff(self.k_us).min(TIME_MAX_US));
        let bytes = from_plateau.pow(3) * C.0 * u128::from(segment_bytes) / (C.1 * CUBIC_US);
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        if elapsed_us < self.k_us { self.goal.saturating_sub(bytes) } else { self.goal.saturating_add(bytes) }
    }

    /// `W_est` (figure 4): `alpha` segments for a window that is acknowledged, one as soon as it is as large as before the reduction.
    fn grow_reno(&mut self, delivered: u64, window: u64, prior: u64, segment_bytes: u64) {
        let (numerator, denominator) = if self.reno < prior { ALPHA } else { (1, 1) };
        let divisor = denominator * u128::from(window.max(1));
        self.reno_rest += numerator * u128::from(segment_bytes) * u128::from(delivered);
        self.reno += u64::try_from(self.reno_rest / divisor).unwrap_or(u64::MAX / 2);
        self.reno_rest %= divisor;
    }
}

impl Control for Cubic {
    fn on_ack(&mut self, ack: &Ack) {
        if let Some(rtt) = ack.rtt {
            // As RFC 6298 smooths it.
            self.smoothed_rtt = Some(self.smoothed_rtt.map_or(rtt, |smoothed| (smoothed * 7 + rtt) / 8));
        }
        if ack.phase == Phase::Recovery {
            return;
        }
        if self.state.window >= self.state.threshold {
            self.avoid_congestion(ack);
            return;
        }
        let growth = if self.state.threshold == u64::MAX {
            self.slow_start.on_ack(ack)
        } else {
            // Only the first slow start has no goal (RFC 9406, section 4.3).
            super::hystart::Growth { bytes: ack.delivered_bytes, is_last: false }
        };
        if ack.is_window_limited {
            let limit = self.state.threshold.max(self.state.window + self.segment_bytes);
            self.state.window = self.state.window.saturating_add(growth.bytes).min(limit);
        }
        if growth.is_last {
            self.state.threshold = self.state.window;
            self.state.prior = self.state.window;
        }
    }

    fn on_recovery_start(&mut self, _: Instant, _: u64) {
        self.reduce(false);
        self.state.window = self.state.threshold;
    }

    fn on_timeout(&mut self, _: Instant, _: u64, is_first: bool) {
        if is_first {
            self.reduce(true);
        }
        self.state.window = self.segment_bytes;
    }

    fn on_spurious(&mut self, _: Instant) {
        // Section 4.9.2: not if the window is as large again.
        if let Some(before) = self.before.take().filter(|before| before.window > self.state.window) {
            self.state = before;
        }
    }

    fn on_idle_restart(&mut self, _: Instant, idle: Duration, rto: Duration) {
        // Halved for each timeout that has passed (RFC 2861): the path may have changed.
        let least = initial_window(self.segment_bytes).min(self.state.window);
        self.state.threshold = self.state.threshold.max(self.state.window / 4 * 3);
        let halvings = idle.as_nanos() / rto.as_nanos().max(1);
        let window = self.state.window.checked_shr(u32::try_from(halvings).unwrap_or(u32::MAX)).unwrap_or(0);
        self.state.window = window.max(least);
        self.state.curve =
            self.state.curve.map(|curve| Curve { start: curve.start + idle, updated: curve.updated + idle, ..curve });
    }

    fn set_segment_bytes(&mut self, bytes: u64) {
        self.segment_bytes = bytes.max(1);
        self.state.window = self.state.window.max(self.min());
    }

    fn window_bytes(&self) -> u64 {
        self.state.window
    }

    fn pacing_bytes_per_sec(&self) -> Option<u64> {
        let rtt = self.smoothed_rtt.filter(|rtt| *rtt >= PACED_FROM)?;
        let is_slow_start = self.state.window < self.state.threshold;
        let gain = if is_slow_start { PACING_GAIN_SLOW_START } else { PACING_GAIN };
        let window = u128::from(scaled(self.state.window, gain));
        Some(u64::try_from(window * 1_000_000_000 / rtt.as_nanos().max(1)).unwrap_or(u64::MAX))
    }
}

/// A fraction of a window.
fn scaled(bytes: u64, (numerator, denominator): (u64, u64)) -> u64 {
    u64::try_from(u128::from(bytes) * u128::from(numerator) / u128::from(denominator)).unwrap_or(u64::MAX)
}

/// The largest integer whose cube is not larger, by Newton's method from above: it decreases until it has arrived.
pub(super) fn cube_root(number: u128) -> u64 {
    if number == 0 {
        return 0;
    }
    let mut root = 1_u128 << (128 - number.leading_zeros()).div_ceil(3);
    loop {
        let next = (2 * root + number / (root * root)) / 3;
        if next >= root {
            return u64::try_from(root).unwrap_or(u64::MAX);
        }
        root = next;
    }
}
