//! Where the items are: on a disk, with leases in memory, or in an engine, which several queues share.

use crate::account::Charge;
use crate::digest::Digests;
use crate::download::{ChunkRead, Download};
use crate::engine::{self, Engine};
use crate::error::{Health, StoreError};
use crate::format::Entry;
use crate::leases::{Fence, Leases, Place, Refused};
use crate::limits::DISK_ANSWER_TIME;
use crate::problem::Problem;
use crate::put::busy;
use crate::resumable::Resumable;
use crate::scrub::Scrub;
use crate::store::{Store, Usage};
use crate::upload::Upload;
use crate::watched::Watched;
use alloc::format;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::any::Any;
use core::ops::Deref;
use core::time::Duration;
use glasshouse::future::select;
use glasshouse::http::Status;
use glasshouse::sync::Notified;
use glasshouse::{Instant, Platform};

/// The items of a queue.
pub(crate) enum Items<P: Platform> {
    Disk(Disk<P>),
    Engine(Engine),
}

/// Items on a disk.
pub(crate) struct Disk<P: Platform> {
    pub(crate) block: Watched<P::Block, P>,
    pub(crate) store: Store<Watched<P::Block, P>>,
    pub(crate) leases: Leases,
    /// If items that wait are checked.
    pub(crate) scrub: Option<Rc<Scrub>>,
}

/// An item of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) entry: Entry,
    pub(crate) place: Place,
    /// How often it was given out.
    pub(crate) tries: u32,
}

/// How many items there are; a consumer has some, and others were given out as often as they may be.
pub(crate) struct Counts {
    pub(crate) items: u64,
    pub(crate) leased: u64,
    pub(crate) dead: u64,
}

/// Whether a request names a lease.
pub(crate) type Named<'a> = &'a dyn Fn(&Fence) -> bool;

/// Why a lease was not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaseError {
    /// There is no such item.
    Gone,
    Refused(Refused),
    Store(StoreError),
}

impl From<StoreError> for LeaseError {
    fn from(error: StoreError) -> LeaseError {
        LeaseError::Store(error)
    }
}

impl<P: Platform> Disk<P> {
    fn listed(&self, entry: Entry, now: Instant) -> Listed {
        Listed { entry, place: self.leases.place(entry.id, now), tries: self.leases.tries(entry.id) }
    }

    /// Fails unless `is_named` accepts the lease of item `id`, and the item is there.
    #[inline(never)]
    fn check(&self, id: u64, is_named: Named<'_>) -> Result<(), LeaseError> {
        self.store.item(id).ok_or(LeaseError::Gone)?;
        self.leases.check(id, is_named).map_err(LeaseError::Refused)
    }

    async fn remove(&self, id: u64) -> Result<(), LeaseError> {
        let removed = self.store.remove(id).await?;
        self.leases.forget(id);
        if removed { Ok(()) } else { Err(LeaseError::Gone) }
    }
}

impl<P: Platform> Items<P> {
    /// Waits until everything is known that was answered before, by any queue that shares the items.
    pub(crate) async fn refresh(&self) -> Result<(), StoreError> {
        match self {
            Items::Disk(_) => Ok(()),
            Items::Engine(engine) => engine.refresh().await,
        }
    }

    /// Items are given out so often at most; 0 is without end.
    pub(crate) fn set_tries(&self, tries_max: u32) {
        match self {
            Items::Disk(disk) => disk.leases.set_tries(tries_max),
            Items::Engine(engine) => engine.set_tries(tries_max),
        }
    }

    /// How many leases this queue has given since its start.
    pub(crate) fn given(&self) -> u64 {
        match self {
            Items::Disk(disk) => disk.leases.given(),
            Items::Engine(engine) => engine.given(),
        }
    }

    /// The oldest item that no consumer has.
    pub(crate) fn oldest(&self, now: Instant) -> Option<Entry> {
        match self {
            Items::Disk(disk) => disk.store.first_item(|entry| disk.leases.place(entry.id, now) == Place::Ready),
            Items::Engine(engine) => engine.oldest(now),
        }
    }

    /// Item `id`.
    pub(crate) fn get(&self, id: u64, now: Instant) -> Option<Listed> {
        match self {
            Items::Disk(disk) => disk.store.item(id).map(|entry| disk.listed(entry, now)),
            Items::Engine(engine) => engine.get(id, now),
        }
    }

