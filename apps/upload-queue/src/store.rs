//! The queue on a disk: its items, and how changes become durable.

use crate::allocator::{Allocator, Refused, Reservation, Space};
use crate::changes::{Batch, Changes, Item, Outcome};
use crate::download::Download;
use crate::error::{Health, OpenError, Recovery, StoreError};
use crate::format::{self, BLOCK_BYTES, Entry, Geometry, Index, Slot, SuperblockState};
use crate::inflight::InFlight;
use crate::limits::EARLY_FLUSH_BYTES;
use crate::open;
use crate::pool::Pool;
use crate::telemetry::{ABANDONED, BYTES_QUEUED, CHANGE, COMMIT, COMMITS, ITEMS_QUEUED};
use crate::upload::Upload;
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::pin::Pin;
use glasshouse::future::{Either, select};
use glasshouse::sync::{Notified, Notify};
use glasshouse::tracing::{Instrument, info_span};
use glasshouse::{Block, BlockError, Buf};

/// A durable first-in first-out queue of items on a [`Block`]. Clones are handles to the same queue.
///
/// Nothing becomes durable unless [`Store::run`] is running as a task.
pub struct Store<B: Block> {
    inner: Rc<Inner<B>>,
}

impl<B: Block> Clone for Store<B> {
    fn clone(&self) -> Store<B> {
        Store { inner: self.inner.clone() }
    }
}

struct Inner<B> {
    block: B,
    geometry: Geometry,
    allocator: Allocator,
    pool: Pool,
    state: RefCell<State>,
    /// A commit has ended.
    changed: Notify,
    /// There are changes to commit.
    dirty: Notify,
    /// There are abandoned requests.
    abandoned: Notify,
    /// Whether the space of removed items is given back to the disk.
    discards: Cell<bool>,
    /// Bytes of data written since the last flush, and how many of them are flushed without a commit.
    unflushed_bytes: Cell<u64>,
    early_flush_bytes: Cell<u64>,
    health: Cell<Health>,
    /// Whether the disk has to be checked.
    wants_check: Cell<bool>,
}

struct State {
    changes: Changes,
    /// Failed flushes. Everything written before the last of them counts as lost.
    lost_flushes: u64,
    abandoned: Vec<Pin<Box<dyn Future<Output = ()>>>>,
}

/// Statistics for the front page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Items that can be fetched.
    pub items: usize,
    /// Items that the index has room for.
    pub items_max: usize,
    /// Free entries of the index.
    pub free_items: usize,
    /// Bytes for data on the disk.
    pub data_bytes: u64,
    /// Bytes that are free, in blocks of 4096.
    pub free_bytes: u64,
    /// Index writes since the queue was made.
    pub commits: u64,
}

impl<B: Block> Store<B> {
    /// Opens the queue on `block`. An empty disk becomes a new queue; a disk that holds something
    /// else is refused, unless `erase` is set, which makes a new queue of any disk.
    pub async fn open(block: B, erase: bool) -> Result<(Store<B>, Recovery), OpenError> {
        let (geometry, index, recovery) = open::open(&block, erase).await?;
        Ok((Store::new(block, geometry, index), recovery))
    }

    fn new(block: B, geometry: Geometry, index: Index) -> Store<B> {
        let data = format::Extent { start: geometry.data_start(), blocks: geometry.data_blocks() };
        let allocator = Allocator::new(data, geometry.items_max());
        let items = index.entries.into_iter().map(|entry| {
            let space = allocator.take_exactly(entry.extents).expect("the index was checked");
            Rc::new(Item { entry, _space: space })
        });
        let changes = Changes::new(items.collect(), index.sequence, index.next_id);
        let inner = Inner {
            block,
            geometry,
            allocator,
            pool: Pool::default(),
            state: RefCell::new(State { changes, lost_flushes: 0, abandoned: Vec::new() }),
            changed: Notify::named(&COMMIT),
            dirty: Notify::named(&CHANGE),
            abandoned: Notify::named(&ABANDONED),
            discards: Cell::new(false),
            unflushed_bytes: Cell::new(0),
            early_flush_bytes: Cell::new(EARLY_FLUSH_BYTES),
            health: Cell::new(Health::Good),
            wants_check: Cell::new(false),
        };
        Store { inner: Rc::new(inner) }
    }

    /// From now on the disk learns which space is free when an item is removed, and may give it back to the host. New items need
    /// it again, which takes the host more time than to overwrite old ones.
    pub fn discard_removed(&self) {
        self.inner.discards.set(true);
    }

