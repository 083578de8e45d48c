//! Where the log of the index ends, and which pages are written behind it.
//!
//! A commit is its blocks of the log and a flush. When half of the log is in use a *checkpoint* begins: the pages that have changed since the one
//! before are written, a few beside each commit, to the places that no checkpoint names; then, beside another commit, the checkpoint that names
//! them. Once that is durable, the log begins there. Until then nothing that the checkpoint before needs is overwritten.

use crate::format::{Checkpoint, LOG_ENTRIES, Layout, PAGE_ENTRIES, Table};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::mem;

/// Pages that are written beside one commit: at least, and at most unless the log is full.
const STEP_PAGES_MIN: usize = 4;
/// See [`STEP_PAGES_MIN`]: 256 KiB in memory.
const STEP_PAGES_MAX: usize = 64;
/// A commit has at most one in so many blocks of the log.
const COMMIT_PART: usize = 4;

/// The log and the checkpoints of an index.
pub(crate) struct Journal {
    layout: Layout,
    /// The number of the newest durable checkpoint.
    number: u64,
    /// For each page of it whether it is in the second area, and its checksum.
    places: Vec<bool>,
    sums: Vec<u64>,
    /// The log begins with this block, and the next commit is written to this one.
    first: u64,
    next: u64,
    /// Pages that have changed since they were written last.
    dirty: BTreeSet<u32>,
    work: Option<Work>,
}

/// A checkpoint that is not durable yet.
struct Work {
    /// Its place of each page is the one that the checkpoint before does not name, if the page is written.
    checkpoint: Checkpoint,
    sums: Vec<u64>,
    /// Pages that are to be written, and those that no flush covers.
    todo: BTreeSet<u32>,
    unflushed: Vec<u32>,
}

/// What is written beside a commit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Nothing,
    /// These pages.
    Pages(Vec<u32>),
    /// All pages are durable: the checkpoint.
    Checkpoint,
}

impl Journal {
    /// Of an index with this newest checkpoint, whose pages have these checksums. `next` is the log block of the next commit; `dirty` pages are
    /// changed by the log.
    pub(crate) fn new(
        layout: Layout,
        checkpoint: &Checkpoint,
        sums: Vec<u64>,
        next: u64,
        dirty: BTreeSet<u32>,
    ) -> Journal {
        let Checkpoint { number, log_block: first, .. } = *checkpoint;
        Journal { layout, number, places: checkpoint.places.clone(), sums, first, next, dirty, work: None }
    }

    /// The same with a layout that differs in the blocks of the queue.
    pub(crate) fn with_layout(self, layout: Layout) -> Journal {
        Journal { layout, ..self }
    }

