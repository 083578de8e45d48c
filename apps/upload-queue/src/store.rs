//! The queue on a disk: what is in it, and how changes become durable.

use crate::allocator::{Allocator, Refused, Space};
use crate::download::Download;
use crate::error::{OpenError, Recovery, StoreError};
use crate::format::{self, BLOCK_BYTES, Entry, Geometry, Index};
use crate::inflight::InFlight;
use crate::open;
use crate::pool::Pool;
use crate::telemetry::{ABANDONED, BYTES_QUEUED, CHANGE, COMMIT, COMMITS, ITEMS_QUEUED};
use crate::upload::Upload;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::pin::Pin;
use embassy_futures::select::{Either, select};
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
    /// A commit has ended, or the store has stopped.
    changed: Notify,
    /// There is something to commit.
    dirty: Notify,
    /// There are abandoned writes.
    abandoned: Notify,
}

struct State {
    /// Durable items that nobody removed, oldest completion first.
    items: VecDeque<Rc<Item>>,
    /// Whole uploads that the next commit makes durable.
    adds: Vec<Rc<Item>>,
    adds_asked: u64,
    adds_durable: u64,
    /// Removed items; they hold their space until the commit that forgets them is durable.
    removes: Vec<Rc<Item>>,
    removes_asked: u64,
    removes_durable: u64,
    /// Sequence of the newest durable index.
    sequence: u64,
    next_id: u64,
    /// Why nothing can change any more.
    stopped: Option<BlockError>,
    abandoned: Vec<Pin<Box<dyn Future<Output = ()>>>>,
}

/// An item and its space; the last holder's drop frees the space.
pub(crate) struct Item {
    pub(crate) entry: Entry,
    _space: Space,
}

