//! The receiving half: what has arrived, in order or not, and what is acknowledged.

use crate::demand::Demand;
use crate::holes::Holes;
use crate::number::{Numbering, SYN_POSITION};
use crate::ring::Ring;
use crate::wire::{SHIFT_MAX, Sacks};
use core::time::Duration;
use glass_api::Instant;

/// So many segments of a new connection, and after a loss, are acknowledged at once, because the peer's window is small.
const QUICK_SEGMENTS: u8 = 16;

/// So many segments out of order are acknowledged each by itself: a peer that has SACK has seen the hole then, and one report of many blocks is as
/// good as many reports, and costs one frame.
const EARLY_REPORTS: u32 = 3;
/// A window is acknowledged in so many parts at least, each at once, and none longer than two of the longest frames.
const ACKS_PER_WINDOW: u64 = 8;
const ACK_BYTES_MAX: u64 = 128 << 10;

/// The receiving half of a connection.
#[derive(Debug)]
pub struct Receiver {
    numbering: Numbering,
    ring: Ring,
    demand: Demand,
    /// The next position that is expected in order.
    next: u64,
    /// The end of the largest window that the peer was offered.
    announced: u64,
    shift: u8,
    holes: Holes,
    /// Where the peer's data ends, if that is known.
    end: Option<u64>,
    /// What arrived twice and was not reported.
    duplicate: Option<(u64, u64)>,
    /// The peer understands SACK.
    has_sack: bool,
    /// Segments that have arrived out of order since nothing was missing.
    out_of_order: u32,
    /// The longest payload of a segment that we receive, and that was received.
    segment_max: u64,
    segment: u64,
    /// The acknowledgement that was sent last.
    acknowledged: u64,
    wants_ack: bool,
    /// The peer finds out from each such acknowledgement what is missing, so it does not wait for others.
    is_urgent: bool,
    ack_at: Option<Instant>,
    quick: u8,
}

/// The shift with which windows of up to `bytes` bytes fit their field (RFC 7323, section 2.2).
pub fn shift_of(bytes: usize) -> u8 {
    let bits = usize::BITS - bytes.leading_zeros();
    (bits.saturating_sub(u16::BITS) as u8).min(SHIFT_MAX)
}

impl Receiver {
    /// For a connection whose peer's first sequence number is that of `numbering`, with windows of `shift`.
    pub fn new(numbering: Numbering, ring: Ring, shift: u8, segment_max: u64, has_sack: bool) -> Receiver {
        let next = SYN_POSITION + 1;
        // The window of a SYN is never shifted, so it may be smaller than the ring. The next segment announces the rest, no segment of its own.
        let offered = ((ring.limit() as u64) >> shift << shift).min(u64::from(u16::MAX) << shift);
        Receiver {
            numbering,
            ring,
            demand: Demand::default(),
            next,
            announced: next + offered,
            shift,
            holes: Holes::default(),
            end: None,
            duplicate: None,
            has_sack,
            out_of_order: 0,
            segment_max,
            segment: 1,
            acknowledged: next,
            wants_ack: false,
            is_urgent: false,
            ack_at: None,
            quick: QUICK_SEGMENTS,
        }
    }

    /// The shift of the windows that we announce.
    pub fn shift(&self) -> u8 {
        self.shift
    }

    /// The peer's numbers.
    pub fn numbering(&self) -> Numbering {
        self.numbering
    }

    /// The next position that is expected.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The data that was not read.
    pub fn ring(&mut self) -> &mut Ring {
        &mut self.ring
    }

    /// Bytes that were not read.
    pub fn readable(&self) -> usize {
        self.ring.len()
    }

    /// Whether the ring is too short: data is read as fast as that, or what has arrived behind missing data takes half of it.
    pub fn is_short(&self) -> bool {
        let used = |end: u64| self.ring.len() as u64 + (end - self.next);
        self.demand.is_short() || self.holes.end().is_some_and(|end| 2 * used(end) >= self.ring.limit() as u64)
    }

    /// Measures how fast data is read.
    pub fn measure(&mut self, now: Instant, round_trip: Duration) {
        let read = self.next - self.ring.len() as u64;
        self.demand.update(now, read, self.ring.limit() as u64, round_trip);
    }

    /// Makes the ring so many bytes longer.
    pub fn lengthen(&mut self, bytes: usize) {
        self.ring.lengthen(bytes);
        self.demand.clear();
    }

    /// Whether all that the peer sends has arrived.
    pub fn is_finished(&self) -> bool {
        self.end.is_some_and(|end| self.next > end)
    }

    /// Whether the window has room for a segment (RFC 9293, section 3.10.7.4, table 6).
    pub fn is_acceptable(&self, start: u64, length: u64) -> bool {
        let (next, edge) = (self.next, self.announced.max(self.next));
        let is_inside = |position: u64| next <= position && position < edge;
        match (length, edge > next) {
            (0, false) => start == next,
            (0, true) => is_inside(start),
            (_, false) => false,
            (length, true) => {
                is_inside(start) || is_inside(start + length - 1) || (start < next && start + length > edge)
            }
        }
    }

