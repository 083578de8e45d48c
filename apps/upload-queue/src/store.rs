//! The queue on a disk: its items, and how changes become durable.

use crate::account::Charge;
use crate::allocator::{Allocator, IndexEntry, Refused, Reservation, Space};
use crate::changes::{Changes, NewItem, Outcome};
use crate::commit::LastWrites;
use crate::download::Download;
use crate::error::{Health, OpenError, Recovery, StoreError};
use crate::format::{BLOCK_BYTES, EXTENTS_MAX, Entry, Extent, IndexPlace, Layout, UploadProgress};
use crate::index::Index;
use crate::inflight::InFlight;
use crate::journal::Journal;
use crate::limits::EARLY_FLUSH_BYTES;
use crate::open::{self, Opened, free_runs};
use crate::pool::Pool;
use crate::resumable::{Resumable, Saved};
use crate::telemetry::{ABANDONED, BYTES_QUEUED, CHANGE, COMMIT};
use crate::upload::Upload;
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::pin::Pin;
use glasshouse::future::{Either, select};
use glasshouse::sync::{Notified, Notify};
use glasshouse::{Block, Instant};
use xxhash_rust::xxh3::Xxh3;

/// A durable first-in first-out queue of items on a [`Block`]. Clones are handles to the same queue.
///
/// Nothing becomes durable unless [`Store::run`] is running as a task.
pub struct Store<B: Block> {
    pub(crate) inner: Rc<Inner<B>>,
}

impl<B: Block> Clone for Store<B> {
    fn clone(&self) -> Store<B> {
        Store { inner: self.inner.clone() }
    }
}

pub(crate) struct Inner<B> {
    pub(crate) block: B,
    pub(crate) layout: Layout,
    pub(crate) allocator: Allocator,
    pub(crate) pool: Pool,
    pub(crate) state: RefCell<State>,
    /// A commit has ended.
    pub(crate) changed: Notify,
    /// There are changes to commit.
    pub(crate) dirty: Notify,
    pub(crate) last_writes: LastWrites,
    /// There are abandoned requests.
    pub(crate) abandoned: Notify,
    /// Whether the space of removed items is given back to the disk.
    pub(crate) discards: Cell<bool>,
    /// Bytes of data written since the last flush, and how many of them are flushed without a commit.
    pub(crate) unflushed_bytes: Cell<u64>,
    pub(crate) early_flush_bytes: Cell<u64>,
    pub(crate) health: Cell<Health>,
    /// Items that were found damaged.
    pub(crate) damage_found: Cell<u64>,
    /// Whether the disk has to be checked.
    pub(crate) wants_check: Cell<bool>,
    pub(crate) journal: RefCell<Journal>,
}