    /// The oldest items after item `id`, so many at most.
    pub(crate) fn after(&self, id: Option<u64>, count: usize, now: Instant) -> Vec<Listed> {
        match self {
            Items::Disk(disk) => {
                disk.store.items_after(id, count).into_iter().map(|entry| disk.listed(entry, now)).collect()
            }
            Items::Engine(engine) => engine.after(id, count, now),
        }
    }

    /// How many there are, by what becomes of them next.
    pub(crate) fn counts(&self, now: Instant) -> Counts {
        let (items, places): (usize, Vec<Place>) = match self {
            // All others are ready.
            Items::Disk(disk) => {
                let given = disk.leases.ids().into_iter().filter(|id| disk.store.item(*id).is_some());
                (disk.store.usage().items, given.map(|id| disk.leases.place(id, now)).collect())
            }
            Items::Engine(engine) => {
                let items = engine.after(None, usize::MAX, now).into_iter();
                (items.len(), items.map(|item| item.place).collect())
            }
        };
        let count = |is_counted: fn(Place) -> bool| places.iter().filter(|place| is_counted(**place)).count() as u64;
        let leased = count(|place| matches!(place, Place::Leased(_)));
        Counts { items: items as u64, leased, dead: count(|place| place == Place::Dead) }
    }

    /// The usage of the disk, if there is one.
    pub(crate) fn disk_usage(&self) -> Option<Usage> {
        self.disk().map(|disk| disk.store.usage())
    }

    /// The disk, if there is one.
    pub(crate) fn disk(&self) -> Option<&Disk<P>> {
        match self {
            Items::Disk(disk) => Some(disk),
            Items::Engine(_) => None,
        }
    }

    /// The uploads that can be resumed.
    pub(crate) fn resumables(&self) -> Vec<Rc<Resumable>> {
        match self {
            Items::Disk(disk) => disk.store.resumables(),
            Items::Engine(_) => Vec::new(),
        }
    }

    /// The store on the disk, for uploads that can be resumed; the answer where they cannot.
    pub(crate) fn store(&self) -> Result<&Store<Watched<P::Block, P>>, Problem> {
        match self {
            Items::Disk(disk) => Ok(&disk.store),
            Items::Engine(_) => {
                let text = "An upload to this queue cannot be resumed: its items are in an engine (--store). Send it whole, by PUT /uploader";
                Err(Problem::new(Status::NOT_IMPLEMENTED, text))
            }
        }
    }

    /// Gives out item `id`; `None` if another consumer was faster.
    pub(crate) async fn take(&self, id: u64, now: Instant, time: Duration) -> Result<Option<(Fence, u32)>, StoreError> {
        match self {
            Items::Disk(disk) => {
                let is_ready = disk.store.item(id).is_some() && disk.leases.place(id, now) == Place::Ready;
                Ok(is_ready.then(|| disk.leases.give(id, now + time)))
            }
            Items::Engine(engine) => engine.take(id, time).await,
        }
    }

    /// Removes item `id`, whose lease `is_named` accepts.
    pub(crate) async fn acknowledge(&self, id: u64, is_named: Named<'_>) -> Result<(), LeaseError> {
        match self {
            Items::Disk(disk) => {
                disk.check(id, is_named)?;
                disk.remove(id).await
            }
            Items::Engine(engine) => engine.acknowledge(id, is_named).await,
        }
    }

    /// The lease of item `id` that `is_named` accepts has this time from now on.
    pub(crate) async fn extend(
        &self,
        id: u64,
        is_named: Named<'_>,
        now: Instant,
        time: Duration,
    ) -> Result<(), LeaseError> {
        match self {
            Items::Disk(disk) => {
                disk.check(id, is_named)?;
                disk.leases.extend(id, now + time);
                Ok(())
            }
            Items::Engine(engine) => engine.extend(id, is_named, time).await,
        }
    }

    /// Item `id`, whose lease `is_named` accepts, is ready again at once.
    pub(crate) async fn give_back(&self, id: u64, is_named: Named<'_>) -> Result<(), LeaseError> {
        match self {
            Items::Disk(disk) => {
                disk.check(id, is_named)?;
                disk.leases.put_back(id, false);
                Ok(())
            }
            Items::Engine(engine) => engine.give_back(id, is_named).await,
        }
    }

