//! How changes become durable: the task of commits, and its flushes.
//!
//! A commit is a write to the log of the index and a flush, for all changes whose data an earlier flush has covered: mostly the flush of
//! the commit before. A flush without a commit is only needed if none was in progress when the data was written (decision 66). Pages of the
//! index and checkpoints are written beside commits, and share their flushes (decision 74).

use crate::allocator::Space;
use crate::changes::Batch;
use crate::error::Health;
use crate::format::{BLOCK_BYTES, EntryBytes, LOG_ENTRIES, LogBlock, log_blocks};
use crate::inflight::InFlight;
use crate::journal::Step;
use crate::limits::INDEX_WRITES;
use crate::store::Store;
use crate::telemetry::{COMMITS, FLUSHES, ITEMS_QUEUED};
use alloc::vec::Vec;
use core::cell::Cell;
use glasshouse::future::select;
use glasshouse::tracing::{Instrument, info_span};
use glasshouse::{Block, BlockError, Buf};

impl<B: Block> Store<B> {
    /// How many flushes have failed so far.
    pub(crate) fn lost_flushes(&self) -> u64 {
        self.inner.state.borrow().lost_flushes
    }

    /// Commits changes, without end. Changes that arrive during a commit share the next one.
    pub async fn run(&self) {
        select(self.run_commits(), self.run_abandoned()).await;
    }

    async fn run_commits(&self) {
        loop {
            let dirty = self.inner.dirty.notified();
            if self.inner.wants_check.take() {
                self.check().instrument(info_span!("check of the disk")).await;
                self.inner.changed.notify_all();
                continue;
            }
            let batch = self.inner.state.borrow_mut().changes.begin();
            match batch {
                Some(batch) => {
                    self.commit(batch).instrument(info_span!("commit of changes")).await;
                    self.inner.changed.notify_all();
                }
                None if self.wants_flush() => self.flush_data().instrument(info_span!("flush of data")).await,
                None => dirty.await,
            }
        }
    }

    /// One commit.
    pub(crate) async fn commit(&self, batch: Batch) {
        let inner = &*self.inner;
        if let Err(error) = self.check_writable() {
            return inner.state.borrow_mut().changes.fail(batch, error);
        }
        let (plan, sequence) = self.with_changes(|changes| (changes.plan(&batch), changes.sequence() + 1));
        let blocks = log_blocks(plan.changes.len());
        let written = async {
            while !inner.journal.borrow().has_space(blocks) {
                self.write_checkpoint_part().await?;
            }
            self.write_commit(sequence, &plan.changes).await
        };
        if let Err(error) = written.await {
            inner.health.set(Health::Failing(error));
            return inner.state.borrow_mut().changes.fail(batch, error.into());
        }
        inner.health.set(Health::Good);
        inner.journal.borrow_mut().committed(blocks, plan.changes.iter().map(|(place, _)| *place));
        let free = inner.state.borrow_mut().changes.succeed(batch, plan, sequence, &inner.allocator);
        if inner.discards.get() {
            self.discard(&free).await;
        }
        // The space of removed items is freed here.
        drop(free);
        COMMITS.add(1);
        ITEMS_QUEUED.set(self.with_changes(|changes| changes.index().count()) as i64);
        self.update_gauges();
    }

    /// Discards the data of removed items.
    async fn discard(&self, spaces: &[Space]) {
        for extent in spaces.iter().flat_map(|space| &space.extents).filter(|extent| extent.blocks > 0) {
            let offset = u64::from(extent.start) * BLOCK_BYTES as u64;
            // A hint: nothing is wrong when it fails.
            let _ = self.inner.block.discard(offset, extent.blocks as usize * BLOCK_BYTES).await;
        }
    }

    /// Writes a commit, what is due of a checkpoint, and flushes both.
    async fn write_commit(&self, sequence: u64, changes: &[(u32, EntryBytes)]) -> Result<(), BlockError> {
        let blocks = log_blocks(changes.len());
        let step = {
            let (state, mut journal) = (self.inner.state.borrow(), self.inner.journal.borrow_mut());
            let (newest, next_id) = (state.changes.sequence(), state.changes.next_id());
            journal.begin_if_due(blocks, newest, next_id, state.changes.index().table());
            journal.step(blocks)
        };
        let writes = self.log_writes(sequence, changes).and_then(|mut writes| {
            writes.extend(self.step_writes(&step)?);
            Ok(writes)
        });
        self.end_step(&step, writes).await
    }

