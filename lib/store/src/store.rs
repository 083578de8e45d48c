//! The handles that a service has: the store, its maps and logs, and snapshots.

use crate::batch::{Batch, Refused};
use crate::commit::{Committer, Request};
use crate::error::{OpenError, Recovery, StoreError};
use crate::format::{Kind, Name, Roots, Run, name_of};
use crate::open::{Opened, open};
use crate::pages::Pages;
use crate::scan::{LogScan, Scan, get};
use crate::space::Space;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::ops::{Bound, RangeBounds};
use glass_api::{Block, Spawn};
use glass_lib_executor::sync::{Sender, channel_named, oneshot_named};
use glass_lib_trace::Name as TraceName;

/// Bytes of a value or record.
pub const VALUE_BYTES_MAX: usize = 1 << 20;
/// Bytes of a batch: its keys, values and records, and 32 for each change.
pub const BATCH_BYTES_MAX: usize = 4 << 20;
/// Batches that wait; more wait for a place.
const REQUESTS_MAX: usize = 256;
/// Records that one batch of [`Log::trim`] removes.
const TRIM_RECORDS: usize = 1024;

/// What a trace calls the wait for a batch.
static COMMIT: TraceName = TraceName::new("a commit of the store");
static BATCHES: TraceName = TraceName::new("batches for the store");

/// How a store is opened.
#[derive(Debug, Clone)]
pub struct Options {
    /// Memory for pages that were read, by default 4 MiB. Without those above the leaves, which take about a hundredth of the
    /// entries, each read takes several requests.
    pub cache_bytes: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { cache_bytes: 4 << 20 }
    }
}

/// What a commit returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The state of the store that has the batch: commits since it was made.
    pub sequence: u64,
    /// The indices of the records that the batch appended, in its order.
    pub indices: Vec<u64>,
    /// The new values of the batch's updates, in its order.
    pub values: Vec<Option<Vec<u8>>>,
}

/// Statistics of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Commits since the store was made.
    pub sequence: u64,
    /// Entries of all maps and logs.
    pub entries: u64,
    /// Bytes that batches may take.
    pub free_bytes: u64,
    /// Bytes that only snapshots keep.
    pub snapshot_bytes: u64,
}

pub(crate) struct Inner<B: Block> {
    pub pages: Pages<B>,
    pub space: RefCell<Space>,
    /// The newest durable state.
    pub roots: RefCell<Rc<Roots>>,
    pub is_writable: bool,
}

impl<B: Block> Inner<B> {
    /// A free page; see [`Space::take`].
    pub fn take(&self, reserve: bool) -> Result<u32, StoreError> {
        let mut space = self.space.borrow_mut();
        space.take(reserve).ok_or_else(|| full(&space))
    }

    /// Free pages for a value; see [`Space::take_runs`].
    pub fn take_runs(&self, pages: u32, runs_max: usize) -> Result<Vec<Run>, StoreError> {
        let mut space = self.space.borrow_mut();
        space.take_runs(pages, runs_max).ok_or_else(|| full(&space))
    }
}

fn full(space: &Space) -> StoreError {
    StoreError::Full { free_bytes: space.free_bytes(), snapshot_bytes: space.freed_bytes() }
}

/// Durable maps and logs on a disk. Clones are handles to the same store.
pub struct Store<B: Block> {
    inner: Rc<Inner<B>>,
    requests: Sender<Request>,
}

impl<B: Block> Clone for Store<B> {
    fn clone(&self) -> Store<B> {
        Store { inner: self.inner.clone(), requests: self.requests.clone() }
    }
}

impl<B: Block> Store<B> {
    /// Opens the store on `block`, and starts the task that writes it, which ends after the last handle. An empty disk becomes a new
    /// store; one with other data is refused and not touched. At most one store may be open on a disk.
    pub async fn open(block: B, spawn: &impl Spawn, options: Options) -> Result<(Store<B>, Recovery), OpenError> {
        let Opened { pages, space, roots, attempted, recovery } = open(block, options.cache_bytes).await?;
        let inner = Rc::new(Inner {
            pages,
            space: RefCell::new(space),
            roots: RefCell::new(Rc::new(roots)),
            is_writable: recovery.damaged.is_none(),
        });
        let (sender, receiver) = channel_named(&BATCHES, REQUESTS_MAX);
        let committer = Committer { inner: inner.clone(), requests: receiver, attempted };
        spawn.spawn("store", committer.run()).map_err(OpenError::Spawn)?;
        Ok((Store { inner, requests: sender }, recovery))
    }

