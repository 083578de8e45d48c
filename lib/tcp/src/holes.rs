//! What arrived out of order: ranges behind the next byte that is expected.

use alloc::vec::Vec;

/// Ranges that are kept. Data that would make one more is dropped as if it was lost, so this is more than a window loses when slow start overfills a
/// queue: hundreds of single segments.
const RANGES_MAX: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    start: u64,
    end: u64,
    /// The larger, the later it changed.
    changed: u64,
}

/// Sorted ranges with holes between them.
#[derive(Debug, Default)]
pub struct Holes {
    ranges: Vec<Range>,
    changes: u64,
}

impl Holes {
    /// Whether nothing has arrived out of order.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// How many ranges there are.
    pub fn count(&self) -> usize {
        self.ranges.len()
    }

    /// The end of the last range.
    pub fn end(&self) -> Option<u64> {
        self.ranges.last().map(|range| range.end)
    }

    /// Adds a range. Returns whether there was room for it.
    pub fn add(&mut self, start: u64, end: u64) -> bool {
        let first = self.ranges.partition_point(|range| range.end < start);
        let last = self.ranges.partition_point(|range| range.start <= end);
        if first == last && self.ranges.len() >= RANGES_MAX {
            return false;
        }
        self.changes += 1;
        let touched = &self.ranges[first..last];
        let start = touched.first().map_or(start, |range| range.start.min(start));
        let end = touched.last().map_or(end, |range| range.end.max(end));
        self.ranges.splice(first..last, [Range { start, end, changed: self.changes }]);
        true
    }

    /// Whether all of a range is there.
    pub fn contains(&self, start: u64, end: u64) -> bool {
        let index = self.ranges.partition_point(|range| range.end < end);
        self.ranges.get(index).is_some_and(|range| range.start <= start)
    }

    /// Everything before `next` has arrived in order. Returns the end of what follows without a hole, and forgets that.
    pub fn advance(&mut self, next: u64) -> u64 {
        let count = self.ranges.partition_point(|range| range.start <= next);
        self.ranges.drain(..count).map(|range| range.end).fold(next, u64::max)
    }

    /// The ranges, the one that changed last first (RFC 2018, section 4).
    pub fn latest_first(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut before = u64::MAX;
        core::iter::from_fn(move || {
            let range = self.ranges.iter().filter(|range| range.changed < before).max_by_key(|range| range.changed)?;
            before = range.changed;
            Some((range.start, range.end))
        })
    }

    /// Forgets all, and gives its memory back.
    pub fn clear(&mut self) {
        self.ranges = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    fn all(holes: &Holes) -> Vec<(u64, u64)> {
        holes.latest_first().collect()
    }

    #[test]
    fn ranges_merge_and_the_latest_is_first() {
        let mut holes = Holes::default();
        for (start, end) in [(10, 20), (30, 40), (50, 60)] {
            assert!(holes.add(start, end));
        }
        assert_eq!((all(&holes), holes.end()), (vec![(50, 60), (30, 40), (10, 20)], Some(60)));
        assert!(holes.add(20, 25) && holes.contains(12, 25) && !holes.contains(12, 26));
        assert_eq!(all(&holes), [(10, 25), (50, 60), (30, 40)]);
        assert!(holes.add(22, 55));
        assert_eq!(all(&holes), [(10, 60)]);
        assert_eq!((holes.advance(9), holes.advance(10), holes.is_empty()), (9, 60, true));
    }

    #[test]
    fn their_number_is_bounded_and_what_joins_one_has_room() {
        let mut holes = Holes::default();
        for index in 0..2000 {
            assert_eq!(holes.add(10 * index + 5, 10 * index + 6), index < RANGES_MAX as u64);
        }
        assert!(holes.add(6, 7) && holes.add(7, 15));
        assert_eq!(all(&holes).len(), RANGES_MAX - 1);
    }
}
