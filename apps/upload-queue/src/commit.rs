//! How changes become durable: the task of commits, and its flushes.
//!
//! A commit is the write of a slot of the index and a flush, for all changes whose data an earlier flush has covered: mostly the flush of
//! the commit before. A flush without a commit is only needed if none was in progress when the data was written (decision 66).

use crate::changes::Batch;
use crate::changes::Item;
use crate::error::Health;
use crate::format::{self, BLOCK_BYTES, Superblock, SuperblockState, UploadEntry, VERSION_2};
use crate::store::Store;
use crate::telemetry::{COMMITS, FLUSHES, ITEMS_QUEUED};
use alloc::rc::Rc;
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
        let mut slot = None;
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
                    self.commit(batch, &mut slot).instrument(info_span!("commit of changes")).await;
                    self.inner.changed.notify_all();
                }
                None if self.wants_flush() => self.flush_data().instrument(info_span!("flush of data")).await,
                None => dirty.await,
            }
        }
    }

    /// One commit. `slot` keeps the buffer between commits.
    pub(crate) async fn commit(&self, batch: Batch, slot: &mut Option<Buf>) {
        let inner = &*self.inner;
        if let Err(error) = self.check_writable() {
            return inner.state.borrow_mut().changes.fail(batch, error);
        }
        let sequence = inner.state.borrow().changes.sequence() + 1;
        let uploads = inner.state.borrow().changes.upload_entries(&batch);
        if !uploads.is_empty()
            && inner.version.get() < VERSION_2
            && let Err(error) = self.write_superblock().await
        {
            return self.fail_write(batch, error);
        }
        let was_torn = inner.has_torn_slot.replace(true);
        if was_torn && let Err(error) = self.clear_slot(sequence).await {
            return self.fail_write(batch, error);
        }
        if let Err(error) = self.write_slot(sequence, &batch, &uploads, slot).await {
            return self.fail_write(batch, error);
        }
        if let Err(error) = self.flush().await {
            return self.fail_write(batch, error);
        }
        inner.has_torn_slot.set(false);
        inner.health.set(Health::Good);
        let free = inner.state.borrow_mut().changes.succeed(batch, sequence);
        if inner.discards.get() {
            self.discard(&free).await;
        }
        // The space of removed items is freed here.
        drop(free);
        COMMITS.add(1);
        ITEMS_QUEUED.set(inner.state.borrow().changes.item_count() as i64);
        self.update_gauges();
    }

    /// Discards the data of removed items, except those that are still downloaded.
    async fn discard(&self, items: &[Rc<Item>]) {
        for item in items.iter().filter(|item| Rc::strong_count(item) == 1) {
            for extent in item.entry.extents.iter().filter(|extent| extent.blocks > 0) {
                let offset = u64::from(extent.start) * BLOCK_BYTES as u64;
                // A hint: nothing is wrong when it fails.
                let _ = self.inner.block.discard(offset, extent.blocks as usize * BLOCK_BYTES).await;
            }
        }
    }

    /// Overwrites the first block of the slot of this sequence, and flushes. With what no index has in any sector: zeros would complete one
    /// that ends in this block.
    async fn clear_slot(&self, sequence: u64) -> Result<(), BlockError> {
        let mut bytes = Buf::zeroed(BLOCK_BYTES).map_err(|_| BlockError::Broken("no memory for the index"))?;
        bytes.as_mut().expect("a new buffer has one owner").fill(format::CLEARED);
        let offset = u64::from(self.inner.geometry.slot_start(sequence)) * BLOCK_BYTES as u64;
        self.inner.block.write(offset, bytes).await.0?;
        self.flush().await
    }

    /// From now on the superblock has version 2, before an index has it: a program that does not read that index must not use the other one.
    async fn write_superblock(&self) -> Result<(), BlockError> {
        let mut bytes = Buf::zeroed(BLOCK_BYTES).map_err(|_| BlockError::Broken("no memory for the superblock"))?;
        let superblock =
            Superblock { version: VERSION_2, geometry: self.inner.geometry, state: SuperblockState::Ready };
        format::encode_superblock(&superblock, bytes.as_mut().expect("a new buffer has one owner"));
        self.inner.block.write(0, bytes).await.0?;
        self.flush().await?;
        self.inner.version.set(VERSION_2);
        Ok(())
    }

    async fn write_slot(
        &self,
        sequence: u64,
        batch: &Batch,
        uploads: &[UploadEntry],
        slot: &mut Option<Buf>,
    ) -> Result<(), BlockError> {
        let geometry = &self.inner.geometry;
        // A disk that has not answered may still have the one of before.
        let kept = slot.take().and_then(|mut buf| buf.as_mut().is_some().then_some(buf));
        let mut buf = match kept {
            Some(buf) => buf,
            None => Buf::zeroed(geometry.slot_bytes()).map_err(|_| BlockError::Broken("no memory for the index"))?,
        };
        let used = {
            let state = self.inner.state.borrow();
            let bytes = buf.as_mut().expect("the buffer of the index has one owner");
            let entries = state.changes.entries(batch);
            format::encode_slot(sequence, state.changes.next_id(), entries, uploads, bytes)
        };
        let offset = u64::from(geometry.slot_start(sequence)) * BLOCK_BYTES as u64;
        let (result, part) = self.inner.block.write(offset, buf.slice(0..used)).await;
        drop(part);
        *slot = Some(buf);
        result
    }

    /// The slot could not be written or flushed; the index of before is in the other one.
    fn fail_write(&self, batch: Batch, error: BlockError) {
        self.inner.health.set(Health::Failing(error));
        self.inner.state.borrow_mut().changes.fail(batch, error.into());
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
