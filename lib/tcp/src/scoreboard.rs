//! What was sent and is not acknowledged: ranges with the time at which they were sent.

use crate::rate::Stamp;
use alloc::collections::VecDeque;
use glass_api::Instant;

/// Ranges that there may be. Nothing new is sent and no range is cut beyond it.
const RANGES_MAX: usize = 4096;
/// What is sent in one moment is one range, up to so many bytes.
const JOINED_BYTES_MAX: u64 = 64 << 10;

/// What is known of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is in flight.
    Sent,
    /// The peer has it, but not all before it.
    Sacked,
    /// It is lost, and to be retransmitted.
    Lost,
}

/// Positions that were sent together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The first one.
    pub start: u64,
    /// The one after the last.
    pub end: u64,
    /// When they were sent last.
    pub sent_at: Instant,
    /// How often they were retransmitted.
    pub retransmissions: u8,
    /// What is known of them.
    pub fate: Fate,
    /// They are a segment that is longer than others, and never joined with them.
    pub is_probe: bool,
    /// For the delivery rate.
    pub stamp: Stamp,
}

impl Range {
    /// Its length.
    pub fn bytes(&self) -> u64 {
        self.end - self.start
    }
}

/// All ranges, sorted, without holes between them.
#[derive(Debug, Default)]
pub struct Scoreboard {
    ranges: VecDeque<Range>,
    sent_bytes: u64,
    sacked_bytes: u64,
    lost_bytes: u64,
}

impl Scoreboard {
    /// Whether all that was sent is acknowledged.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Whether one more range may be sent.
    pub fn has_space(&self) -> bool {
        self.ranges.len() < RANGES_MAX
    }

    /// Bytes in flight: sent, not delivered and not lost.
    pub fn in_flight(&self) -> u64 {
        self.sent_bytes
    }

    /// Bytes that the peer has out of order.
    pub fn sacked_bytes(&self) -> u64 {
        self.sacked_bytes
    }

    /// Bytes that are lost and not retransmitted yet.
    pub fn lost_bytes(&self) -> u64 {
        self.lost_bytes
    }

    /// The first range.
    pub fn first(&self) -> Option<&Range> {
        self.ranges.front()
    }

    /// The last range.
    pub fn last(&self) -> Option<&Range> {
        self.ranges.back()
    }

    fn count(&mut self, fate: Fate) -> &mut u64 {
        match fate {
            Fate::Sent => &mut self.sent_bytes,
            Fate::Sacked => &mut self.sacked_bytes,
            Fate::Lost => &mut self.lost_bytes,
        }
    }

    fn set_fate(&mut self, index: usize, fate: Fate) {
        let Range { start, end, fate: before, .. } = self.ranges[index];
        *self.count(before) -= end - start;
        *self.count(fate) += end - start;
        self.ranges[index].fate = fate;
    }

    /// New data was sent: up to `end`, from where the last range ends or, if there is none, from `start`.
    pub fn push(&mut self, start: u64, end: u64, sent_at: Instant, is_probe: bool, stamp: Stamp) {
        self.sent_bytes += end - start;
        if let Some(last) = self.ranges.back_mut() {
            debug_assert_eq!(last.end, start);
            let joins = last.sent_at == sent_at && last.fate == Fate::Sent && last.retransmissions == 0;
            if joins && !last.is_probe && !is_probe && end - last.start <= JOINED_BYTES_MAX {
                last.end = end;
                last.stamp.in_flight = stamp.in_flight;
                return;
            }
        }
        self.ranges.push_back(Range { start, end, sent_at, retransmissions: 0, fate: Fate::Sent, is_probe, stamp });
    }

    /// Everything before `position` is acknowledged. Calls `deliver` for each piece that was not known to be delivered.
    pub fn acknowledge(&mut self, position: u64, mut deliver: impl FnMut(&Range)) {
        while let Some(first) = self.ranges.front_mut()
            && first.start < position
        {
            let piece = Range { end: first.end.min(position), ..*first };
            if piece.end == first.end {
                self.ranges.pop_front();
            } else {
                first.start = position;
            }
            *self.count(piece.fate) -= piece.bytes();
            if piece.fate != Fate::Sacked {
                deliver(&piece);
            }
        }
    }

