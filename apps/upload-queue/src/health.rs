//! Whether the disk does what the queue needs.

use crate::error::{Health, StoreError};
use crate::format::{self, BLOCK_BYTES, Checkpoint, CheckpointSlot, IndexPlace, LogBlock, Superblock, SuperblockState};
use crate::store::Store;
use alloc::vec::Vec;
use glasshouse::{Block, BlockError, Buf};

impl<B: Block> Store<B> {
    /// Whether the disk does what the queue needs. While it does not, each call of [`Store::request_check`] may change that.
    pub fn health(&self) -> Health {
        self.inner.health.get()
    }

    /// Has the disk checked between two commits: its superblock and index are read back, and if a request has failed, a commit without
    /// changes shows whether the next one succeeds.
    pub fn request_check(&self) {
        self.inner.wants_check.set(true);
        self.inner.dirty.notify_all();
    }

    /// A read of an item failed. The whole queue may be gone.
    pub(crate) fn read_failed(&self, error: StoreError) {
        match (error, self.health()) {
            (StoreError::Disk(error), Health::Good) => self.inner.health.set(Health::Failing(error)),
            (StoreError::Damaged { id, .. }, _) => _ = self.set_damaged(id, true),
            _ => {}
        }
        self.request_check();
    }

    /// Item `id` is damaged, or is not. Returns whether that is news.
    pub(crate) fn set_damaged(&self, id: u64, is_damaged: bool) -> bool {
        let is_news = self.inner.state.borrow_mut().changes.index_mut().set_damaged(id, is_damaged);
        let found = &self.inner.damage_found;
        found.set(found.get() + u64::from(is_news && is_damaged));
        is_news
    }

    /// The items in the queue of which a read has shown that they are damaged, oldest first.
    pub fn damaged(&self) -> Vec<u64> {
        self.with_changes(|changes| changes.index().damaged().collect())
    }

    /// How many items were found damaged since the start, also those that are removed.
    pub fn damage_found(&self) -> u64 {
        self.inner.damage_found.get()
    }

    /// Fails while nothing may be written. What may have changed since is checked again, for the next request.
    pub(crate) fn check_writable(&self) -> Result<(), StoreError> {
        let writable = self.health().writable();
        if let Err(StoreError::Unreadable(_)) = writable {
            self.request_check();
        }
        writable
    }

    /// Between commits, so that nothing of the index is being written.
    pub(crate) async fn check(&self) {
        let before = self.health();
        if before == Health::Overwritten {
            return;
        }
        match self.is_there().await {
            Ok(true) if before == Health::Good => {}
            Ok(true) => {
                self.inner.health.set(Health::Failing(match before {
                    Health::Failing(error) | Health::Unreadable(error) => error,
                    Health::Good | Health::Overwritten => return,
                }));
                let batch = self.inner.state.borrow_mut().changes.begin().unwrap_or_default();
                self.commit(batch).await;
            }
            Ok(false) => self.inner.health.set(Health::Overwritten),
            Err(error) => self.inner.health.set(Health::Unreadable(error)),
        }
    }

    /// Whether the superblock, the newest checkpoint and the newest commit are on the disk.
    async fn is_there(&self) -> Result<bool, BlockError> {
        let layout = self.inner.layout;
        let (checkpoint, last) = {
            let journal = self.inner.journal.borrow();
            (journal.checkpoint(), journal.last_block())
        };
        let checkpoint_bytes = layout.checkpoint_blocks() as usize * BLOCK_BYTES;
        // Without memory for it nothing is known.
        let buffers = (Buf::zeroed(BLOCK_BYTES), Buf::zeroed(checkpoint_bytes), Buf::zeroed(BLOCK_BYTES));
        let (Ok(superblock), Ok(slot), Ok(log)) = buffers else { return Ok(true) };
        let (place, state) = (IndexPlace::Pages(layout), SuperblockState::Ready);
        let superblock = self.read_block(0, superblock).await?;
        let slot = self.read_block(layout.checkpoint_start(checkpoint), slot).await?;
        let has_superblock = format::decode_superblock(&superblock) == Ok(Some(Superblock { place, state }));
        let has_checkpoint = match Checkpoint::decode(layout, checkpoint, &slot) {
            CheckpointSlot::Valid(found) => found.number == checkpoint,
            _ => false,
        };
        let has_commit = match last {
            None => true,
            Some(number) => {
                let log = self.read_block(layout.log_place(number), log).await?;
                LogBlock::decode(&log).is_ok_and(|found| found.number == number)
            }
        };
        Ok(has_superblock && has_checkpoint && has_commit)
    }

    async fn read_block(&self, block: u32, buf: Buf) -> Result<Buf, BlockError> {
        let (result, buf) = self.inner.block.read(u64::from(block) * BLOCK_BYTES as u64, buf).await;
        result.map(|()| buf)
    }
}
