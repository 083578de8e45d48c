//! How much of a connection's data may be on its way: the congestion window (RFC 5681).
//!
//! smoltcp 0.14.0 has Reno, but it opens the window by one segment for each acknowledgement, however much that acknowledges. A
//! card that cuts segments sends 64 KiB at once, and the peer acknowledges them at once: its window would open 45 times too slowly, and
//! after one loss practically never again. So smoltcp controls nothing while all is well, and we count bytes (RFC 3465): the
//! writer gets no more room than the window has, so that no more is in flight. From a loss until everything that was queued at that moment is
//! acknowledged, smoltcp's Reno limits what is retransmitted.

use crate::config::Congestion;
use crate::segment::segment_of;
use core::cell::Cell;
use smoltcp::phy::{PacketMeta, TxToken};
use smoltcp::socket::tcp::CongestionControl;
use smoltcp::wire::TcpSeqNumber;

/// Payload of an ordinary segment.
const SEGMENT_BYTES: usize = 1460;
/// The window of a new connection (RFC 6928).
const INITIAL_BYTES: usize = 10 * SEGMENT_BYTES;
/// A loss leaves at least this much.
const MIN_BYTES: usize = 2 * SEGMENT_BYTES;
/// A writer that waits for room gets so much at once, or a quarter of the window, so that it fills whole frames.
const WORTHWHILE_BYTES: usize = 128 << 10;

/// The data of a segment that is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Data {
    start: TcpSeqNumber,
    bytes: usize,
}

/// A segment that is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sent {
    /// `None` if it has no data, or one byte: such a segment probes the peer.
    pub(crate) data: Option<Data>,
    /// Which sequence number it expects next.
    pub(crate) expects: TcpSeqNumber,
}

impl Sent {
    fn of(frame: &[u8]) -> Option<Sent> {
        let packet = segment_of(frame)?;
        let (start, bytes) = (packet.seq_number(), packet.payload().len());
        Some(Sent { data: (bytes > 1).then_some(Data { start, bytes }), expects: packet.ack_number() })
    }
}

/// Sends a frame and keeps what segment it contains.
pub(crate) struct Watching<'c, T> {
    pub(crate) transmit: T,
    pub(crate) sent: &'c Cell<Option<Sent>>,
}

impl<T: TxToken> TxToken for Watching<'_, T> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        self.transmit.consume(len, |frame| {
            let result = write(frame);
            self.sent.set(Sent::of(frame));
            result
        })
    }

    fn set_meta(&mut self, meta: PacketMeta) {
        self.transmit.set_meta(meta);
    }
}

/// The congestion window of one connection.
#[derive(Debug)]
pub(crate) struct Window {
    /// Bytes that may be queued, so also in flight.
    limit: usize,
    /// Up to here it doubles in each round trip, from here on it grows by a segment.
    threshold: usize,
    /// Of the bytes that were queued at the last loss so many are not acknowledged.
    lost: usize,
    /// The start of what is not acknowledged.
    first: Option<TcpSeqNumber>,
    /// The end of everything that was sent.
    sent: Option<TcpSeqNumber>,
    /// What it was at the last loss.
    sent_at_loss: Option<TcpSeqNumber>,
    /// After the last loss everything is retransmitted, not only what is missing.
    rewinds: bool,
}

impl Window {
    pub(crate) fn new(congestion: Congestion) -> Window {
        let limit = match congestion {
            Congestion::None => usize::MAX,
            Congestion::Reno => INITIAL_BYTES,
        };
        Window { limit, threshold: usize::MAX, lost: 0, first: None, sent: None, sent_at_loss: None, rewinds: false }
    }

    /// How many of `wanted` bytes a writer may queue, with `queued` of at most `capacity` bytes in the queue; 0 if it is to wait for an
    /// acknowledgement.
    pub(crate) fn space(&self, wanted: usize, queued: usize, capacity: usize) -> usize {
        let limit = self.limit.min(capacity);
        let space = limit.saturating_sub(queued);
        let worthwhile = wanted.min(limit / 4).min(WORTHWHILE_BYTES);
        if space < worthwhile { 0 } else { space.min(wanted) }
    }

    /// The peer has acknowledged `bytes` of `queued` bytes. Returns smoltcp's part from now on, if that changes.
    pub(crate) fn acknowledged(&mut self, bytes: usize, queued: usize) -> Option<CongestionControl> {
        if bytes == 0 {
            return None;
        }
        self.first = self.first.map(|first| first + bytes);
        if self.lost > 0 {
            self.lost = self.lost.saturating_sub(bytes);
            return (self.lost == 0).then_some(CongestionControl::None);
        }
        // A window that was not needed has proved nothing (RFC 7661).
        if queued >= self.limit / 2 {
            let more = if self.limit < self.threshold { bytes } else { (SEGMENT_BYTES * bytes / self.limit).max(1) };
            self.limit += more;
        }
        None
    }

    /// Whether what the peer has acknowledged shows that more was lost: only a part of what was on its way at the loss.
    pub(crate) fn misses_more(&self) -> bool {
        self.lost > 0 && !self.rewinds && self.first < self.sent_at_loss
    }