    /// Cuts the range that contains `position` in its inside. Returns the index of the range that starts there, or the first one that
    /// starts later.
    fn cut(&mut self, position: u64) -> usize {
        let index = self.ranges.partition_point(|range| range.end <= position);
        let is_full = self.ranges.len() >= RANGES_MAX;
        let Some(range) = self.ranges.get_mut(index) else { return index };
        if range.start >= position {
            return index;
        }
        if is_full {
            return index + 1;
        }
        let rest = Range { start: position, ..*range };
        range.end = position;
        self.ranges.insert(index + 1, rest);
        index + 1
    }

    /// The peer has `start..end`. Calls `deliver` for each piece of it that was not known to be delivered.
    pub fn sack(&mut self, start: u64, end: u64, mut deliver: impl FnMut(&Range)) {
        let known = self.ranges.partition_point(|range| range.end <= start);
        let is_known = self
            .ranges
            .get(known)
            .is_some_and(|range| range.fate == Fate::Sacked && range.start <= start && end <= range.end);
        if is_known {
            return;
        }
        let first = self.cut(start);
        let mut last = self.cut(end);
        // One that could not be cut is not reported as delivered.
        if last > first && self.ranges[last - 1].end > end {
            last -= 1;
        }
        for index in first..last {
            if self.ranges[index].fate != Fate::Sacked {
                deliver(&self.ranges[index]);
                self.set_fate(index, Fate::Sacked);
            }
        }
        self.join_sacked(first, last);
    }

    /// Makes the sacked ranges in `first..last` and beside them one.
    fn join_sacked(&mut self, first: usize, last: usize) {
        let is_sacked = |index: usize| self.ranges.get(index).is_some_and(|range| range.fate == Fate::Sacked);
        let mut from = first;
        while from > 0 && is_sacked(from - 1) {
            from -= 1;
        }
        let mut to = last;
        while is_sacked(to) {
            to += 1;
        }
        if to > from + 1 {
            self.ranges[from].end = self.ranges[to - 1].end;
            self.ranges.drain(from + 1..to);
        }
    }

    /// Finds lost ranges: calls `is_lost` for each that is in flight and starts before `end`; `lose` is called for those that are.
    pub fn lose(&mut self, end: u64, mut is_lost: impl FnMut(&Range) -> bool, mut lose: impl FnMut(&Range)) {
        for index in 0..self.ranges.len() {
            let range = self.ranges[index];
            if range.start >= end {
                break;
            }
            if range.fate == Fate::Sent && is_lost(&range) {
                self.set_fate(index, Fate::Lost);
                self.ranges[index].is_probe = false;
                lose(&range);
            }
        }
    }

    /// The first `bytes` bytes are lost, if they are in flight.
    pub fn lose_first(&mut self, bytes: u64, mut lose: impl FnMut(&Range)) {
        let Some(first) = self.ranges.front() else { return };
        if first.fate == Fate::Sent {
            let end = first.start + bytes;
            self.cut(end);
            self.lose(end, |_| true, &mut lose);
        }
    }

    /// The peer may drop what it has out of order (RFC 2018, section 8): nothing of it counts any more.
    pub fn forget_sacks(&mut self) {
        for index in 0..self.ranges.len() {
            if self.ranges[index].fate == Fate::Sacked {
                self.set_fate(index, Fate::Lost);
            }
        }
    }

    /// Nothing is lost after all.
    pub fn restore_lost(&mut self) {
        for index in 0..self.ranges.len() {
            if self.ranges[index].fate == Fate::Lost {
                self.set_fate(index, Fate::Sent);
            }
        }
    }

    /// The first range that is lost.
    pub fn first_lost(&self) -> Option<&Range> {
        if self.lost_bytes == 0 { None } else { self.ranges.iter().find(|range| range.fate == Fate::Lost) }
    }

