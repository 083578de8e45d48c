//! Whether the disk does what the queue needs.

use crate::error::{Health, StoreError};
use crate::format::{self, BLOCK_BYTES, Slot, Superblock, SuperblockState};
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
        let is_news = self.with_changes(|changes| changes.set_damaged(id, is_damaged));
        let found = &self.inner.damage_found;
        found.set(found.get() + u64::from(is_news && is_damaged));
        is_news
    }

    /// The items in the queue of which a read has shown that they are damaged, oldest first.
    pub fn damaged(&self) -> Vec<u64> {
        self.with_changes(|changes| {
            changes.items().filter(|item| item.is_damaged()).map(|item| item.entry.id).collect()
        })
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

    /// Between commits, so that the slot of the newest index is not being written.
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
                self.commit(batch, &mut None).await;
            }
            Ok(false) => self.inner.health.set(Health::Overwritten),
            Err(error) => self.inner.health.set(Health::Unreadable(error)),
        }
    }

    /// Whether the superblock and the newest index are on the disk.
    async fn is_there(&self) -> Result<bool, BlockError> {
        let geometry = self.inner.geometry;
        let sequence = self.inner.state.borrow().changes.sequence();
        let buffers = (Buf::zeroed(BLOCK_BYTES), Buf::zeroed(geometry.slot_bytes()));
        // Without memory for it nothing is known.
        let (Ok(superblock), Ok(slot)) = buffers else { return Ok(true) };
        let (result, superblock) = self.inner.block.read(0, superblock).await;
        result?;
        let offset = u64::from(geometry.slot_start(sequence)) * BLOCK_BYTES as u64;
        let (result, slot) = self.inner.block.read(offset, slot).await;
        result?;
        let (version, state) = (self.inner.version.get(), SuperblockState::Ready);
        let has_superblock =
            format::decode_superblock(&superblock) == Ok(Some(Superblock { version, geometry, state }));
        let slot = format::decode_slot(geometry, sequence % 2, &slot);
        Ok(has_superblock && matches!(slot, Slot::Valid(index) if index.sequence == sequence))
    }
}
