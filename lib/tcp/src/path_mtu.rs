//! How long segments may be on the path: what routers report (RFC 1191, RFC 8201), what timeouts show where reports are lost, and the search for
//! longer ones with data (RFC 4821; RFC 8899, whose names are in capitals here).
//!
//! A connection starts with the longest segments that both ends permit. When these do not pass, it continues with those of a packet that passes nearly
//! each path (BASE_PLPMTU). As soon as one of them has arrived, it sends longer segments as probes, first the longest one: the reason may have been
//! something else than the path. A length of which [`LOST_MAX`] probes were lost is too long, and half the way back is tried next. What remains is used for
//! [`RAISE_AFTER`], then the search begins again.

use crate::congestion::Phase;
use crate::connection::{Connection, SEGMENT_BYTES_DEFAULT};
use crate::scoreboard::Range;
use crate::sender::Sender;
use crate::transmit::{Lengths, Piece};
use crate::wire::TIMESTAMP_BYTES;
use core::time::Duration;
use glass_api::Instant;

/// A packet of 1200 bytes passes nearly each path (BASE_PLPMTU, RFC 8899, section 5.1.2): its payload, with the headers of IPv6 and TCP and timestamps.
const BASE_BYTES: u64 = 1200 - 40 - 20 - TIMESTAMP_BYTES as u64;
/// After so many timeouts in a row one more shows that full segments do not pass any more, although they did.
const TIMEOUTS: u32 = 2;
/// So many lost probes show that their length does not pass (MAX_PROBES).
const LOST_MAX: u32 = 3;
/// A search that has ended begins again after so long (PMTU_RAISE_TIMER, section 5.1.1).
const RAISE_AFTER: Duration = Duration::from_secs(600);
/// A search ends when a longer segment would have less than so many bytes more.
const STEP_BYTES: u64 = 16;
/// Segments that follow a probe, whose arrival shows that it is lost (RFC 4821, section 7.4).
const FOLLOWERS: u64 = 3;

/// The search of one connection.
#[derive(Debug)]
pub struct Search {
    /// The longest payload that both ends permit (MAX_PLPMTU).
    max: u64,
    /// A segment of the present length has arrived.
    pub is_proved: bool,
    /// Segments of so many bytes or more do not pass; more than `max` if none is known.
    too_long: u64,
    /// The length to probe (PROBED_SIZE), and how many of its probes were lost (PROBE_COUNT).
    bytes: u64,
    lost: u32,
    /// The probe that is in flight.
    probe: Option<(u64, u64)>,
    /// The search has ended, and begins again then.
    raise_at: Option<Instant>,
}

impl Search {
    /// For segments of `max` bytes, which are used before any has arrived.
    pub fn new(max: u64) -> Search {
        Search { max, is_proved: false, too_long: max + 1, bytes: max, lost: 0, probe: None, raise_at: None }
    }

    /// Nothing is known of lengths beyond the present one.
    fn begin(&mut self) {
        *self = Search { is_proved: self.is_proved, ..Search::new(self.max) };
    }

    /// `bytes` is the longest length that may pass, and it is probed next. The present one is `segment`.
    fn limit(&mut self, now: Instant, segment: u64, bytes: u64) {
        (self.too_long, self.bytes, self.lost, self.probe) = (bytes + 1, bytes, 0, None);
        self.raise_at = (bytes == segment).then(|| now + RAISE_AFTER);
    }

    /// Chooses the next length after what was found out about the one before.
    fn go_on(&mut self, now: Instant, segment: u64) {
        (self.lost, self.probe) = (0, None);
        let more = self.too_long.saturating_sub(segment);
        self.bytes = segment + more / 2;
        self.raise_at = (more < STEP_BYTES).then(|| now + RAISE_AFTER);
    }

    /// Whether this is the whole probe.
    pub fn is_probe(&self, piece: &Range) -> bool {
        piece.is_probe && self.probe == Some((piece.start, piece.end))
    }

    /// Everything before `position` is acknowledged. A probe that arrived in parts shows nothing.
    pub fn acknowledge(&mut self, position: u64) {
        self.probe = self.probe.filter(|(_, end)| *end > position);
    }

    /// The probe, or a part of it, is lost.
    pub fn loses_probe(&mut self, now: Instant, segment: u64) {
        if self.probe.take().is_none() {
            return;
        }
        self.lost += 1;
        if self.lost == LOST_MAX {
            self.too_long = self.bytes;
            self.go_on(now, segment);
        }
    }
}

impl Sender {
    /// The payload of a full segment is `bytes` from now on, which is less. What is in flight and longer is lost, which is no sign of congestion.
    fn shrink_segment(&mut self, bytes: u64) {
        self.set_segment(bytes);
        self.search.is_proved = false;
        self.board.lose(u64::MAX, |range: &Range| range.bytes() > bytes, |_| ());
        self.wants_probe = false;
    }

    fn set_segment(&mut self, bytes: u64) {
        self.segment = bytes;
        self.control.set_segment_bytes(bytes);
    }

    /// The retransmission timer has expired: perhaps because a router drops what is too long and does not report it (section 4.3).
    pub(crate) fn suspect_path(&mut self) {
        let is_suspect = !self.search.is_proved || self.rtt.backoff() >= TIMEOUTS;
        if is_suspect && self.segment > BASE_BYTES {
            self.shrink_segment(BASE_BYTES);
            self.search.begin();
        }
    }

    /// A router has dropped what was sent from `position` on, and passes payloads of `bytes`.
    fn limit_segment(&mut self, now: Instant, position: u64, bytes: u64) {
        if bytes < self.segment {
            self.shrink_segment(bytes);
            self.search.limit(now, bytes, bytes);
        } else if bytes < self.search.bytes && self.search.probe.is_some_and(|(start, _)| start == position) {
            self.board.lose(u64::MAX, |range| range.is_probe, |_| ());
            self.search.limit(now, self.segment, bytes);
        }
    }