/// Numbers for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Items that can be fetched.
    pub items: usize,
    /// Items that the index has room for.
    pub items_max: usize,
    /// Places of the index that nobody holds.
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
        let state = State {
            items: items.collect(),
            adds: Vec::new(),
            adds_asked: 0,
            adds_durable: 0,
            removes: Vec::new(),
            removes_asked: 0,
            removes_durable: 0,
            sequence: index.sequence,
            next_id: index.next_id,
            stopped: None,
            abandoned: Vec::new(),
        };
        let inner = Inner {
            block,
            geometry,
            allocator,
            pool: Pool::default(),
            state: RefCell::new(state),
            changed: Notify::named(&COMMIT),
            dirty: Notify::named(&CHANGE),
            abandoned: Notify::named(&ABANDONED),
        };
        Store { inner: Rc::new(inner) }
    }

    /// Numbers for people.
    pub fn usage(&self) -> Usage {
        let state = self.inner.state.borrow();
        Usage {
            items: state.items.len(),
            items_max: self.inner.geometry.items_max(),
            free_items: self.inner.allocator.free_entries(),
            data_bytes: u64::from(self.inner.geometry.data_blocks()) * BLOCK_BYTES as u64,
            free_bytes: self.inner.allocator.free_bytes(),
            commits: state.sequence,
        }
    }

    /// Reserves space for an item of `length` bytes, or says at once that there is none. Others may get what of it is not
    /// filled; then [`Upload::receive`] fails when there is no other space. Dropping the upload before [`Upload::finish`]
    /// gives the space back.
    pub fn upload(&self, length: u64) -> Result<Upload<B>, StoreError> {
        self.check_running()?;
        let reserved = self.inner.allocator.reserve(length.div_ceil(BLOCK_BYTES as u64));
        self.tell_bytes();
        let reserved = reserved.map_err(|refused| self.refused(refused, length))?;
        Ok(Upload::new(self.clone(), reserved, Some(length), length))
    }

    /// Begins an upload whose length will be known at its end, `length_max` bytes at most.
    pub fn upload_of_unknown_length(&self, length_max: u64) -> Result<Upload<B>, StoreError> {
        self.check_running()?;
        let reserved = self.inner.allocator.reserve_some(length_max.div_ceil(BLOCK_BYTES as u64));
        self.tell_bytes();
        let reserved = reserved.map_err(|refused| self.refused(refused, 0))?;
        Ok(Upload::new(self.clone(), reserved, None, length_max))
    }

    fn refused(&self, refused: Refused, wanted_bytes: u64) -> StoreError {
        match refused {
            Refused::Blocks => self.full(wanted_bytes),
            Refused::Entries => StoreError::IndexFull { items_max: self.inner.geometry.items_max() },
        }
    }

    pub(crate) fn full(&self, wanted_bytes: u64) -> StoreError {
        StoreError::DiskFull { wanted_bytes, free_bytes: self.inner.allocator.free_bytes() }
    }

    fn tell_bytes(&self) {
        let data_bytes = u64::from(self.inner.geometry.data_blocks()) * BLOCK_BYTES as u64;
        BYTES_QUEUED.set(data_bytes.saturating_sub(self.inner.allocator.free_bytes()) as i64);
    }

    /// The oldest item.
    pub fn head(&self) -> Option<Entry> {
        self.inner.state.borrow().items.front().map(|item| item.entry)
    }

    /// Hands out the oldest item, which stays in the queue.
    pub fn fetch(&self) -> Option<Download<B>> {
        let item = self.inner.state.borrow().items.front()?.clone();
        Some(Download::new(self.clone(), item))
    }

    /// Completes after the next commit: look at [`Store::head`] again then.
    pub fn changed(&self) -> Notified {
        self.inner.changed.notified()
    }

    /// Removes the head if it is item `id`, and returns whether it did. Either way, everything that was
    /// removed earlier is durably gone when this returns. A removal that has begun is completed even
    /// if this future is dropped.
    pub async fn remove(&self, id: u64) -> Result<bool, StoreError> {
        self.check_running()?;
        let (removed, ticket) = {
            let mut state = self.inner.state.borrow_mut();
            let removed = state.items.pop_front_if(|head| head.entry.id == id);
            let found = removed.is_some();
            if let Some(item) = removed {
                state.removes.push(item);
                state.removes_asked += 1;
                self.inner.dirty.notify_all();
            }
            (found, state.removes_asked)
        };
        self.until_durable(|state| state.removes_durable >= ticket).await?;
        Ok(removed)
    }

    /// Adds an item whose data is completely written and waits until it is durable; it is added even
    /// if this future is dropped. Tells its id.
    pub(crate) async fn add(&self, length: u64, checksum: u64, space: Space) -> Result<u64, StoreError> {
        self.check_running()?;
        let (id, ticket) = {
            let mut state = self.inner.state.borrow_mut();
            let id = state.next_id;
            state.next_id += 1;
            let entry = Entry { id, length, checksum, extents: space.extents };
            state.adds.push(Rc::new(Item { entry, _space: space }));
            state.adds_asked += 1;
            (id, state.adds_asked)
        };
        self.inner.dirty.notify_all();
        self.until_durable(|state| state.adds_durable >= ticket).await?;
        Ok(id)
    }

    async fn until_durable(&self, reached: impl Fn(&State) -> bool) -> Result<(), StoreError> {
        loop {
            let changed = self.inner.changed.notified();
            if reached(&self.inner.state.borrow()) {
                return Ok(());
            }
            self.check_running()?;
            changed.await;
        }
    }

    fn check_running(&self) -> Result<(), StoreError> {
        match self.inner.state.borrow().stopped {
            Some(error) => Err(StoreError::Stopped(error)),
            None => Ok(()),
        }
    }

    /// Commits changes for ever. Changes that arrive while a commit is under way share the next one.
    pub async fn run(&self) {
        select(self.run_commits(), self.run_abandoned()).await;
    }

    async fn run_commits(&self) {
        let mut slot = None;
        loop {
            let dirty = self.inner.dirty.notified();
            let idle = {
                let state = self.inner.state.borrow();
                (state.adds.is_empty() && state.removes.is_empty()) || state.stopped.is_some()
            };
            if idle {
                dirty.await;
                continue;
            }
            if let Err(error) = self.commit(&mut slot).instrument(info_span!("commit of changes")).await {
                // After a failed write or flush nobody knows what is durable, and a flush that is
                // tried again may succeed without having written anything.
                self.inner.state.borrow_mut().stopped = Some(error);
            }
            self.inner.changed.notify_all();
        }
    }

    /// One commit. `slot` keeps the buffer between commits.
    async fn commit(&self, slot: &mut Option<Buf>) -> Result<(), BlockError> {
        let inner = &*self.inner;
        let adds = core::mem::take(&mut inner.state.borrow_mut().adds);
        if !adds.is_empty() {
            inner.block.flush().await?;
        }
        let mut buf = match slot.take() {
            Some(buf) => buf,
            None => {
                Buf::zeroed(inner.geometry.slot_bytes()).map_err(|_| BlockError::Broken("no memory for the index"))?
            }
        };
        let (sequence, used, removes) = {
            let mut state = inner.state.borrow_mut();
            let sequence = state.sequence + 1;
            let bytes = buf.as_mut().expect("nobody else uses the buffer of the index");
            let entries: Vec<Entry> = state.items.iter().chain(&adds).map(|item| item.entry).collect();
            let used = format::encode_slot(sequence, state.next_id, entries.into_iter(), bytes);
            (sequence, used, core::mem::take(&mut state.removes))
        };
        let offset = u64::from(inner.geometry.slot_start(sequence)) * BLOCK_BYTES as u64;
        let (result, part) = inner.block.write(offset, buf.slice(0..used)).await;
        result?;
        inner.block.flush().await?;
        drop(part);
        *slot = Some(buf);
        let mut state = inner.state.borrow_mut();
        state.sequence = sequence;
        state.adds_durable += adds.len() as u64;
        state.removes_durable += removes.len() as u64;
        state.items.extend(adds);
        let items = state.items.len();
        drop(state);
        // The removed items give their space back here.
        drop(removes);
        COMMITS.add(1);
        ITEMS_QUEUED.set(items as i64);
        self.tell_bytes();
        Ok(())
    }

    /// Keeps `request` going after its upload is gone.
    pub(crate) fn abandon(&self, request: impl Future<Output = ()> + 'static) {
        self.inner.state.borrow_mut().abandoned.push(Box::pin(request));
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
                // Its space is free now, and somebody may wait for the store to be at rest.
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