    /// Sets how many bytes of data are written before they are flushed without a commit, by default [`EARLY_FLUSH_BYTES`].
    pub fn set_early_flush_bytes(&self, bytes: u64) {
        self.inner.early_flush_bytes.set(bytes);
    }

    /// Statistics for the front page.
    pub fn usage(&self) -> Usage {
        let state = self.inner.state.borrow();
        Usage {
            items: state.changes.item_count(),
            items_max: self.inner.geometry.items_max(),
            free_items: self.inner.allocator.free_entries(),
            data_bytes: u64::from(self.inner.geometry.data_blocks()) * BLOCK_BYTES as u64,
            free_bytes: self.inner.allocator.free_bytes(),
            commits: state.changes.sequence(),
        }
    }

    /// Reserves space for an item of `length` bytes, or fails immediately if there is none. Other uploads may get the part
    /// that is not filled; then [`Upload::receive`] fails when there is no other space. Dropping the upload before
    /// [`Upload::finish`] frees the space.
    pub fn upload(&self, length: u64) -> Result<Upload<B>, StoreError> {
        self.check_writable()?;
        let reserved = self.inner.allocator.reserve(length.div_ceil(BLOCK_BYTES as u64));
        Ok(Upload::new(self.clone(), self.reserved(reserved, length)?, Some(length), length))
    }

    /// Starts an upload whose length will be known at its end, `length_max` bytes at most.
    pub fn upload_of_unknown_length(&self, length_max: u64) -> Result<Upload<B>, StoreError> {
        self.check_writable()?;
        let reserved = self.inner.allocator.reserve_some(length_max.div_ceil(BLOCK_BYTES as u64));
        Ok(Upload::new(self.clone(), self.reserved(reserved, 0)?, None, length_max))
    }

    fn reserved(&self, reserved: Result<Reservation, Refused>, wanted_bytes: u64) -> Result<Reservation, StoreError> {
        self.update_gauges();
        reserved.map_err(|refused| {
            if self.inner.state.borrow_mut().changes.settle() {
                self.inner.dirty.notify_all();
            }
            match refused {
                Refused::Blocks => self.full(wanted_bytes),
                Refused::Entries => StoreError::IndexFull { items_max: self.inner.geometry.items_max() },
            }
        })
    }

    pub(crate) fn full(&self, wanted_bytes: u64) -> StoreError {
        StoreError::DiskFull { wanted_bytes, free_bytes: self.inner.allocator.free_bytes() }
    }

    fn update_gauges(&self) {
        let data_bytes = u64::from(self.inner.geometry.data_blocks()) * BLOCK_BYTES as u64;
        BYTES_QUEUED.set(data_bytes.saturating_sub(self.inner.allocator.free_bytes()) as i64);
    }

    /// The oldest item.
    pub fn head(&self) -> Option<Entry> {
        self.inner.state.borrow().changes.head().map(|item| item.entry)
    }

    /// Downloads the oldest item, which stays in the queue.
    pub fn fetch(&self) -> Option<Download<B>> {
        let item = self.inner.state.borrow().changes.head()?.clone();
        Some(Download::new(self.clone(), item))
    }

    /// Completes after the next commit: check [`Store::head`] again then.
    pub fn changed(&self) -> Notified {
        self.inner.changed.notified()
    }

    /// Removes the head if it is item `id`, and returns whether it did. Either way, everything that was
    /// removed earlier is durably gone when this returns. A removal that has started is completed even
    /// if this future is dropped. One that fails is undone: the item is the head again.
    pub async fn remove(&self, id: u64) -> Result<bool, StoreError> {
        let (is_found, outcome) = self.inner.state.borrow_mut().changes.remove(id);
        if let Some(outcome) = outcome {
            self.inner.dirty.notify_all();
            self.until_durable(outcome).await?;
        }
        Ok(is_found)
    }

    /// Adds an item whose data is completely written and waits until it is durable; it is added even
    /// if this future is dropped. Returns its id. `lost_flushes` is what [`Store::lost_flushes`] returned before the first write.
    pub(crate) async fn add(
        &self,
        length: u64,
        checksum: u64,
        space: Space,
        lost_flushes: u64,
    ) -> Result<u64, StoreError> {
        if lost_flushes != self.lost_flushes() {
            return Err(StoreError::Lost);
        }
        let (id, outcome) = {
            let mut state = self.inner.state.borrow_mut();
            let id = state.changes.take_id();
            let entry = Entry { id, length, checksum, extents: space.extents };
            (id, state.changes.add(Item { entry, _space: space }))
        };
        self.inner.dirty.notify_all();
        self.until_durable(outcome).await?;
        Ok(id)
    }

