//! Which pages of a rank's memory are free: what `mmap` takes and `munmap` gives back.

use crate::paging::PAGE_BYTES;
use alloc::vec::Vec;
use core::ops::Range;

/// Free pages as ranges of addresses, in order, with something in use between any two.
#[derive(Debug)]
pub struct Pages {
    free: Vec<Range<u64>>,
    /// All pages that there are.
    all: Range<u64>,
}

impl Pages {
    /// All pages of `all` are free.
    pub fn new(all: Range<u64>) -> Pages {
        let all = all.start.next_multiple_of(PAGE_BYTES)..all.end / PAGE_BYTES * PAGE_BYTES;
        Pages { free: Vec::from([all.clone()]), all }
    }

    /// Takes whole pages for `bytes` bytes, the lowest that there are; `None` if there are too few in a row.
    pub fn take(&mut self, bytes: u64) -> Option<Range<u64>> {
        let bytes = bytes.checked_next_multiple_of(PAGE_BYTES).filter(|bytes| *bytes > 0)?;
        let index = self.free.iter().position(|range| range.end - range.start >= bytes)?;
        let range = &mut self.free[index];
        let taken = range.start..range.start + bytes;
        range.start = taken.end;
        if range.is_empty() {
            self.free.remove(index);
        }
        Some(taken)
    }

    /// Gives the pages of `range` back; those that are free already, or not of this memory, stay what they are.
    pub fn give(&mut self, range: Range<u64>) {
        let mut start = (range.start / PAGE_BYTES * PAGE_BYTES).max(self.all.start);
        let mut end = range.end.checked_next_multiple_of(PAGE_BYTES).unwrap_or(u64::MAX).min(self.all.end);
        if start >= end {
            return;
        }
        // What it touches becomes one range with it.
        let first = self.free.partition_point(|free| free.end < start);
        let last = self.free.partition_point(|free| free.start <= end);
        if first < last {
            start = start.min(self.free[first].start);
            end = end.max(self.free[last - 1].end);
        }
        self.free.splice(first..last, core::iter::once(start..end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_back_and_join() {
        let mut pages = Pages::new(0x1001..0x9fff);
        assert_eq!(pages.take(1), Some(0x2000..0x3000));
        assert_eq!(pages.take(0x2001), Some(0x3000..0x6000));
        assert_eq!(pages.take(0x4000), None);
        assert_eq!(pages.take(0), None);
        assert_eq!(pages.take(u64::MAX), None);
        pages.give(0x4000..0x5000);
        assert_eq!(pages.free, [0x4000..0x5000, 0x6000..0x9000]);
        assert_eq!(pages.take(0x1000), Some(0x4000..0x5000));
        // Twice, and more than there is.
        pages.give(0x2000..0x2001);
        pages.give(0..0x4000);
        assert_eq!(pages.free, [0x2000..0x4000, 0x6000..0x9000]);
        pages.give(0x4000..u64::MAX);
        assert!(pages.free.iter().eq(&Some(0x2000..0x9000)));
        pages.give(0xa000..0xb000);
        pages.give(0x5000..0x5000);
        assert!(pages.free.iter().eq(&Some(0x2000..0x9000)));
        assert_eq!(pages.take(0x7000), Some(0x2000..0x9000));
        assert!(pages.free.is_empty());
        pages.give(0x3000..0x4000);
        assert_eq!(pages.take(0x1000), Some(0x3000..0x4000));
    }
}
