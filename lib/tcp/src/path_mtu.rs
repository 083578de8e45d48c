//! How long segments may be on the path: what routers report (RFC 1191, RFC 8201), and what timeouts show where reports are lost (RFC 8899).

use crate::connection::{Connection, SEGMENT_BYTES_DEFAULT};
use crate::scoreboard::Range;
use crate::sender::Sender;
use crate::wire::TIMESTAMP_BYTES;

/// A packet of 1200 bytes passes nearly each path (RFC 8899, section 5.1.2): its payload, with the headers of IPv6 and TCP and timestamps.
const BASE_BYTES: u64 = 1200 - 40 - 20 - TIMESTAMP_BYTES as u64;
/// After so many timeouts in a row one more shows that full segments do not pass any more, although they did.
const TIMEOUTS: u32 = 2;

impl Sender {
    /// The payload of a full segment is `bytes` from now on, if that is less. What is in flight and longer is lost, which is no sign of
    /// congestion.
    fn shrink_segment(&mut self, bytes: u64) {
        if bytes >= self.segment {
            return;
        }
        self.segment = bytes;
        self.control.set_segment_bytes(bytes);
        self.board.lose(u64::MAX, |range: &Range| range.bytes() > bytes, |_| ());
        self.wants_probe = false;
    }

    /// The retransmission timer has expired: perhaps because a router drops what is too long and does not report it.
    pub(crate) fn suspect_path(&mut self) {
        if !self.is_segment_proved || self.rtt.backoff() >= TIMEOUTS {
            self.shrink_segment(BASE_BYTES);
        }
    }
}

impl Connection {
    /// A router reports that it has dropped the segment with this sequence number, and that it passes segments of at most `bytes`, headers
    /// of IP and TCP not counted; each path passes 536. A report about what is not in flight is forged or late (RFC 5927, section 4.1).
    pub fn limit_segment(&mut self, number: u32, bytes: u16) {
        let position = self.own.nearest(number, self.sender.una);
        if !(self.sender.una..self.sender.next).contains(&position) {
            return;
        }
        let overhead = if self.clocks.is_some() { TIMESTAMP_BYTES as u64 } else { 0 };
        self.sender.shrink_segment(u64::from(bytes.max(SEGMENT_BYTES_DEFAULT)) - overhead);
    }
}