    /// The map with this name of 1 to [`NAME_BYTES_MAX`](crate::NAME_BYTES_MAX) bytes. It is made by the first change; a store has at most
    /// [`TREES_MAX`](crate::TREES_MAX) maps and logs.
    pub fn map(&self, name: &str) -> Result<Map<B>, StoreError> {
        Ok(Map { store: self.clone(), name: self.name(name, Kind::Map)? })
    }

    /// The log with this name, under the same rules.
    pub fn log(&self, name: &str) -> Result<Log<B>, StoreError> {
        Ok(Log { store: self.clone(), name: self.name(name, Kind::Log)? })
    }

    fn name(&self, name: &str, kind: Kind) -> Result<Name, StoreError> {
        let name = name_of(name).ok_or(StoreError::Name)?;
        match self.inner.roots.borrow().tree(&name) {
            Some(tree) if tree.kind != kind => Err(StoreError::Kind),
            _ => Ok(name),
        }
    }

    /// Stores a batch: it is on stable storage when this returns. Batches that wait at the same time share a flush, and are applied in
    /// the order of the calls. If this future is dropped, the batch may be stored or not.
    pub async fn commit(&self, batch: Batch) -> Result<Committed, StoreError> {
        let (answer, committed) = oneshot_named(&COMMIT);
        self.requests.send(Request { batch, answer }).await.map_err(|_| StoreError::Closed)?;
        committed.await.unwrap_or(Err(StoreError::Closed))
    }

    /// The newest durable state. Its pages stay on the disk while it is there.
    pub fn snapshot(&self) -> Snapshot<B> {
        Snapshot::new(self.inner.clone(), self.inner.roots.borrow().clone())
    }

    /// Statistics.
    pub fn usage(&self) -> Usage {
        let (roots, space) = (self.inner.roots.borrow(), self.inner.space.borrow());
        Usage {
            sequence: roots.sequence,
            entries: roots.trees.iter().map(|tree| tree.entries).fold(0, u64::saturating_add),
            free_bytes: space.free_bytes(),
            snapshot_bytes: space.freed_bytes(),
        }
    }
}

/// One state of a store, which later commits do not change.
pub struct Snapshot<B: Block> {
    pub(crate) inner: Rc<Inner<B>>,
    pub(crate) roots: Rc<Roots>,
}

impl<B: Block> Snapshot<B> {
    fn new(inner: Rc<Inner<B>>, roots: Rc<Roots>) -> Snapshot<B> {
        inner.space.borrow_mut().pin(roots.sequence);
        Snapshot { inner, roots }
    }

    /// Which state it is: commits since the store was made.
    pub fn sequence(&self) -> u64 {
        self.roots.sequence
    }

    /// The value of a key.
    pub async fn get(&self, map: &Map<B>, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>, StoreError> {
        match self.roots.tree(&map.name) {
            Some(tree) => get(&self.inner, tree, key.as_ref()).await,
            None => Ok(None),
        }
    }

    /// All entries of a map in the order of their keys.
    pub fn scan(&self, map: &Map<B>) -> Scan<B> {
        Scan::new(self.clone(), &map.name, Bound::Unbounded, Bound::Unbounded)
    }

    /// Those whose key is in `range`.
    pub fn range<'k>(&self, map: &Map<B>, range: impl RangeBounds<&'k [u8]>) -> Scan<B> {
        let owned = |bound: Bound<&&[u8]>| bound.map(|key| key.to_vec());
        Scan::new(self.clone(), &map.name, owned(range.start_bound()), owned(range.end_bound()))
    }

    /// Those whose key starts with `prefix`.
    pub fn prefix(&self, map: &Map<B>, prefix: impl AsRef<[u8]>) -> Scan<B> {
        let prefix = prefix.as_ref();
        // The first key behind them: the prefix without its last bytes of 255, and one more.
        let end = prefix.iter().rposition(|byte| *byte < 0xff).map(|place| {
            let mut end = prefix[..=place].to_vec();
            end[place] += 1;
            end
        });
        let end = end.map_or(Bound::Unbounded, Bound::Excluded);
        Scan::new(self.clone(), &map.name, Bound::Included(prefix.to_vec()), end)
    }

    /// The records of a log from `index` on.
    pub fn records(&self, log: &Log<B>, index: u64) -> LogScan<B> {
        let start = Bound::Included(index.to_be_bytes().to_vec());
        LogScan { scan: Scan::new(self.clone(), &log.name, start, Bound::Unbounded) }
    }
}

impl<B: Block> Clone for Snapshot<B> {
    fn clone(&self) -> Snapshot<B> {
        Snapshot::new(self.inner.clone(), self.roots.clone())
    }
}

