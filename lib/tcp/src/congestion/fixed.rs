//! No congestion control.

use super::{Ack, Control};
use glass_api::Instant;

/// Limits nothing: the peer's window and our buffer do.
#[derive(Debug, Clone, Copy)]
pub struct Fixed;

impl Control for Fixed {
    fn on_ack(&mut self, _: &Ack) {}
    fn on_recovery_start(&mut self, _: Instant, _: u64) {}
    fn on_timeout(&mut self, _: Instant, _: u64, _: bool) {}
    fn set_segment_bytes(&mut self, _: u64) {}

    fn window_bytes(&self) -> u64 {
        u64::MAX / 2
    }

    fn reduces_by_prr(&self) -> bool {
        false
    }
}