    async fn until_durable(&self, outcome: Outcome) -> Result<(), StoreError> {
        loop {
            let changed = self.inner.changed.notified();
            if let Some(result) = outcome.get() {
                return result;
            }
            changed.await;
        }
    }

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
                None if self.wants_early_flush() => {
                    self.flush_early().instrument(info_span!("flush of data")).await;
                }
                None => dirty.await,
            }
        }
    }

    /// One commit. `slot` keeps the buffer between commits.
    async fn commit(&self, batch: Batch, slot: &mut Option<Buf>) {
        let inner = &*self.inner;
        if let Err(error) = self.check_writable() {
            return inner.state.borrow_mut().changes.fail(batch, error);
        }
        if !batch.adds.is_empty() {
            inner.unflushed_bytes.set(0);
            if let Err(error) = inner.block.flush().await {
                return self.fail_flush(batch, error);
            }
        }
        let sequence = inner.state.borrow().changes.sequence() + 1;
        if let Err(error) = self.write_slot(sequence, &batch, slot).await {
            inner.health.set(Health::Failing(error));
            return inner.state.borrow_mut().changes.fail(batch, error.into());
        }
        if let Err(error) = inner.block.flush().await {
            return self.fail_flush(batch, error);
        }
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

    async fn write_slot(&self, sequence: u64, batch: &Batch, slot: &mut Option<Buf>) -> Result<(), BlockError> {
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
            format::encode_slot(sequence, state.changes.next_id(), entries, bytes)
        };
        let offset = u64::from(geometry.slot_start(sequence)) * BLOCK_BYTES as u64;
        let (result, part) = self.inner.block.write(offset, buf.slice(0..used)).await;
        drop(part);
        *slot = Some(buf);
        result
    }

    /// A repeated flush may succeed without having written anything.
    fn fail_flush(&self, batch: Batch, error: BlockError) {
        self.inner.health.set(Health::Failing(error));
        let mut state = self.inner.state.borrow_mut();
        state.lost_flushes += 1;
        state.changes.fail_flush(batch, error.into());
    }

    /// Drives `requests` after their upload or download is gone.
    pub(crate) fn abandon(&self, requests: impl Future<Output = ()> + 'static) {
        self.inner.state.borrow_mut().abandoned.push(Box::pin(requests));
        self.inner.abandoned.notify_all();
    }

    async fn run_abandoned(&self) {
        let mut requests = InFlight::new();
        loop {
            let more = self.inner.abandoned.notified();
            let new = core::mem::take(&mut self.inner.state.borrow_mut().abandoned);
            for request in new {
                requests.push(request).await;
            }
            if requests.is_empty() {
                more.await;
            } else if let Either::First(Some(())) = select(requests.pop(), more).await {
                // Its space is free now, and a task may wait for the store to become idle.
                self.inner.changed.notify_all();
            }
        }
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

    /// Flushes data that no commit needs yet. Between commits, so that no flush reports the failure of another one's data.
    async fn flush_early(&self) {
        self.inner.unflushed_bytes.set(0);
        if let Err(error) = self.inner.block.flush().await {
            self.fail_flush(Batch::default(), error);
            self.inner.changed.notify_all();
        }
    }

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
        if let (StoreError::Disk(error), Health::Good) = (error, self.health()) {
            self.inner.health.set(Health::Failing(error));
        }
        self.request_check();
    }

    /// Fails while nothing may be written. What may have changed since is checked again, for the next request.
    fn check_writable(&self) -> Result<(), StoreError> {
        let writable = self.health().writable();
        if let Err(StoreError::Unreadable(_)) = writable {
            self.request_check();
        }
        writable
    }

    /// Between commits, so that the slot of the newest index is not being written.
    async fn check(&self) {
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
        let has_superblock = format::decode_superblock(&superblock) == Ok(Some((geometry, SuperblockState::Ready)));
        let slot = format::decode_slot(geometry, sequence % 2, &slot);
        Ok(has_superblock && matches!(slot, Slot::Valid(index) if index.sequence == sequence))
    }

    pub(crate) fn block(&self) -> &B {
        &self.inner.block
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.inner.pool
    }
}