    /// Places of the index that one commit may change.
    pub(crate) fn changes_max(layout: Layout) -> usize {
        layout.log_blocks as usize / COMMIT_PART * LOG_ENTRIES
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// The number of the newest durable checkpoint.
    pub(crate) fn checkpoint(&self) -> u64 {
        self.number
    }

    /// The log block of the next commit.
    pub(crate) fn next_block(&self) -> u64 {
        self.next
    }

    /// The last block of the newest commit, if it is still in the log.
    pub(crate) fn last_block(&self) -> Option<u64> {
        (self.next > self.first).then(|| self.next - 1)
    }

    /// Whether the log has room for so many blocks.
    pub(crate) fn has_space(&self, blocks: u32) -> bool {
        self.next - self.first + u64::from(blocks) <= u64::from(self.layout.log_blocks)
    }

    /// Begins a checkpoint if the log, with so many blocks more, is half full, and none has begun. `sequence` is the newest durable commit, and
    /// `table` has its entries.
    pub(crate) fn begin_if_due(&mut self, blocks: u32, sequence: u64, next_id: u64, table: &Table) {
        let used = self.next - self.first + u64::from(blocks);
        if self.work.is_none() && used > u64::from(self.layout.log_blocks / 2) {
            self.begin(sequence, next_id, table);
        }
    }

    /// Begins a checkpoint, unless one has begun.
    pub(crate) fn begin(&mut self, sequence: u64, next_id: u64, table: &Table) {
        if self.work.is_some() {
            return;
        }
        let pages = table.used_pages();
        let mut todo = mem::take(&mut self.dirty);
        // Pages behind the end have no entry, and are not part of it.
        _ = todo.split_off(&pages);
        todo.extend(self.places.len() as u32..pages);
        let (mut places, mut sums) = (self.places.clone(), self.sums.clone());
        places.resize(pages as usize, true);
        sums.resize(pages as usize, 0);
        todo.iter().for_each(|page| places[*page as usize] = !places[*page as usize]);
        let checkpoint =
            Checkpoint { number: self.number + 1, sequence, next_id, log_block: self.next, sum: 0, places };
        self.work = Some(Work { checkpoint, sums, todo, unflushed: Vec::new() });
    }

    /// What is to be written now, beside a commit with so many blocks, or (0) without one. Pages count as unchanged from now on.
    pub(crate) fn step(&mut self, blocks: u32) -> Step {
        let space = u64::from(self.layout.log_blocks) - (self.next - self.first);
        let Some(work) = &mut self.work else { return Step::Nothing };
        if work.todo.is_empty() {
            // What was written without a flush is written again after a failure, before this is called.
            return Step::Checkpoint;
        }
        // One more commit is left for the checkpoint itself, and one for a larger commit than this one.
        let commits = space.checked_div(u64::from(blocks)).map_or(1, |commits| commits.saturating_sub(3).max(1));
        let count = work.todo.len().div_ceil(commits as usize).clamp(STEP_PAGES_MIN, STEP_PAGES_MAX);
        let pages: Vec<u32> = work.todo.iter().take(count).copied().collect();
        for page in &pages {
            work.todo.remove(page);
            self.dirty.remove(page);
        }
        work.unflushed.extend(&pages);
        Step::Pages(pages)
    }

    /// Where a page of the checkpoint is written.
    pub(crate) fn page_place(&self, page: u32) -> u32 {
        let work = self.work.as_ref().expect("a checkpoint has begun");
        self.layout.page_place(page, work.checkpoint.places[page as usize])
    }

    /// A page of the checkpoint has this checksum.
    pub(crate) fn set_sum(&mut self, page: u32, sum: u64) {
        self.work.as_mut().expect("a checkpoint has begun").sums[page as usize] = sum;
    }

    /// Writes the checkpoint to `bytes`, which has room for it, and returns how many of them are written to the device.
    pub(crate) fn encode_checkpoint(&mut self, bytes: &mut [u8]) -> usize {
        let Work { checkpoint, sums, .. } = self.work.as_mut().expect("a checkpoint has begun");
        checkpoint.sum = sums.iter().copied().fold(0, u64::wrapping_add);
        checkpoint.encode(bytes)
    }

    /// First block of the checkpoint that has begun.
    pub(crate) fn checkpoint_place(&self) -> u32 {
        self.layout.checkpoint_start(self.number + 1)
    }

    /// What `step` has is durable.
    pub(crate) fn stepped(&mut self, step: &Step) {
        match step {
            Step::Nothing => {}
            Step::Pages(_) => self.work.iter_mut().for_each(|work| work.unflushed.clear()),
            Step::Checkpoint => {
                let Work { checkpoint, sums, .. } = self.work.take().expect("a checkpoint has begun");
                (self.number, self.first) = (checkpoint.number, checkpoint.log_block);
                (self.places, self.sums) = (checkpoint.places, sums);
            }
        }
    }

    /// What was written since the last flush that succeeded may be lost: it is written again. A checkpoint, which may be on the disk,
    /// in the same way; no page is written before it is durable.
    pub(crate) fn failed(&mut self) {
        if let Some(work) = &mut self.work {
            work.todo.extend(work.unflushed.drain(..));
        }
    }

    /// A commit with so many blocks is durable, and has changed these places.
    pub(crate) fn committed(&mut self, blocks: u32, places: impl Iterator<Item = u32>) {
        self.next += u64::from(blocks);
        self.dirty.extend(places.map(|place| place / PAGE_ENTRIES));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::ENTRY_BYTES;

    /// Pages of an index whose checkpoints take many steps.
    const PAGES: u32 = 1000;

    /// With commits as large as may be, the log is full before the pages are written: nothing that the newest durable checkpoint needs is written
    /// again, and steps of their own make room.
    #[test]
    fn the_log_begins_with_the_newest_durable_checkpoint() {
        let layout = Layout::with_pages(100_000, 1, PAGES);
        let mut table = Table::new();
        (0..PAGES).for_each(|_| table.grow().unwrap());
        table.set(PAGES * PAGE_ENTRIES - 1, &[1; ENTRY_BYTES]);
        let (places, sums) = (Vec::from([false; PAGES as usize]), Vec::from([0; PAGES as usize]));
        let start = Checkpoint { number: 1, sequence: 0, next_id: 1, log_block: 0, sum: 0, places };
        let mut journal = Journal::new(layout, &start, sums, 0, BTreeSet::new());
        let blocks = layout.log_blocks / COMMIT_PART as u32;
        // The first log blocks that the durable checkpoint and the next one need.
        let (mut durable, mut next, mut alone, mut checkpoints) = (0, None, 0, 0);
        for commit in 1..200 {
            let mut step = |journal: &mut Journal, blocks: u32| {
                if journal.work.is_some() {
                    next.get_or_insert(journal.next_block());
                }
                let step = journal.step(blocks);
                assert!(journal.next_block() + u64::from(blocks) - durable <= u64::from(layout.log_blocks), "{commit}");
                journal.stepped(&step);
                if step == Step::Checkpoint {
                    durable = next.take().expect("it has begun");
                    checkpoints += 1;
                }
            };
            while !journal.has_space(blocks) {
                journal.begin(commit, 1, &table);
                step(&mut journal, 0);
                alone += 1;
            }
            journal.begin_if_due(blocks, commit, 1, &table);
            step(&mut journal, blocks);
            journal.committed(blocks, (0..PAGES).map(|page| page * PAGE_ENTRIES));
        }
        assert!(alone > 100 && checkpoints > 20, "{alone} steps without a commit, {checkpoints} checkpoints");
    }
}