    /// `start..end`, within one range, is retransmitted now. A piece that cannot be cut off counts with its whole range.
    pub fn retransmit(&mut self, start: u64, end: u64, now: Instant, stamp: Stamp) {
        self.cut(start);
        self.cut(end);
        let index = self.ranges.partition_point(|range| range.end <= start);
        if index < self.ranges.len() {
            self.set_fate(index, Fate::Sent);
            let range = &mut self.ranges[index];
            (range.sent_at, range.is_probe, range.stamp) = (now, false, stamp);
            range.retransmissions = range.retransmissions.saturating_add(1);
        }
    }

    /// Gives its memory back.
    pub fn clear(&mut self) {
        *self = Scoreboard::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Fate::{Lost, Sacked, Sent};
    use alloc::vec::Vec;

    fn board(ranges: usize) -> Scoreboard {
        let mut board = Scoreboard::default();
        for index in 0..ranges as u64 {
            board.push(100 * index, 100 * index + 100, Instant(index), false, Stamp::default());
        }
        board
    }

    fn shape(board: &Scoreboard) -> Vec<(u64, u64, Fate)> {
        let sum = |fate| board.ranges.iter().filter(|range| range.fate == fate).map(Range::bytes).sum::<u64>();
        assert_eq!((board.in_flight(), board.sacked_bytes(), board.lost_bytes()), (sum(Sent), sum(Sacked), sum(Lost)));
        board.ranges.iter().map(|range| (range.start, range.end, range.fate)).collect()
    }

    #[test]
    fn what_is_delivered_is_reported_once() {
        let mut board = board(3);
        let mut delivered = Vec::new();
        board.sack(150, 250, |piece| delivered.push((piece.start, piece.end)));
        board.sack(120, 250, |piece| delivered.push((piece.start, piece.end)));
        board.sack(130, 240, |piece| delivered.push((piece.start, piece.end)));
        assert_eq!(delivered, [(150, 200), (200, 250), (120, 150)]);
        assert_eq!(shape(&board), [(0, 100, Sent), (100, 120, Sent), (120, 250, Sacked), (250, 300, Sent)]);
        board.acknowledge(130, |piece| delivered.push((piece.start, piece.end)));
        assert_eq!(delivered[3..], [(0, 100), (100, 120)]);
        board.acknowledge(300, |piece| delivered.push((piece.start, piece.end)));
        assert_eq!((&delivered[5..], board.is_empty(), board.in_flight()), (&[(250, 300)][..], true, 0));
    }

    #[test]
    fn what_is_lost_is_retransmitted_in_pieces() {
        let mut board = board(2);
        let mut lost = 0;
        board.lose(150, |range| range.sent_at == Instant(0), |range| lost += range.bytes());
        assert_eq!((lost, shape(&board)), (100, [(0, 100, Lost), (100, 200, Sent)].to_vec()));
        board.retransmit(0, 60, Instant(9), Stamp::default());
        assert_eq!(shape(&board), [(0, 60, Sent), (60, 100, Lost), (100, 200, Sent)]);
        assert_eq!(board.first_lost().map(|range| range.start), Some(60));
        assert_eq!(board.first().unwrap().retransmissions, 1);
        board.sack(150, 200, |_| ());
        board.forget_sacks();
        assert_eq!(board.lost_bytes(), 90);
    }

    #[test]
    fn a_peer_that_reports_single_bytes_makes_a_bounded_number_of_ranges() {
        let mut board = Scoreboard::default();
        board.push(0, 60_000, Instant(0), false, Stamp::default());
        let mut delivered = 0;
        for position in (0..60_000).step_by(2) {
            board.sack(position, position + 1, |piece| delivered += piece.bytes());
        }
        assert_eq!((board.ranges.len(), delivered), (RANGES_MAX, board.sacked_bytes()));
        shape(&board);
        board.retransmit(50_000, 50_100, Instant(1), Stamp::default());
        board.acknowledge(60_000, |piece| delivered += piece.bytes());
        assert_eq!(delivered, 60_000);
    }

    #[test]
    fn what_is_sent_in_one_moment_is_one_range() {
        let mut board = Scoreboard::default();
        for index in 0..100 {
            board.push(1000 * index, 1000 * (index + 1), Instant(7), false, Stamp::default());
        }
        assert_eq!(board.ranges.len(), 2);
    }
}
