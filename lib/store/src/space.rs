//! Which pages are free, and which only snapshots still read.

use crate::format::{FIRST_PAGE, PAGE_BYTES, Run};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use glass_api::OutOfMemory;

/// Pages that only a commit which removes may take: without them a full store could not shrink.
pub const RESERVE_PAGES: u32 = 32;

/// A bit for each page; freed pages wait here for the snapshots that read them.
pub struct Space {
    used: Vec<u64>,
    pages: u32,
    free: u32,
    /// No page before it is free. Pages of trees are taken from here on, runs of values from the end: so free space stays in long runs.
    next: u32,
    /// By the sequence of the commit that no longer has them.
    freed: VecDeque<(u64, Vec<Run>)>,
    freed_pages: u32,
    /// How many snapshots have each sequence.
    pins: BTreeMap<u64, usize>,
}

impl Space {
    /// All pages free except those of the slots. Takes a bit of memory for each page.
    pub fn new(pages: u32) -> Result<Space, OutOfMemory> {
        let words = (pages as usize).div_ceil(64);
        let mut used = Vec::new();
        used.try_reserve_exact(words).map_err(|_| OutOfMemory { bytes: words * 8 })?;
        used.resize(words, 0);
        let mut space = Space {
            used,
            pages,
            free: pages,
            next: FIRST_PAGE,
            freed: VecDeque::new(),
            freed_pages: 0,
            pins: BTreeMap::new(),
        };
        space.mark(Run { start: 0, pages: FIRST_PAGE });
        Ok(space)
    }

    fn is_used(&self, page: u32) -> bool {
        self.used[page as usize / 64] >> (page % 64) & 1 != 0
    }

    /// Marks pages as used; false if one is outside of the disk or used already.
    pub fn mark(&mut self, run: Run) -> bool {
        let Some(end) = run.start.checked_add(run.pages).filter(|end| *end <= self.pages) else { return false };
        for page in run.start..end {
            if self.is_used(page) {
                return false;
            }
            self.used[page as usize / 64] |= 1 << (page % 64);
            self.free -= 1;
        }
        true
    }

    fn clear(&mut self, run: Run) {
        for page in run.start..run.start + run.pages {
            assert!(self.is_used(page), "page {page} is freed twice");
            self.used[page as usize / 64] &= !(1 << (page % 64));
            self.free += 1;
        }
        self.next = self.next.min(run.start);
    }

    /// The first page from `from` on that is free.
    fn first_free(&self, from: u32) -> Option<u32> {
        let mut page = from;
        while page < self.pages {
            let free = !self.used[page as usize / 64] >> (page % 64);
            if free != 0 {
                return Some(page + free.trailing_zeros()).filter(|page| *page < self.pages);
            }
            page = (page / 64 + 1) * 64;
        }
        None
    }

    /// Takes one page; `None` without any, or with no more than the reserve unless `reserve` allows it.
    pub fn take(&mut self, reserve: bool) -> Option<u32> {
        if self.free <= if reserve { 0 } else { RESERVE_PAGES } {
            return None;
        }
        let page = self.first_free(self.next)?;
        self.mark(Run::one(page));
        self.next = page + 1;
        Some(page)
    }

    /// Takes `pages` pages in at most `runs_max` runs, or none of them. In a disk whose free space is in pieces this reads all bits for each
    /// run.
    pub fn take_runs(&mut self, pages: u32, runs_max: usize) -> Option<Vec<Run>> {
        if self.free < pages.checked_add(RESERVE_PAGES)? {
            return None;
        }
        let (mut runs, mut missing) = (Vec::new(), pages);
        while missing > 0 {
            let run = if runs.len() < runs_max { self.longest_run(missing) } else { None };
            let Some(run) = run else {
                runs.into_iter().for_each(|run| self.clear(run));
                return None;
            };
            self.mark(run);
            missing -= run.pages;
            runs.push(run);
        }
        Some(runs)
    }

    /// The last page before `before` that is free.
    fn last_free(&self, before: u32) -> Option<u32> {
        let mut page = before;
        while page > 0 {
            let word = (page - 1) / 64;
            let free = !self.used[word as usize] & (u64::MAX >> (63 - (page - 1) % 64));
            if free != 0 {
                return Some(word * 64 + 63 - free.leading_zeros());
            }
            page = word * 64;
        }
        None
    }

