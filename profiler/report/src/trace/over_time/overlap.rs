//! Which of many intervals touch a given one.

/// Intervals of a block.
const BLOCK: usize = 256;
/// Intervals of one answer; of more, as many spread evenly.
const FOUND_MAX: usize = 4_096;

/// Intervals in the order of their begin, with the latest end of each block.
#[derive(Debug)]
pub(super) struct Overlap {
    intervals: Vec<(u64, u64)>,
    latest: Vec<u64>,
}

/// What [`Overlap::find`] found.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Places in the order of the intervals.
    pub(super) places: Vec<u32>,
    /// How many intervals each stands for that start after the given moment.
    pub(super) weight: u64,
    /// How many of the places, from the first on, began before the given begin and stand for themselves only.
    pub(super) early: usize,
}

impl Overlap {
    /// `intervals` are in the order of their begin.
    pub(super) fn new(intervals: impl Iterator<Item = (u64, u64)>) -> Overlap {
        let intervals: Vec<(u64, u64)> = intervals.collect();
        let latest = intervals.chunks(BLOCK).map(|block| block.iter().map(|(_, end)| *end).max().unwrap_or(0));
        Overlap { latest: latest.collect(), intervals }
    }

    /// The intervals that overlap with `start_ns..end_ns`.
    pub(super) fn find(&self, start_ns: u64, end_ns: u64) -> Found {
        let first = self.intervals.partition_point(|(start, _)| *start < start_ns);
        let last = self.intervals.partition_point(|(start, _)| *start < end_ns).max(first);
        let mut places = Vec::new();
        for (block, latest) in self.latest.iter().enumerate().take(first.div_ceil(BLOCK)) {
            let range = block * BLOCK..((block + 1) * BLOCK).min(first);
            if *latest > start_ns && places.len() < FOUND_MAX {
                places.extend(range.filter(|place| self.intervals[*place].1 > start_ns).map(|place| place as u32));
            }
        }
        let early = places.len();
        let step = (last - first).div_ceil(FOUND_MAX).max(1);
        places.extend((first..last).step_by(step).map(|place| place as u32));
        Found { places, weight: step as u64, early }
    }
}

impl Found {
    /// Places with what each stands for.
    pub(super) fn weighted(&self) -> impl Iterator<Item = (u32, u64)> {
        self.places.iter().enumerate().map(|(at, place)| (*place, if at < self.early { 1 } else { self.weight }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_as_a_search_through_all() {
        let mut number = 7u64;
        let mut next = |below: u64| {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (number >> 33) % below
        };
        let mut intervals: Vec<(u64, u64)> = (0..3_000)
            .map(|_| {
                let start = next(100_000);
                (start, start + if next(50) == 0 { next(50_000) } else { next(30) })
            })
            .collect();
        intervals.sort_unstable();
        let overlap = Overlap::new(intervals.iter().copied());
        for _ in 0..200 {
            let start = next(100_000);
            let end = start + next(3_000);
            let is_it = |(_, (from, to)): &(u32, &(u64, u64))| {
                (*from < start && *to > start) || (*from >= start && *from < end)
            };
            let expected: Vec<u32> = (0u32..).zip(&intervals).filter(is_it).map(|(place, _)| place).collect();
            assert_eq!(overlap.find(start, end).places, expected);
        }
        let all = overlap.find(0, u64::MAX);
        assert_eq!((all.places.len(), all.weight, all.early), (3_000, 1, 0));
    }

    #[test]
    fn answers_are_bounded() {
        let overlap = Overlap::new((0..100_000).map(|index| (index, index + 1)));
        let found = overlap.find(10, 90_010);
        assert!(found.places.len() <= FOUND_MAX);
        assert_eq!(found.weight, 22);
    }
}
