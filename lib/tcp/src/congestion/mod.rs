//! Congestion control: how much of a connection's data may be in flight, and how fast it is sent.
//!
//! The sender (`sender.rs`) finds out what was delivered and what was lost, and how fast; a [`Control`] answers with a window in
//! bytes and, if it paces, a rate. It sees no sequence numbers and has no clock: each call has the time.
//!
//! The order of calls for one acknowledgement: [`Control::on_lost`] for each piece that it shows to be lost, then
//! [`Control::on_recovery_start`], [`Control::on_spurious`] or [`Control::on_recovery_end`] if it starts or ends a recovery, then
//! [`Control::on_ack`].

use alloc::boxed::Box;
use core::fmt::Debug;
use core::time::Duration;
use glass_api::Instant;

mod bbr;
mod cubic;
#[cfg(test)]
mod cubic_tests;
mod fixed;
mod hystart;
mod new_reno;
#[cfg(test)]
mod tests;

pub use bbr::Bbr;
pub use cubic::Cubic;
pub use fixed::Fixed;
pub use new_reno::NewReno;

/// Segments in the window of a new connection, at most (RFC 6928).
pub const INITIAL_SEGMENTS: u64 = 10;
/// Segments in the smallest window.
pub const MIN_SEGMENTS: u64 = 2;

/// Which control a connection has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// None: what the peer's window and the buffer permit is sent at once. For a link without a bottleneck.
    None,
    /// RFC 5681 with byte counting (RFC 3465).
    #[default]
    NewReno,
    /// RFC 9438 with HyStart++ (RFC 9406).
    Cubic,
    /// BBR version 3 (draft-ietf-ccwg-bbr).
    Bbr,
}

impl Kind {
    /// The control of a connection that has just opened.
    pub fn start(self, start: &Start) -> Box<dyn Control> {
        match self {
            Kind::None => Box::new(Fixed),
            Kind::NewReno => Box::new(NewReno::new(start)),
            Kind::Cubic => Box::new(Cubic::new(start)),
            Kind::Bbr => Box::new(Bbr::new(start)),
        }
    }
}

/// What is known when a connection opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    /// The time now.
    pub now: Instant,
    /// Payload of a full segment.
    pub segment_bytes: u64,
    /// The round trip of the handshake; `None` if a part of it was retransmitted.
    pub rtt: Option<Duration>,
    /// A number that differs from connection to connection, for choices at random.
    pub seed: u64,
}

/// What one acknowledgement reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack {
    /// The time now.
    pub now: Instant,
    /// Bytes that it newly reports as delivered, in order or by SACK.
    pub delivered_bytes: u64,
    /// Bytes by which it moves the start of what is not acknowledged.
    pub acked_bytes: u64,
    /// Bytes that it shows to be lost.
    pub lost_bytes: u64,
    /// Bytes in flight before and after it: sent, not delivered and not lost.
    pub prior_in_flight: u64,
    /// See `prior_in_flight`.
    pub in_flight: u64,
    /// The round trip of what it delivers; `None` if that was retransmitted (Karn's rule) and has no timestamp.
    pub rtt: Option<Duration>,
    /// The smallest round trip of the last ten seconds, or a little longer.
    pub min_rtt: Option<Duration>,
    /// Delivery rate; `None` if it delivers nothing, or in less time than a round trip can take.
    pub rate: Option<RateSample>,
    /// Round trips since the connection opened; one is over when something is delivered that was sent after the last one was over.
    pub round: u64,
    /// A round trip has just ended.
    pub is_round_start: bool,
    /// The window limited what was sent in the round trip so far; without it, a window proves nothing (RFC 7661).
    pub is_window_limited: bool,
    /// The phase of loss recovery after this acknowledgement.
    pub phase: Phase,
}