pub(crate) struct State {
    pub(crate) changes: Changes,
    /// Failed flushes. Everything written before the last of them counts as lost.
    pub(crate) lost_flushes: u64,
    pub(crate) abandoned: Vec<Pin<Box<dyn Future<Output = ()>>>>,
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
        let (opened, recovery) = open::open(&block, erase, false).await?;
        Ok((Store::new(block, opened), recovery))
    }

    /// As [`Store::open`] without `erase`, and a queue whose disk has become larger takes all of it, for good: it does not fit on a
    /// smaller disk any more.
    pub async fn open_and_grow(block: B) -> Result<(Store<B>, Recovery), OpenError> {
        let (opened, recovery) = open::open(&block, false, true).await?;
        Ok((Store::new(block, opened), recovery))
    }

    fn new(block: B, opened: Opened) -> Store<B> {
        let Opened { layout, table, contents, journal, sequence, next_id } = opened;
        let entries = layout.entries_max() - contents.items.len();
        let allocator = Allocator::new(free_runs(layout.total_blocks, layout.index(), &contents.taken), entries);
        let uploads = contents.uploads.iter().map(|(upload, _)| {
            let space = match upload.progress {
                UploadProgress::Open { extents, .. } => {
                    Some(allocator.reserve_exactly(extents).expect("the index was checked"))
                }
                UploadProgress::Complete { .. } => None,
            };
            let entry = allocator.take_entry().expect("the index was checked");
            (upload.name, Resumable::new(*upload, entry, space, None))
        });
        let uploads = uploads.collect();
        let index = Index::new(table, &contents);
        let changes = Changes::new(index, uploads, Journal::changes_max(layout), sequence, next_id);
        let inner = Inner {
            block,
            layout,
            allocator,
            pool: Pool::default(),
            state: RefCell::new(State { changes, lost_flushes: 0, abandoned: Vec::new() }),
            journal: RefCell::new(journal),
            changed: Notify::named(&COMMIT),
            dirty: Notify::named(&CHANGE),
            last_writes: LastWrites::default(),
            abandoned: Notify::named(&ABANDONED),
            discards: Cell::new(false),
            unflushed_bytes: Cell::new(0),
            early_flush_bytes: Cell::new(EARLY_FLUSH_BYTES),
            health: Cell::new(Health::Good),
            damage_found: Cell::new(0),
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
            items: state.changes.index().count(),
            items_max: self.inner.layout.entries_max(),
            free_items: self.inner.allocator.free_entries(),
            data_bytes: self.data_bytes(),
            free_bytes: self.inner.allocator.free_bytes(),
            commits: state.changes.sequence(),
        }
    }

    fn data_bytes(&self) -> u64 {
        u64::from(IndexPlace::Pages(self.inner.layout).data_blocks()) * BLOCK_BYTES as u64
    }

    /// Reserves space for an item of `length` bytes, or fails immediately if there is none. Other uploads may get the part
    /// that is not filled; then [`Upload::receive`] fails when there is no other space. Dropping the upload before
    /// [`Upload::finish`] frees the space.
    pub fn upload(&self, length: u64) -> Result<Upload<B>, StoreError> {
        Ok(Upload::new(self.clone(), self.reserve(length)?, Some(length), length))
    }

    /// Starts an upload whose length will be known at its end, `length_max` bytes at most.
    pub fn upload_of_unknown_length(&self, length_max: u64) -> Result<Upload<B>, StoreError> {
        Ok(Upload::new(self.clone(), self.reserve_some(length_max)?, None, length_max))
    }

    /// Notes how fast uploads are: one that continues keeps the space that it has announced. To be called before an upload starts.
    pub fn pace(&self, now: Instant) {
        self.inner.allocator.pace(now);
    }

    /// Space for `length` bytes.
    pub(crate) fn reserve(&self, length: u64) -> Result<Reservation, StoreError> {
        self.check_writable()?;
        self.reserved(self.inner.allocator.reserve(length.div_ceil(BLOCK_BYTES as u64)), length)
    }

    /// Space that grows, up to `length_max` bytes.
    pub(crate) fn reserve_some(&self, length_max: u64) -> Result<Reservation, StoreError> {
        self.check_writable()?;
        self.reserved(self.inner.allocator.reserve_some(length_max.div_ceil(BLOCK_BYTES as u64)), 0)
    }

    /// An entry of the index.
    pub(crate) fn take_entry(&self) -> Result<IndexEntry, StoreError> {
        let full = StoreError::IndexFull { items_max: self.inner.layout.entries_max() };
        let entry = self.inner.allocator.take_entry().ok_or(full)?;
        self.make_space()?;
        Ok(entry)
    }

    /// Has memory for all entries that are taken.
    fn make_space(&self) -> Result<(), StoreError> {
        let taken = self.inner.layout.entries_max() - self.inner.allocator.free_entries();
        self.inner.state.borrow_mut().changes.index_mut().make_space(taken)
    }

    fn reserved(&self, reserved: Result<Reservation, Refused>, wanted_bytes: u64) -> Result<Reservation, StoreError> {
        self.update_gauges();
        let reserved = reserved.map_err(|refused| {
            if self.inner.state.borrow_mut().changes.settle() {
                self.inner.dirty.notify_all();
            }
            match refused {
                Refused::Blocks => self.full(wanted_bytes),
                Refused::Entries => StoreError::IndexFull { items_max: self.inner.layout.entries_max() },
            }
        })?;
        self.make_space()?;
        Ok(reserved)
    }

    pub(crate) fn full(&self, wanted_bytes: u64) -> StoreError {
        StoreError::DiskFull { wanted_bytes, free_bytes: self.inner.allocator.free_bytes() }
    }

    pub(crate) fn update_gauges(&self) {
        BYTES_QUEUED.set(self.data_bytes().saturating_sub(self.inner.allocator.free_bytes()) as i64);
    }

    /// The oldest item.
    pub fn head(&self) -> Option<Entry> {
        self.first_item(|_| true)
    }

    /// Downloads the oldest item, which stays in the queue.
    pub fn fetch(&self) -> Option<Download<B>> {
        self.head().map(|entry| self.download(entry))
    }

    fn download(&self, entry: Entry) -> Download<B> {
        let reader = self.with_changes(|changes| changes.index().reader(entry.id));
        Download::new(self.clone(), entry, reader)
    }

    /// The oldest item of those that `is_wanted` accepts.
    pub fn first_item(&self, is_wanted: impl Fn(&Entry) -> bool) -> Option<Entry> {
        self.with_changes(|changes| changes.index().items_after(None).find(is_wanted))
    }

    /// Item `id`.
    pub fn item(&self, id: u64) -> Option<Entry> {
        self.with_changes(|changes| changes.index().item(id))
    }

    /// The oldest items after item `id`, so many at most.
    pub fn items_after(&self, id: Option<u64>, count: usize) -> Vec<Entry> {
        self.with_changes(|changes| changes.index().items_after(id).take(count).collect())
    }

    /// Downloads item `id`, which stays in the queue.
    pub fn fetch_item(&self, id: u64) -> Option<Download<B>> {
        self.item(id).map(|entry| self.download(entry))
    }

    /// Completes after the next commit: check [`Store::head`] again then.
    pub fn changed(&self) -> Notified {
        self.inner.changed.notified()
    }

    /// Removes item `id`, and returns whether it was there. Either way, everything that was
    /// removed earlier is durably gone when this returns. A removal that has started is completed even
    /// if this future is dropped. One that fails is undone: the item is in its place again.
    pub async fn remove(&self, id: u64) -> Result<bool, StoreError> {
        let (is_found, outcome) = self.inner.state.borrow_mut().changes.remove(id);
        if let Some(outcome) = outcome {
            self.inner.dirty.notify_all();
            self.until_durable(outcome).await?;
        }
        Ok(is_found)
    }

    /// Adds an item whose data is completely written and waits until it is durable; it is added even
    /// if this future is dropped. Returns its id. `charge` ends with the item. `lost_flushes` is what [`Store::lost_flushes`] returned before the first write.
    pub(crate) async fn add(
        &self,
        length: u64,
        checksum: u64,
        space: Space,
        charge: Option<Charge>,
        lost_flushes: u64,
    ) -> Result<u64, StoreError> {
        if lost_flushes != self.lost_flushes() {
            return Err(StoreError::Lost);
        }
        let (id, outcome) = {
            let mut state = self.inner.state.borrow_mut();
            let id = state.changes.take_id();
            let entry = Entry { id, length, checksum, extents: space.extents };
            (id, state.changes.add(NewItem { entry, space, charge }))
        };
        self.inner.dirty.notify_all();
        self.until_durable(outcome).await?;
        Ok(id)
    }

    /// Saves progress of an upload.
    pub(crate) fn save(&self, upload: &Rc<Resumable>, saved: Saved, hasher: Box<Xxh3>) -> Outcome {
        let outcome = self.inner.state.borrow_mut().changes.save(upload, saved, hasher);
        self.inner.dirty.notify_all();
        outcome
    }

    /// Makes an upload an item, and waits until that is durable.
    pub(crate) async fn complete(
        &self,
        upload: &Rc<Resumable>,
        length: u64,
        checksum: u64,
        extents: [Extent; EXTENTS_MAX],
        deadline_secs: u64,
    ) -> Result<u64, StoreError> {
        let (id, outcome) = {
            let changes = &mut self.inner.state.borrow_mut().changes;
            let id = changes.take_id();
            (id, changes.complete(upload, Entry { id, length, checksum, extents }, deadline_secs))
        };
        self.inner.dirty.notify_all();
        self.until_durable(outcome).await?;
        Ok(id)
    }

    /// Ends an upload without an item.
    pub(crate) fn end(&self, upload: &Rc<Resumable>) -> Outcome {
        let outcome = self.inner.state.borrow_mut().changes.end(upload);
        self.inner.dirty.notify_all();
        outcome
    }

    /// Forgets a complete upload for the one that is saved next.
    pub(crate) fn give_place(&self, upload: &Rc<Resumable>) {
        self.inner.state.borrow_mut().changes.give_place(upload);
        self.inner.dirty.notify_all();
    }

    /// Writes the index again, so that no other one is in doubt.
    pub(crate) async fn write_again(&self) -> Result<(), StoreError> {
        self.check_writable()?;
        let outcome = self.inner.state.borrow_mut().changes.write_again();
        self.inner.dirty.notify_all();
        self.until_durable(outcome).await
    }

    pub(crate) fn with_changes<T>(&self, read: impl FnOnce(&Changes) -> T) -> T {
        read(&self.inner.state.borrow().changes)
    }

    /// Wakes those who wait for a change.
    pub(crate) fn notify(&self) {
        self.inner.changed.notify_all();
    }

    pub(crate) async fn until_durable(&self, outcome: Outcome) -> Result<(), StoreError> {
        loop {
            let changed = self.inner.changed.notified();
            if let Some(result) = outcome.get() {
                return result;
            }
            changed.await;
        }
    }

    /// Drives `requests` after their upload or download is gone.
    pub(crate) fn abandon(&self, requests: impl Future<Output = ()> + 'static) {
        self.inner.state.borrow_mut().abandoned.push(Box::pin(requests));
        self.inner.abandoned.notify_all();
    }

    pub(crate) async fn run_abandoned(&self) {
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

    pub(crate) fn block(&self) -> &B {
        &self.inner.block
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.inner.pool
    }
}