    /// A segment is sent, with `queued` bytes in the queue. Returns smoltcp's part from now on, if that changes.
    pub(crate) fn sends(&mut self, data: Data, queued: usize) -> Option<CongestionControl> {
        if self.limit == usize::MAX {
            return None;
        }
        let end = data.start + data.bytes;
        let sent = self.sent.unwrap_or(data.start);
        if sent < end {
            self.sent = Some(end);
        }
        let first = *self.first.get_or_insert(data.start);
        if data.start >= sent {
            return None;
        }
        if self.lost > 0 {
            self.rewinds |= data.start > first;
            return None;
        }
        (self.sent_at_loss, self.rewinds) = (Some(sent), data.start > first);
        self.threshold = ((sent - data.start) / 2).max(MIN_BYTES);
        self.limit = self.threshold;
        self.lost = queued;
        Some(CongestionControl::Reno)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::tests::frame;
    use smoltcp::wire::{IpAddress, TcpControl};

    fn data(start: i32, bytes: usize) -> Data {
        Data { start: TcpSeqNumber(start), bytes }
    }

    /// Fills the window and has all of it acknowledged.
    fn round_trip(window: &mut Window) -> usize {
        let queued = window.space(usize::MAX, 0, 1 << 30);
        assert!(window.acknowledged(queued, queued).is_none());
        queued
    }

    #[test]
    fn it_doubles_then_grows_by_a_segment() {
        let mut window = Window::new(Congestion::Reno);
        assert_eq!([(); 4].map(|()| round_trip(&mut window)), [14_600, 29_200, 58_400, 116_800]);
        window.threshold = window.limit;
        let before = round_trip(&mut window);
        assert_eq!(round_trip(&mut window), before + SEGMENT_BYTES);
        // One that is not used does not grow.
        let before = window.limit;
        window.acknowledged(1000, 1000);
        assert_eq!(window.limit, before);
        // Neither does one of which nothing is acknowledged.
        window.acknowledged(0, before);
        assert_eq!(window.limit, before);
    }

    #[test]
    fn a_writer_waits_for_a_frame_s_worth() {
        let mut window = Window::new(Congestion::Reno);
        window.limit = 1 << 30;
        let capacity = 1 << 20;
        assert_eq!(window.space(100, 0, capacity), 100);
        assert_eq!(window.space(1 << 21, 0, capacity), capacity);
        assert_eq!(window.space(1 << 16, capacity - (1 << 16), capacity), 1 << 16);
        assert_eq!(window.space(1 << 16, capacity - 60_000, capacity), 0);
        assert_eq!(window.space(1 << 18, capacity - 100_000, capacity), 0);
        assert_eq!(window.space(100, capacity - 100, capacity), 100);
        assert_eq!(window.space(100, capacity - 99, capacity), 0);
        // Of a small window, that is a quarter.
        window.limit = 20_000;
        assert_eq!(window.space(1 << 20, 15_000, capacity), 5000);
        assert_eq!(window.space(1 << 20, 15_001, capacity), 0);
    }

    #[test]
    fn a_loss_halves_it_once_until_everything_is_acknowledged() {
        let mut window = Window::new(Congestion::Reno);
        window.limit = 100_000;
        assert!(window.sends(data(1000, 40_000), 90_000).is_none());
        assert!(window.sends(data(41_000, 40_000), 90_000).is_none());
        assert_eq!(window.sends(data(1000, 1460), 90_000), Some(CongestionControl::Reno));
        assert_eq!((window.limit, window.threshold), (40_000, 40_000));
        assert!(window.sends(data(2460, 1460), 90_000).is_none());
        assert!(window.acknowledged(89_000, 90_000).is_none());
        assert_eq!(window.space(1, 40_000, 1 << 20), 0);
        assert_eq!(window.acknowledged(1000, 1000), Some(CongestionControl::None));
        assert_eq!(window.limit, 40_000);
        // Two segments are the least.
        assert!(window.sends(data(81_000, 1000), 1000).is_none());
        assert!(window.sends(data(81_000, 1000), 1000).is_some());
        assert_eq!((window.limit, window.threshold), (2920, 2920));
    }

    #[test]
    fn a_part_of_what_was_on_its_way_at_the_loss_shows_another_one() {
        let lossy = || {
            let mut window = Window::new(Congestion::Reno);
            window.limit = 100_000;
            // 40,000 of 90,000 bytes wait for the peer's window.
            assert!(window.sends(data(1000, 50_000), 90_000).is_none());
            assert!(!window.misses_more());
            assert!(window.sends(data(1000, 1460), 90_000).is_some());
            window
        };
        let mut window = lossy();
        window.acknowledged(20_000, 90_000);
        assert!(window.misses_more());
        window.acknowledged(30_000, 70_000);
        assert!(!window.misses_more());
        // What follows the first segment is retransmitted anyway.
        let mut window = lossy();
        assert!(window.sends(data(2460, 1460), 90_000).is_none());
        window.acknowledged(1460, 90_000);
        assert!(!window.misses_more());
    }

    #[test]
    fn a_probe_of_one_byte_is_no_data() {
        let ends = (IpAddress::v4(10, 0, 0, 1), IpAddress::v4(10, 0, 0, 2));
        let data_of = |payload: &[u8]| Sent::of(&frame(ends, 7, Some(1), TcpControl::None, payload)).unwrap().data;
        assert_eq!((data_of(&[]), data_of(&[1])), (None, None));
        assert_eq!(data_of(&[1, 2]), Some(data(7, 2)));
    }

    #[test]
    fn without_control_there_is_no_limit() {
        let mut window = Window::new(Congestion::None);
        assert!(window.sends(data(0, 9000), 9000).is_none() && window.sends(data(0, 9000), 9000).is_none());
        assert!(window.acknowledged(9000, 9000).is_none());
        assert_eq!(window.space(1 << 20, 0, 1 << 20), 1 << 20);
    }

    /// Sequence numbers wrap.
    #[test]
    fn the_end_of_the_sequence_space_is_no_loss() {
        let mut window = Window::new(Congestion::Reno);
        for start in [i32::MAX - 5000, i32::MAX, i32::MIN + 4999] {
            assert!(window.sends(data(start, 5000), 5000).is_none());
        }
        assert!(window.sends(data(i32::MAX, 5000), 5000).is_some());
    }
}
