//! Slow start, congestion avoidance and halving at a loss (RFC 5681), counted in bytes (RFC 3465).

use super::{Ack, Control, MIN_SEGMENTS, Phase, Start, initial_window};
use core::time::Duration;
use glass_api::Instant;

/// See the module's description.
#[derive(Debug, Clone, Copy)]
pub struct NewReno {
    segment_bytes: u64,
    window: u64,
    /// Slow start ends here.
    threshold: u64,
    /// Bytes acknowledged since the window grew last.
    counted: u64,
    /// Window and threshold before the last loss.
    before: Option<(u64, u64)>,
}

impl NewReno {
    /// For a connection that has just opened.
    pub fn new(start: &Start) -> NewReno {
        let segment_bytes = start.segment_bytes.max(1);
        let window = initial_window(segment_bytes);
        NewReno { segment_bytes, window, threshold: u64::MAX, counted: 0, before: None }
    }

    fn min(&self) -> u64 {
        MIN_SEGMENTS * self.segment_bytes
    }

    fn reduce(&mut self, in_flight: u64) {
        self.before = Some((self.window, self.threshold));
        // What is in flight, not the window, which may not have been used (section 3.1).
        self.threshold = (in_flight / 2).max(self.min());
        self.counted = 0;
    }
}

impl Control for NewReno {
    fn on_ack(&mut self, ack: &Ack) {
        if ack.phase == Phase::Recovery || !ack.is_window_limited {
            return;
        }
        if self.window < self.threshold {
            self.window = (self.window + ack.acked_bytes).min(self.threshold.max(self.window + self.segment_bytes));
            return;
        }
        self.counted += ack.acked_bytes;
        if self.counted >= self.window {
            self.counted -= self.window;
            self.window += self.segment_bytes;
        }
    }

    fn on_recovery_start(&mut self, _: Instant, in_flight: u64) {
        self.reduce(in_flight);
        self.window = self.threshold;
    }

    fn on_timeout(&mut self, _: Instant, in_flight: u64, is_first: bool) {
        if is_first {
            self.reduce(in_flight);
        }
        self.window = self.segment_bytes;
    }

    fn on_spurious(&mut self, _: Instant) {
        if let Some((window, threshold)) = self.before.take() {
            self.window = self.window.max(window);
            self.threshold = self.threshold.max(threshold);
        }
    }

    fn on_idle_restart(&mut self, _: Instant, idle: Duration, rto: Duration) {
        // Section 4.1.
        if idle > rto {
            self.window = self.window.min(initial_window(self.segment_bytes));
        }
    }

    fn set_segment_bytes(&mut self, bytes: u64) {
        self.segment_bytes = bytes.max(1);
        self.window = self.window.max(self.min());
    }

    fn window_bytes(&self) -> u64 {
        self.window
    }
}
