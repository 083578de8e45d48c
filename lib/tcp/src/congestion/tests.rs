//! What tests of several controls share.

use super::{Ack, Phase, Start};
use core::time::Duration;
use glass_api::Instant;

/// The payload of segments in tests.
pub(crate) const SEGMENT: u64 = 1000;

/// A connection that opened at time 0, with a round trip of 40 ms.
pub(crate) fn start() -> Start {
    Start { now: Instant(0), segment_bytes: SEGMENT, rtt: Some(Duration::from_millis(40)), seed: 1 }
}

/// An acknowledgement of so many bytes in order, at time 0, within a round in which the window was used.
pub(crate) fn ack(bytes: u64) -> Ack {
    Ack {
        now: Instant(0),
        delivered_bytes: bytes,
        acked_bytes: bytes,
        lost_bytes: 0,
        prior_in_flight: bytes,
        in_flight: 0,
        rtt: None,
        min_rtt: None,
        rate: None,
        round: 1,
        is_round_start: false,
        is_window_limited: true,
        phase: Phase::Open,
    }
}