    /// Item `id`, which no consumer has, may be given out as if it had never been.
    pub(crate) async fn revive(&self, id: u64) -> Result<(), LeaseError> {
        match self {
            Items::Disk(disk) => {
                disk.leases.put_back(id, true);
                Ok(())
            }
            Items::Engine(engine) => engine.revive(id).await,
        }
    }

    /// Removes item `id`, whether or not a consumer has it.
    pub(crate) async fn remove(&self, id: u64) -> Result<(), LeaseError> {
        match self {
            Items::Disk(disk) => disk.remove(id).await,
            Items::Engine(engine) => engine.remove(id).await,
        }
    }

    /// Removes item `id`, which no consumer had when the caller looked.
    pub(crate) async fn remove_free(&self, id: u64) -> Result<(), LeaseError> {
        match self {
            // No consumer can take it between the look and the removal.
            Items::Disk(disk) => disk.remove(id).await,
            Items::Engine(engine) => engine.remove_free(id).await,
        }
    }

    /// For the next change of the items.
    pub(crate) fn changes(&self) -> Changes {
        match self {
            Items::Disk(disk) => Changes::Disk(disk.store.changed(), disk.leases.changed()),
            Items::Engine(engine) => Changes::Engine(engine.changed()),
        }
    }

    /// When the next lease ends.
    pub(crate) fn next_end(&self, now: Instant) -> Option<Instant> {
        match self {
            Items::Disk(disk) => disk.leases.next_end(now),
            Items::Engine(engine) => engine.next_end(now),
        }
    }

    /// Forgets what belongs to items that are gone.
    pub(crate) fn tidy(&self) {
        if let Items::Disk(disk) = self {
            disk.leases.retain(|id| disk.store.item(id).is_some());
        }
    }

    /// Whether the disk, or the engine, does what the queue needs. Each problem of a disk starts a check, whose result the next call has.
    pub(crate) fn ready(&self, now: Instant) -> Result<(), Problem> {
        let disk = match self {
            Items::Disk(disk) => disk,
            Items::Engine(engine) => return engine.ready().map_err(|error| busy(&error)),
        };
        let waited = disk.block.oldest().map_or(Duration::ZERO, |oldest| now - oldest);
        let health = disk.store.health();
        if waited >= DISK_ANSWER_TIME {
            Err(busy(&format!("the disk has not answered for {} s", waited.as_secs())))
        } else if health != Health::Good {
            disk.store.request_check();
            Err(busy(&format!("{health}")))
        } else {
            Ok(())
        }
    }

    /// Starts an upload of `length` bytes, or of `length_max` bytes at most if the length is unknown.
    pub(crate) fn upload(
        &self,
        length: Option<u64>,
        length_max: u64,
        now: Instant,
    ) -> Result<ItemUpload<P>, StoreError> {
        if let Items::Disk(disk) = self {
            disk.store.pace(now);
        }
        match (self, length) {
            (Items::Disk(disk), Some(length)) => disk.store.upload(length).map(ItemUpload::Disk),
            (Items::Disk(disk), None) => disk.store.upload_of_unknown_length(length_max).map(ItemUpload::Disk),
            (Items::Engine(engine), length) => engine.upload(length, length_max).map(ItemUpload::Engine),
        }
    }

    /// Downloads item `id`, which stays in the queue.
    pub(crate) fn fetch(&self, id: u64) -> Option<ItemDownload<P>> {
        match self {
            Items::Disk(disk) => disk.store.fetch_item(id).map(ItemDownload::Disk),
            Items::Engine(engine) => engine.fetch(id).map(ItemDownload::Engine),
        }
    }
}

/// Completes when the items have changed since it was made.
pub(crate) enum Changes {
    Disk(Notified, Notified),
    Engine(engine::Changed),
}

impl Changes {
    pub(crate) async fn wait(self) {
        match self {
            Changes::Disk(stored, returned) => _ = select(stored, returned).await,
            Changes::Engine(changed) => changed.wait().await,
        }
    }
}

/// An item that is being received.
pub(crate) enum ItemUpload<P: Platform> {
    Disk(Upload<Watched<P::Block, P>>),
    Engine(engine::Upload),
}