    /// The last free run of `pages` pages; the longest one if there is none.
    fn longest_run(&self, pages: u32) -> Option<Run> {
        let (mut longest, mut end): (Option<Run>, _) = (None, self.pages);
        while let Some(last) = self.last_free(end) {
            let mut start = last;
            while start > 0 && last - start + 1 < pages && !self.is_used(start - 1) {
                start -= 1;
            }
            let run = Run { start, pages: last - start + 1 };
            if longest.is_none_or(|longest| run.pages > longest.pages) {
                longest = Some(run);
            }
            if run.pages == pages {
                break;
            }
            end = start;
        }
        longest
    }

    /// Gives pages back that no state of the store has.
    pub fn release(&mut self, runs: impl IntoIterator<Item = Run>) {
        runs.into_iter().for_each(|run| self.clear(run));
    }

    /// Pages that the states before `sequence` have, and this one not. They are free when no snapshot is older.
    pub fn free_after(&mut self, sequence: u64, runs: Vec<Run>) {
        self.freed_pages += runs.iter().map(|run| run.pages).sum::<u32>();
        self.freed.push_back((sequence, runs));
        self.collect();
    }

    /// A snapshot of the state `sequence` begins.
    pub fn pin(&mut self, sequence: u64) {
        *self.pins.entry(sequence).or_insert(0) += 1;
    }

    /// It ends.
    pub fn unpin(&mut self, sequence: u64) {
        if let Some(count) = self.pins.get_mut(&sequence) {
            *count -= 1;
            if *count == 0 {
                self.pins.remove(&sequence);
                self.collect();
            }
        }
    }

    fn collect(&mut self) {
        let oldest = self.pins.first_key_value().map_or(u64::MAX, |(sequence, _)| *sequence);
        while self.freed.front().is_some_and(|(sequence, _)| *sequence <= oldest) {
            let Some((_, runs)) = self.freed.pop_front() else { return };
            self.freed_pages -= runs.iter().map(|run| run.pages).sum::<u32>();
            self.release(runs);
        }
    }

    /// Bytes that batches may take.
    pub fn free_bytes(&self) -> u64 {
        u64::from(self.free.saturating_sub(RESERVE_PAGES)) * PAGE_BYTES as u64
    }

    /// Bytes that only snapshots read.
    pub fn freed_bytes(&self) -> u64 {
        u64::from(self.freed_pages) * PAGE_BYTES as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_keeps_what_newer_states_do_not_have() {
        let mut space = Space::new(100).unwrap();
        let free = space.free;
        let page = space.take(false).unwrap();
        space.pin(4);
        space.free_after(5, Vec::from([Run::one(page)]));
        assert_eq!((space.free, space.freed_bytes()), (free - 1, 4096));
        space.unpin(4);
        assert_eq!((space.free, space.freed_bytes()), (free, 0));
    }

    #[test]
    fn the_reserve_is_for_removals() {
        let mut space = Space::new(50).unwrap();
        let taken = core::iter::from_fn(|| space.take(false)).count();
        assert_eq!(taken, 50 - 2 - RESERVE_PAGES as usize);
        assert_eq!(core::iter::from_fn(|| space.take(true)).count(), RESERVE_PAGES as usize);
    }

    #[test]
    fn runs_fill_what_is_free_and_fail_whole() {
        let mut space = Space::new(300).unwrap();
        let pages: Vec<u32> = core::iter::from_fn(|| space.take(true)).collect();
        // Free: 10, 20 and 30 pages, and single ones.
        for (start, count) in [(20, 10), (40, 20), (70, 30)] {
            space.release([Run { start, pages: count }]);
        }
        let free = space.free;
        assert_eq!(pages.len(), 298);
        assert_eq!(space.take_runs(28, 1).unwrap(), [Run { start: 72, pages: 28 }]);
        assert!(space.take_runs(1, 8).is_none(), "the reserve is not for values");
        assert_eq!(space.free, free - 28);
    }

    #[test]
    fn a_page_outside_or_twice_is_found() {
        let mut space = Space::new(100).unwrap();
        assert!(space.mark(Run { start: 10, pages: 5 }));
        assert!(!space.mark(Run { start: 14, pages: 2 }));
        assert!(!space.mark(Run { start: 99, pages: 2 }));
        assert!(!space.mark(Run { start: u32::MAX, pages: 2 }));
        assert!(!space.mark(Run::one(0)));
    }
}