    /// Writes a part of a checkpoint without a commit, because the log is full.
    async fn write_checkpoint_part(&self) -> Result<(), BlockError> {
        let step = {
            let (state, mut journal) = (self.inner.state.borrow(), self.inner.journal.borrow_mut());
            journal.begin(state.changes.sequence(), state.changes.next_id(), state.changes.index().table());
            journal.step(0)
        };
        self.end_step(&step, self.step_writes(&step)).await
    }

    /// Writes what a step has, and flushes it.
    async fn end_step(&self, step: &Step, writes: Result<Vec<(u32, Buf)>, BlockError>) -> Result<(), BlockError> {
        let flushed = async {
            self.write_all(writes?).await?;
            self.flush().await
        };
        let flushed = flushed.await;
        let mut journal = self.inner.journal.borrow_mut();
        match flushed {
            Ok(()) => journal.stepped(step),
            Err(_) => journal.failed(),
        }
        flushed
    }

    /// The blocks of a commit, and where they are written.
    fn log_writes(&self, sequence: u64, changes: &[(u32, EntryBytes)]) -> Result<Vec<(u32, Buf)>, BlockError> {
        let journal = self.inner.journal.borrow();
        let next_id = self.with_changes(|changes| changes.next_id());
        let (layout, first, parts) = (journal.layout(), journal.next_block(), log_blocks(changes.len()));
        // At the end of the ring the others continue at its start.
        let before_end = (layout.log_start() + layout.log_blocks - layout.log_place(first)).min(parts);
        let mut writes = Vec::new();
        for range in [0..before_end, before_end..parts].into_iter().filter(|range| !range.is_empty()) {
            let place = layout.log_place(first + u64::from(range.start));
            let mut buf = index_buf(range.len() * BLOCK_BYTES)?;
            let bytes = buf.as_mut().expect("a new buffer has one owner");
            for (part, block) in range.zip(bytes.chunks_exact_mut(BLOCK_BYTES)) {
                let header = LogBlock { number: first + u64::from(part), sequence, next_id, part, parts };
                header.encode(changes.chunks(LOG_ENTRIES).nth(part as usize).unwrap_or_default(), block);
            }
            writes.push((place, buf));
        }
        Ok(writes)
    }

    /// What a step writes, and where; pages beside each other at once.
    fn step_writes(&self, step: &Step) -> Result<Vec<(u32, Buf)>, BlockError> {
        let (state, mut journal) = (self.inner.state.borrow(), self.inner.journal.borrow_mut());
        let pages = match step {
            Step::Nothing => return Ok(Vec::new()),
            Step::Checkpoint => {
                let mut buf = index_buf(journal.layout().checkpoint_blocks() as usize * BLOCK_BYTES)?;
                let used = journal.encode_checkpoint(buf.as_mut().expect("a new buffer has one owner"));
                return Ok(Vec::from([(journal.checkpoint_place(), buf.slice(0..used))]));
            }
            Step::Pages(pages) => pages,
        };
        let place_of = |page: &u32| journal.page_place(*page);
        let runs: Vec<(u32, &[u32])> = pages
            .chunk_by(|first, second| place_of(first) + 1 == place_of(second))
            .map(|run| (place_of(&run[0]), run))
            .collect();
        let (table, sequence) = (state.changes.index().table(), state.changes.sequence());
        let mut writes = Vec::new();
        for (place, run) in runs {
            let mut buf = index_buf(run.len() * BLOCK_BYTES)?;
            let bytes = buf.as_mut().expect("a new buffer has one owner");
            for (page, block) in run.iter().zip(bytes.chunks_exact_mut(BLOCK_BYTES)) {
                journal.set_sum(*page, table.encode_page(*page, sequence, block));
            }
            writes.push((place, buf));
        }
        Ok(writes)
    }

    /// Writes all of these, a few at a time, and returns the first error.
    async fn write_all(&self, writes: Vec<(u32, Buf)>) -> Result<(), BlockError> {
        let (mut running, mut result) = (InFlight::new(), Ok(()));
        for (place, buf) in writes {
            let block = self.inner.block.clone();
            running.push(async move { block.write(u64::from(place) * BLOCK_BYTES as u64, buf).await.0 }).await;
            if running.len() >= INDEX_WRITES {
                result = result.and(running.pop().await.unwrap_or(Ok(())));
            }
        }
        while let Some(ended) = running.pop().await {
            result = result.and(ended);
        }
        result
    }

