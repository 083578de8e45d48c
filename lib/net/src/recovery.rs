//! Retransmission before the timeout.
//!
//! smoltcp 0.14.0 retransmits one segment at the third repeated acknowledgement, and everything after a timeout. The timeout is
//! at least a second, and once doubled it stays so until a round trip without a loss: with one lost frame in twenty, transfers
//! paused for up to 24 s. What makes smoltcp retransmit at once is a repeated acknowledgement, so we repeat the peer's last one
//! * when it has acknowledged nothing for two round trips: then the last segments or the acknowledgements are lost (the
//!   tail loss probe of RFC 8985, section 7);
//! * when it acknowledges only a part of what was sent before the loss: then the next segment is lost too (NewReno, RFC 6582,
//!   section 3.2).

use crate::resync::{Layout, is_plain, without_data};
use alloc::vec::Vec;
use core::time::Duration;
use glass_api::Instant;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{TcpPacket, TcpSeqNumber};

/// Peers delay an acknowledgement for up to 200 ms.
const PROBE_AFTER_MIN: Duration = Duration::from_millis(250);
/// Probes without an acknowledgement; each waits twice as long. The peer's silence counts from the last one.
const PROBES_MAX: u8 = 4;
/// smoltcp counts repetitions from one that changes the window, which is what the second one undoes.
const REPETITIONS: usize = 2 + 3;

/// What one connection needs to retransmit early.
#[derive(Default)]
pub(crate) struct Recovery {
    /// The headers of the peer's last frame with an acknowledgement, and their layout.
    last: Vec<u8>,
    layout: Option<Layout>,
    /// The sequence number that we expect next.
    next: Option<TcpSeqNumber>,
    /// Since when data waits for an acknowledgement.
    since: Option<Instant>,
    /// It was sent when nothing else was on its way, and only once, so its acknowledgement shows the round trip.
    is_first: bool,
    /// Smoothed; `None` before the first measurement.
    round_trip: Option<Duration>,
    probes: u8,
}

impl Recovery {
    /// Keeps the acknowledgement of a frame from the peer if it is valid: it has acknowledged data, or is nothing else and its checksum
    /// was or is verified.
    pub(crate) fn keep(&mut self, frame: &[u8], has_acknowledged: bool, checksums: &ChecksumCapabilities) {
        let Some((frame, layout)) = Layout::of(frame) else { return };
        let Ok(packet) = TcpPacket::new_checked(&frame[layout.segment.clone()]) else { return };
        let is_right = || {
            let (source, destination) = layout.addresses(frame);
            !checksums.tcp.rx() || packet.verify_checksum(&source, &destination)
        };
        if has_acknowledged || is_plain(&packet) && is_right() {
            let end = layout.segment.start + usize::from(packet.header_len());
            self.last.clear();
            self.last.extend_from_slice(&frame[..end]);
            self.layout = Some(Layout { segment: layout.segment.start..end, version: layout.version });
        }
    }

    /// Whether a sequence number of the peer is after all that we have acknowledged.
    pub(crate) fn is_new(&self, number: TcpSeqNumber) -> bool {
        self.next.is_some_and(|next| number >= next)
    }

    /// We have sent a segment that expects this sequence number.
    pub(crate) fn expects(&mut self, next: TcpSeqNumber) {
        self.next = Some(next);
    }

    /// The peer has acknowledged something, and `queued` bytes are left.
    pub(crate) fn acknowledged(&mut self, now: Instant, queued: usize) {
        if let Some(since) = self.since
            && self.is_first
            && self.probes == 0
        {
            let sample = now - since;
            self.round_trip = Some(match self.round_trip {
                Some(before) if before < sample => before + (sample - before) / 8,
                _ => sample,
            });
        }
        self.since = (queued > 0).then_some(now);
        self.is_first = false;
        self.probes = 0;
    }

    /// The connection has sent what it can, and has `queued` bytes that are not acknowledged. Returns when the next probe is due.
    pub(crate) fn settle(&mut self, now: Instant, queued: usize) -> Option<Instant> {
        if queued == 0 {
            self.since = None;
            return None;
        }
        if self.since.is_none() {
            (self.since, self.is_first, self.probes) = (Some(now), true, 0);
        }
        self.due_at()
    }

    fn due_at(&self) -> Option<Instant> {
        let wait = (2 * self.round_trip?).max(PROBE_AFTER_MIN);
        (self.probes < PROBES_MAX).then_some(self.since? + wait * ((2 << self.probes) - 1))
    }

    /// Whether the peer is to be probed now; its acknowledgement is to be repeated if so.
    pub(crate) fn probes(&mut self, now: Instant) -> bool {
        let is_due = self.due_at().is_some_and(|at| at <= now);
        self.probes += u8::from(is_due);
        is_due
    }

    /// The peer's last acknowledgement, so often that smoltcp retransmits the first segment. Empty if there is none.
    pub(crate) fn repetitions(&self) -> impl Iterator<Item = Vec<u8>> + use<> {
        let frame = |change| without_data(&self.last, self.layout.as_ref()?, self.next?, change);
        let (other, frame) = (frame(1), frame(0));
        other.into_iter().chain(core::iter::repeat_n(frame, REPETITIONS - 1).flatten())
    }
}