/// As those of [`Upload`].
impl<P: Platform> ItemUpload<P> {
    pub(crate) fn hold(&mut self, guard: impl Any) {
        match self {
            ItemUpload::Disk(upload) => upload.hold(guard),
            ItemUpload::Engine(upload) => upload.hold(guard),
        }
    }

    pub(crate) fn verify(&mut self, digests: Digests) {
        *self.digests() = digests;
    }

    pub(crate) fn digests(&mut self) -> &mut Digests {
        match self {
            ItemUpload::Disk(upload) => upload.digests(),
            ItemUpload::Engine(upload) => upload.digests(),
        }
    }

    pub(crate) fn set_charge(&mut self, charge: Option<Charge>) {
        match self {
            ItemUpload::Disk(upload) => upload.set_charge(charge),
            ItemUpload::Engine(upload) => upload.set_charge(charge),
        }
    }

    pub(crate) fn arrived(&mut self, bytes: u64) -> bool {
        match self {
            ItemUpload::Disk(upload) => upload.arrived(bytes),
            ItemUpload::Engine(upload) => upload.arrived(bytes),
        }
    }

    pub(crate) fn missing_bytes(&self) -> u64 {
        match self {
            ItemUpload::Disk(upload) => upload.missing_bytes(),
            ItemUpload::Engine(upload) => upload.missing_bytes(),
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        match self {
            ItemUpload::Disk(upload) => upload.is_open(),
            ItemUpload::Engine(upload) => upload.is_open(),
        }
    }

    pub(crate) fn end(&mut self) {
        match self {
            ItemUpload::Disk(upload) => upload.end(),
            ItemUpload::Engine(upload) => upload.end(),
        }
    }

    pub(crate) async fn receive<E>(
        &mut self,
        read: impl AsyncFnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<Result<usize, E>, StoreError> {
        match self {
            ItemUpload::Disk(upload) => upload.receive(read).await,
            ItemUpload::Engine(upload) => upload.receive(read).await,
        }
    }

    pub(crate) async fn finish(self) -> Result<u64, StoreError> {
        match self {
            ItemUpload::Disk(upload) => upload.finish().await,
            ItemUpload::Engine(upload) => upload.finish().await,
        }
    }
}

/// An item that is being read.
pub(crate) enum ItemDownload<P: Platform> {
    Disk(Download<Watched<P::Block, P>>),
    Engine(engine::Download),
}

/// As those of [`Download`].
impl<P: Platform> ItemDownload<P> {
    pub(crate) fn again(&self) -> Result<ItemDownload<P>, StoreError> {
        match self {
            ItemDownload::Disk(download) => Ok(ItemDownload::Disk(download.again())),
            ItemDownload::Engine(download) => download.again().map(ItemDownload::Engine),
        }
    }

    pub(crate) fn hold(&mut self, guard: impl Any) {
        match self {
            ItemDownload::Disk(download) => download.hold(guard),
            ItemDownload::Engine(download) => download.hold(guard),
        }
    }

    pub(crate) fn entry(&self) -> &Entry {
        match self {
            ItemDownload::Disk(download) => download.entry(),
            ItemDownload::Engine(download) => download.entry(),
        }
    }

    pub(crate) fn bytes_left(&self) -> u64 {
        match self {
            ItemDownload::Disk(download) => download.bytes_left(),
            ItemDownload::Engine(download) => download.bytes_left(),
        }
    }

    pub(crate) async fn next(&mut self) -> Result<Option<Chunk>, StoreError> {
        match self {
            ItemDownload::Disk(download) => Ok(download.next().await?.map(Chunk::Disk)),
            ItemDownload::Engine(download) => Ok(download.next().await?.map(Chunk::Engine)),
        }
    }

    pub(crate) async fn drive(&mut self) {
        match self {
            ItemDownload::Disk(download) => download.drive().await,
            // Its thread reads ahead.
            ItemDownload::Engine(_) => core::future::pending().await,
        }
    }
}

/// Bytes of an item.
pub(crate) enum Chunk {
    Disk(ChunkRead),
    Engine(Vec<u8>),
}

impl Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Chunk::Disk(chunk) => chunk,
            Chunk::Engine(chunk) => chunk,
        }
    }
}