    /// Bytes of data have been written.
    pub(crate) fn wrote(&self, bytes: usize) {
        let unflushed_bytes = &self.inner.unflushed_bytes;
        unflushed_bytes.set(unflushed_bytes.get() + bytes as u64);
        if self.wants_early_flush() {
            self.inner.dirty.notify_all();
        }
    }

    fn wants_early_flush(&self) -> bool {
        self.inner.unflushed_bytes.get() >= self.inner.early_flush_bytes.get()
    }

    fn wants_flush(&self) -> bool {
        self.inner.state.borrow().changes.wants_flush() || self.wants_early_flush()
    }

    /// Flushes data that the next commit needs, or a later one.
    async fn flush_data(&self) {
        if let Err(error) = self.check_writable() {
            self.inner.unflushed_bytes.set(0);
            self.inner.state.borrow_mut().changes.fail_waiting(error);
            return self.inner.changed.notify_all();
        }
        if self.flush().await.is_err() {
            self.inner.changed.notify_all();
        }
    }

    /// An upload writes its last bytes, until the guard is dropped. Nothing but the disk may delay that.
    pub(crate) fn begin_last_writes(&self) -> LastWrite<B> {
        LastWrite { store: self.clone(), side: self.inner.last_writes.begin() }
    }

    /// Waits for the last writes that have begun, so that one flush covers all of them.
    async fn until_written(&self) {
        let side = self.inner.last_writes.turn();
        loop {
            let dirty = self.inner.dirty.notified();
            if self.inner.last_writes.count(side) == 0 {
                return;
            }
            dirty.await;
        }
    }

    /// Flushes what is written. By the task of commits only, so that no flush reports the failure of another one's data. When it fails, all
    /// changes that wait have failed, too: a repeated flush may succeed without having written anything.
    async fn flush(&self) -> Result<(), BlockError> {
        let inner = &*self.inner;
        self.until_written().await;
        inner.unflushed_bytes.set(0);
        inner.state.borrow_mut().changes.begin_flush();
        FLUSHES.add(1);
        let result = inner.block.flush().await;
        let mut state = inner.state.borrow_mut();
        match result {
            Ok(()) => state.changes.end_flush(),
            Err(error) => {
                inner.health.set(Health::Failing(error));
                state.lost_flushes += 1;
                state.changes.fail_waiting(error.into());
            }
        }
        result
    }
}

fn index_buf(bytes: usize) -> Result<Buf, BlockError> {
    Buf::zeroed(bytes).map_err(|_| BlockError::Broken("no memory for the index"))
}

/// How many uploads write their last bytes. They count on one of two sides, which each flush swaps: it waits for those on the side of
/// before, and for none that begins later.
#[derive(Default)]
pub(crate) struct LastWrites {
    counts: [Cell<usize>; 2],
    side: Cell<usize>,
}

impl LastWrites {
    /// One begins. Returns its side.
    fn begin(&self) -> usize {
        let side = self.side.get();
        self.counts[side].set(self.count(side) + 1);
        side
    }

    /// Returns whether it was the last one of its side.
    fn end(&self, side: usize) -> bool {
        self.counts[side].set(self.count(side) - 1);
        self.count(side) == 0
    }

    fn count(&self, side: usize) -> usize {
        self.counts[side].get()
    }

    /// Returns the side of those that have begun; later ones are on the other.
    fn turn(&self) -> usize {
        self.side.replace(1 - self.side.get())
    }
}

/// See [`Store::begin_last_writes`].
pub(crate) struct LastWrite<B: Block> {
    store: Store<B>,
    side: usize,
}

impl<B: Block> Drop for LastWrite<B> {
    fn drop(&mut self) {
        if self.store.inner.last_writes.end(self.side) {
            self.store.inner.dirty.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_waits_for_no_write_that_begins_later() {
        let writes = LastWrites::default();
        let first = writes.begin();
        let waited_for = writes.turn();
        let second = writes.begin();
        assert_eq!(writes.count(waited_for), 1);
        assert!(writes.end(first));
        assert_eq!((writes.count(waited_for), writes.count(second)), (0, 1));
        // The next flush waits for the second one, and not for a third.
        let waited_for = writes.turn();
        writes.begin();
        assert_eq!(writes.count(waited_for), 1);
        assert!(writes.end(second));
    }
}