/// A sample of the delivery rate (draft-ietf-ccwg-bbr, section 4.1). All bytes are payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateSample {
    /// Bytes delivered in `interval`.
    pub delivered_bytes: u64,
    /// The longer of the times in which these were sent and acknowledged.
    pub interval: Duration,
    /// All bytes that had been delivered when the newest of them was sent.
    pub prior_delivered: u64,
    /// All bytes that have been delivered by now.
    pub total_delivered: u64,
    /// Bytes in flight just after the newest of them was sent, itself included.
    pub sent_in_flight: u64,
    /// Bytes that were lost since then.
    pub lost_bytes: u64,
    /// There was too little data to fill the window when it was sent, so the path may be faster.
    pub is_app_limited: bool,
}

impl RateSample {
    /// Bytes per second.
    pub fn bytes_per_sec(&self) -> u64 {
        let nanos = self.interval.as_nanos().max(1);
        u64::try_from(u128::from(self.delivered_bytes) * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
    }
}

/// Sent data that is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost {
    /// The time now.
    pub now: Instant,
    /// How much.
    pub bytes: u64,
    /// Bytes in flight just after it was sent, itself included.
    pub sent_in_flight: u64,
    /// Bytes that were lost since it was sent, itself included.
    pub lost_since_sent: u64,
    /// All bytes that had been delivered when it was sent.
    pub prior_delivered: u64,
    /// There was too little data to fill the window when it was sent.
    pub is_app_limited: bool,
}

/// Where loss recovery is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// Nothing is known to be lost.
    #[default]
    Open,
    /// Losses were found by SACK or time, and are being retransmitted.
    Recovery,
    /// A retransmission timeout has declared all in flight lost.
    Loss,
}

/// One algorithm. Windows and rates are payload bytes; headers are not counted.
pub trait Control: Debug + Send {
    /// An acknowledgement delivered data.
    fn on_ack(&mut self, ack: &Ack);

    /// A piece of data was found to be lost, by SACK, time or timeout.
    fn on_lost(&mut self, lost: &Lost) {
        let _ = lost;
    }

    /// The first loss after a time without: reduce the window. `in_flight` is that before the loss was found.
    fn on_recovery_start(&mut self, now: Instant, in_flight: u64);

    /// All that was in flight when the recovery started is delivered.
    fn on_recovery_end(&mut self, now: Instant) {
        let _ = now;
    }

    /// The retransmission timer has expired: everything in flight is lost. `is_first` is false when it expires again before anything was
    /// acknowledged. `in_flight` is that before.
    fn on_timeout(&mut self, now: Instant, in_flight: u64, is_first: bool);

    /// What the last recovery or timeout took to be lost was delivered in fact: undo the reduction.
    fn on_spurious(&mut self, now: Instant) {
        let _ = now;
    }

    /// Data is sent after a time in which nothing was in flight. `idle` is how long that was, `rto` the present retransmission timeout.
    fn on_idle_restart(&mut self, now: Instant, idle: Duration, rto: Duration) {
        let _ = (now, idle, rto);
    }

    /// The path's segments have another payload now.
    fn set_segment_bytes(&mut self, bytes: u64);

    /// How many bytes may be in flight.
    fn window_bytes(&self) -> u64;

    /// Whether the sender approaches [`Control::window_bytes`] by proportional rate reduction (RFC 6937) during [`Phase::Recovery`].
    /// Otherwise that window holds as it is.
    fn reduces_by_prr(&self) -> bool {
        true
    }

    /// Bytes per second at which segments are released; `None` if they are sent at once.
    fn pacing_bytes_per_sec(&self) -> Option<u64> {
        None
    }

    /// Bytes that are released at once when sending is paced: at least a millisecond's, two segments', and at most a long frame.
    fn burst_bytes(&self, segment_bytes: u64) -> u64 {
        let rate = self.pacing_bytes_per_sec().unwrap_or(u64::MAX);
        (rate / 1000).min(BURST_BYTES_MAX).max(2 * segment_bytes)
    }
}

/// The longest frame.
const BURST_BYTES_MAX: u64 = 64 << 10;

/// The window of a new connection (RFC 6928).
pub fn initial_window(segment_bytes: u64) -> u64 {
    (INITIAL_SEGMENTS * segment_bytes).min(14_600.max(2 * segment_bytes))
}