    /// Takes the payload of a segment that is acceptable, and its FIN.
    pub fn receive(&mut self, now: Instant, start: u64, payload: &[u8], has_fin: bool, delay: Duration) {
        let end = start + payload.len() as u64;
        // A peer that has ended sends nothing more; neither does one that ends before what it has sent.
        if has_fin && self.end.is_none() && end >= self.next {
            self.end = Some(end);
        }
        let limit = self.end.unwrap_or(u64::MAX).min(self.next + self.ring.space() as u64);
        let (first, last) = (start.max(self.next), end.min(limit));
        if start < self.next && !payload.is_empty() {
            self.repeats(start, end.min(self.next));
        }
        if first < last {
            let data = &payload[(first - start) as usize..(last - start) as usize];
            self.take(now, first, data, delay);
        }
        if self.end == Some(self.next) {
            self.next += 1;
            self.holes.clear();
            self.wants_ack = true;
        } else if has_fin || (first >= last && !payload.is_empty()) {
            self.wants_ack = true;
        }
    }

    fn take(&mut self, now: Instant, first: u64, data: &[u8], delay: Duration) {
        let count = data.len() as u64;
        let offset = self.ring.len() + (first - self.next) as usize;
        if first > self.next {
            self.wants_ack = true;
            self.is_urgent |= !self.has_sack || self.out_of_order < EARLY_REPORTS;
            self.out_of_order = self.out_of_order.saturating_add(1);
            // The window of a peer that has lost something is small again.
            self.quick = QUICK_SEGMENTS;
            let ranges = self.holes.count();
            if self.holes.contains(first, first + count) {
                self.duplicate.get_or_insert((first, first + count));
                self.is_urgent = true;
            } else if self.ring.write_at(offset, data) {
                self.holes.add(first, first + count);
            }
            // An acknowledgement has few blocks, and may be lost: the peer retransmits what no acknowledgement has reported to it.
            self.is_urgent |= self.holes.count() > ranges;
            return;
        }
        if !self.ring.write_at(offset, data) {
            self.wants_ack = true;
            return;
        }
        let had_holes = !self.holes.is_empty();
        let next = if had_holes { self.holes.advance(first + count) } else { first + count };
        self.ring.extend((next - self.next) as usize);
        self.next = next;
        if self.holes.is_empty() {
            self.out_of_order = 0;
        }
        self.segment = self.segment.max(count.min(self.segment_max));
        // The second segment is acknowledged at once (RFC 9293, section 3.8.6.3), and what fills a hole (RFC 5681, section 4.2).
        if had_holes || self.quick > 0 || self.next - self.acknowledged >= 2 * self.segment {
            self.wants_ack = true;
            self.quick = self.quick.saturating_sub(1);
            // The peer is to send while we process what is behind it.
            let part = (self.ring.limit() as u64 / ACKS_PER_WINDOW).min(ACK_BYTES_MAX);
            self.is_urgent |= self.next - self.acknowledged >= part;
        } else {
            self.ack_at.get_or_insert(now + delay);
        }
    }

    /// Something arrived that was there already: the next acknowledgement reports it (RFC 2883).
    pub fn repeats(&mut self, start: u64, end: u64) {
        if start < end {
            self.duplicate.get_or_insert((start, end));
        }
        self.request_ack();
    }

    /// An acknowledgement is to be sent at once, not together with others.
    pub fn request_ack(&mut self) {
        (self.wants_ack, self.is_urgent) = (true, true);
    }

    /// Whether one of those is to be sent.
    pub fn is_urgent(&self) -> bool {
        self.is_urgent
    }

    /// Whether an acknowledgement is to be sent now: for data, or because the window has grown (RFC 9293, section 3.8.6.2.2).
    pub fn is_ack_due(&self, now: Instant) -> bool {
        self.wants_ack || self.ack_at.is_some_and(|at| at <= now) || self.is_window_larger()
    }

    /// When an acknowledgement is due.
    pub fn ack_at(&self) -> Option<Instant> {
        self.ack_at
    }

    fn is_window_larger(&self) -> bool {
        if self.end.is_some() {
            return false;
        }
        let before = self.announced.saturating_sub(self.next);
        let most = u64::from(u16::MAX) << self.shift;
        let after = (self.ring.space() as u64 >> self.shift << self.shift).min(most);
        let worthwhile = self.segment_max.min(self.ring.limit() as u64 / 2).max(1);
        after >= 2 * before && after - before >= worthwhile
    }

    /// The position that was acknowledged last.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// The window's field of the next header that is sent, which acknowledges all that has arrived.
    pub fn announce(&mut self) -> u16 {
        (self.wants_ack, self.is_urgent, self.ack_at, self.duplicate) = (false, false, None, None);
        self.acknowledged = self.next;
        // The end of a window never moves back, but for what the shift cuts off.
        let window = (self.announced.saturating_sub(self.next)).max(self.ring.space() as u64);
        let field = u16::try_from(window >> self.shift).unwrap_or(u16::MAX);
        self.announced = self.announced.max(self.next + (u64::from(field) << self.shift));
        field
    }

    /// The blocks of the next acknowledgement: what arrived twice first, then at most `count` in all.
    pub fn sacks(&self, count: usize) -> Sacks {
        let mut sacks = Sacks::default();
        if self.duplicate.is_none() && self.holes.is_empty() {
            return sacks;
        }
        for (start, end) in self.duplicate.into_iter().chain(self.holes.latest_first()).take(count) {
            sacks.push(self.numbering.to_wire(start), self.numbering.to_wire(end));
        }
        sacks
    }

    /// Nothing more arrives.
    pub fn end(&mut self) {
        self.holes.clear();
        (self.wants_ack, self.is_urgent, self.ack_at) = (false, false, None);
        self.ring.release();
    }

    /// Gives back the memory of a ring in which nothing is.
    pub fn release(&mut self) {
        if self.holes.is_empty() {
            self.ring.release();
        }
    }
}