    /// The probe has arrived: segments have its length from now on.
    pub(crate) fn lengthen_segment(&mut self, now: Instant) {
        let bytes = self.search.bytes;
        self.set_segment(bytes);
        self.search.go_on(now, bytes);
    }

    /// A longer segment as a probe, if one is to be sent and its loss would be found as fast as that of others (RFC 4821, section 7.4).
    pub(crate) fn choose_path_probe(&mut self, now: Instant, lengths: Lengths) -> Option<Piece> {
        if self.segment == self.search.max || !self.search.is_proved || self.search.probe.is_some() {
            return None;
        }
        match self.search.raise_at {
            Some(at) if at > now => return None,
            Some(_) => self.search.begin(),
            None => {}
        }
        let (start, bytes) = (self.next, self.search.bytes);
        let is_quiet = self.phase == Phase::Open && self.board.sacked_bytes() == 0 && self.probe.is_none();
        let usable = (self.una + self.window).saturating_sub(start);
        let followed = bytes + FOLLOWERS * self.segment;
        let is_followed = followed <= self.unsent().min(usable).min(self.congestion_window());
        // A segment without other options than timestamps, so that its length is what is found out.
        let is_plain = lengths.segment == self.segment;
        let is_released = bytes <= self.space() && self.release_at(now).is_none();
        if !(self.has_sack && is_quiet && is_followed && is_plain && is_released) {
            return None;
        }
        self.search.probe = Some((start, start + bytes));
        Some(Piece { start, bytes, has_fin: false, is_retransmission: false, is_last: false, is_probe: true })
    }
}

impl Connection {
    /// A router reports that it has dropped the segment with this sequence number, and that it passes segments of at most `bytes`, headers
    /// of IP and TCP not counted; each path passes 536. A report about what is not in flight is forged or late (RFC 5927, section 4.1).
    pub fn limit_segment(&mut self, now: Instant, number: u32, bytes: u16) {
        let position = self.own.nearest(number, self.sender.una);
        if !(self.sender.una..self.sender.next).contains(&position) {
            return;
        }
        let overhead = if self.clocks.is_some() { TIMESTAMP_BYTES as u64 } else { 0 };
        self.sender.limit_segment(now, position, u64::from(bytes.max(SEGMENT_BYTES_DEFAULT)) - overhead);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::Kind;
    use crate::ring::Ring;
    use crate::sender::{Acknowledgement, Parts};

    /// A sender of segments of 1000 bytes whose path may pass 1400, and what it sends first: a probe and its followers.
    fn probing() -> (Sender, u64, u64) {
        let mut ring = Ring::new(100_000);
        ring.write(&[0; 50_000]);
        let parts = Parts {
            control: Kind::Cubic,
            segment: 1400,
            window: 60_000,
            has_sack: true,
            rtt: Some(Duration::from_millis(10)),
            seed: 1,
        };
        let mut sender = Sender::new(Instant(0), ring, &parts);
        sender.shrink_segment(1000);
        sender.search.is_proved = true;
        let start = sender.next;
        let lengths = Lengths { segment: 1000, frame: 64_000 };
        let probe = sender.next_piece(Instant(0), lengths).expect("there is much to send");
        assert!((probe.bytes, probe.is_probe) == (1400, true), "{probe:?}");
        for millis in 1..9 {
            let now = Instant(0) + Duration::from_millis(millis);
            while let Some(piece) = sender.next_piece(now, lengths) {
                assert!(!piece.is_probe, "{piece:?}");
            }
        }
        assert!(sender.next >= probe.end() + 5000);
        (sender, start, probe.end())
    }

    fn acknowledge(sender: &mut Sender, position: u64, sacks: &[(u64, u64)]) {
        let now = Instant(0) + Duration::from_millis(10);
        let ack = Acknowledgement { position, sacks, duplicate: None, window: None, echo: None, is_plain: true };
        sender.acknowledges(now, &ack);
    }

    #[test]
    fn rfc4821_7_6_2_a_lost_probe_is_no_congestion_and_retransmitted_in_segments() {
        let (mut sender, start, end) = probing();
        let window = sender.congestion_window();
        acknowledge(&mut sender, start, &[(end, end + 5000)]);
        assert_eq!((sender.phase, sender.board.lost_bytes(), sender.search.lost), (Phase::Open, 1400, 1));
        assert!(sender.congestion_window() >= window);
        let again = sender.next_piece(Instant(10_000_000), Lengths { segment: 1000, frame: 1000 }).expect("it is lost");
        assert_eq!((again.start, again.bytes, again.is_retransmission), (start, 1000, true));
    }

    #[test]
    fn rfc4821_7_6_4_what_is_lost_with_a_probe_is_congestion() {
        let (mut sender, start, end) = probing();
        acknowledge(&mut sender, start, &[(end + 1000, end + 5000)]);
        assert_eq!((sender.phase, sender.board.lost_bytes(), sender.search.lost), (Phase::Recovery, 2400, 1));
    }

    #[test]
    fn rfc4821_7_6_1_a_probe_that_arrives_in_parts_shows_nothing() {
        let (mut sender, start, end) = probing();
        acknowledge(&mut sender, start + 700, &[]);
        acknowledge(&mut sender, end, &[]);
        assert_eq!((sender.segment, sender.search.lost, sender.search.probe), (1000, 0, None));
        let (mut sender, _, end) = probing();
        acknowledge(&mut sender, end, &[]);
        assert_eq!((sender.segment, sender.search.probe), (1400, None));
    }
}