impl<B: Block> Drop for Snapshot<B> {
    fn drop(&mut self) {
        self.inner.space.borrow_mut().unpin(self.roots.sequence);
    }
}

/// An ordered map from bytes to bytes. Clones are handles to the same map. What changes it returns when the change is on stable
/// storage; several changes with one flush are a [`Batch`].
pub struct Map<B: Block> {
    store: Store<B>,
    pub(crate) name: Name,
}

impl<B: Block> Clone for Map<B> {
    fn clone(&self) -> Map<B> {
        Map { store: self.store.clone(), name: self.name }
    }
}

impl<B: Block> Map<B> {
    /// The value of a key.
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>, StoreError> {
        self.store.snapshot().get(self, key).await
    }

    /// Sets the value of a key, as [`Batch::put`].
    pub async fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<(), StoreError> {
        self.change(|batch| batch.put(self, key, value)).await.map(drop)
    }

    /// Sets the value of a key that has none; fails with [`StoreError::Refused`] if it has one.
    pub async fn insert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<(), StoreError> {
        self.change(|batch| batch.insert(self, key, value)).await.map(drop)
    }

    /// Replaces the value of a key by what `update` returns for it, as [`Batch::update`]. Returns the new value.
    pub async fn update(
        &self,
        key: impl AsRef<[u8]>,
        update: impl Fn(Option<&[u8]>) -> Result<Option<Vec<u8>>, Refused> + 'static,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let committed = self.change(|batch| batch.update(self, key, update)).await?;
        Ok(committed.values.into_iter().next().flatten())
    }

    /// Removes a key; no effect if it is not there.
    pub async fn remove(&self, key: impl AsRef<[u8]>) -> Result<(), StoreError> {
        self.change(|batch| batch.remove(self, key)).await.map(drop)
    }

    async fn change(&self, change: impl FnOnce(&mut Batch)) -> Result<Committed, StoreError> {
        let mut batch = Batch::new();
        change(&mut batch);
        self.store.commit(batch).await
    }

    /// All entries in the order of their keys, as they are now.
    pub fn scan(&self) -> Scan<B> {
        self.store.snapshot().scan(self)
    }

    /// Those whose key is in `range`, as they are now.
    pub fn range<'k>(&self, range: impl RangeBounds<&'k [u8]>) -> Scan<B> {
        self.store.snapshot().range(self, range)
    }

    /// Those whose key starts with `prefix`, as they are now.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Scan<B> {
        self.store.snapshot().prefix(self, prefix)
    }

    /// How many entries it has.
    pub fn len(&self) -> u64 {
        self.store.inner.roots.borrow().tree(&self.name).map_or(0, |tree| tree.entries)
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Records in the order in which they were appended. Clones are handles to the same log.
pub struct Log<B: Block> {
    store: Store<B>,
    pub(crate) name: Name,
}

impl<B: Block> Clone for Log<B> {
    fn clone(&self) -> Log<B> {
        Log { store: self.store.clone(), name: self.name }
    }
}

impl<B: Block> Log<B> {
    /// Appends a record and returns its index: 0 for the first one, never used twice.
    pub async fn append(&self, record: impl AsRef<[u8]>) -> Result<u64, StoreError> {
        let mut batch = Batch::new();
        batch.append(self, record);
        let committed = self.store.commit(batch).await?;
        Ok(committed.indices.first().copied().unwrap_or(0))
    }

    /// The records from `index` on, as they are now.
    pub fn records(&self, index: u64) -> LogScan<B> {
        self.store.snapshot().records(self, index)
    }

    /// The index of the next record.
    pub fn next_index(&self) -> u64 {
        self.store.inner.roots.borrow().tree(&self.name).map_or(0, |tree| tree.next_index)
    }

    /// How many records it has.
    pub fn len(&self) -> u64 {
        self.store.inner.roots.borrow().tree(&self.name).map_or(0, |tree| tree.entries)
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes the records before `index`, the oldest first, a thousand with each flush. After an error some of them are removed.
    pub async fn trim(&self, index: u64) -> Result<(), StoreError> {
        loop {
            let mut batch = Batch::new();
            let mut records = self.records(0);
            while batch.operations.len() < TRIM_RECORDS {
                match records.next().await? {
                    Some((found, _)) if found < index => batch.remove_record(self, found),
                    _ => break,
                }
            }
            // The snapshot of the scan would keep what is removed.
            drop(records);
            if batch.operations.is_empty() {
                return Ok(());
            }
            self.store.commit(batch).await?;
        }
    }
}
