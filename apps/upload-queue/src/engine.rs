//! Items in an engine, NATS JetStream (decision 71): `lib/jetstream` with the types of this service.

use crate::account::Charge;
use crate::digest::Digests;
use crate::error::StoreError;
use crate::format::{self, Entry};
use crate::items::{LeaseError, Listed, Named};
use crate::leases::{Fence, Place, Refused};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::any::Any;
use core::cell::Cell;
use core::time::Duration;
use glass_lib_jetstream as jetstream;
pub(crate) use glass_lib_jetstream::Changed;
use glasshouse::tracing::{Instrument, info_span};
use glasshouse::{Instant, Platform};
use jetstream::{Address, EngineError, Item};
use xxhash_rust::xxh3::Xxh3;

/// The queue in an engine.
pub(crate) struct Engine {
    engine: jetstream::Engine,
    tries_max: Cell<u32>,
    given: Cell<u64>,
}

fn failed(error: EngineError) -> StoreError {
    match error {
        EngineError::Absent => StoreError::Away("the engine does not answer: try again later"),
        EngineError::Unknown => StoreError::Away(
            "the connection to the engine was lost before its answer, so the change may have been made: try again later",
        ),
        EngineError::Unusable => StoreError::Away("the engine cannot be used as it is: /readyz states why"),
        EngineError::Gone => {
            StoreError::Away("the item was removed meanwhile, or its data is not in the engine any more")
        }
        EngineError::TooSlow => StoreError::Away("the upload was interrupted for too long: send it again"),
        EngineError::Full => StoreError::EngineFull,
        EngineError::Refused(code) => StoreError::Engine { code },
    }
}

fn entry(item: &Item) -> Entry {
    Entry { id: item.id, length: item.length, checksum: item.checksum, extents: Default::default() }
}

fn fence(item: &Item) -> Fence {
    Fence::of(item.random, item.lease)
}

fn listed(item: Item, now: Instant) -> Listed {
    let place = match item.place {
        jetstream::Place::Ready => Place::Ready,
        jetstream::Place::Leased(left) => Place::Leased(now + left),
        jetstream::Place::Dead => Place::Dead,
    };
    Listed { entry: entry(&item), place, tries: item.tries }
}

impl Engine {
    /// Connects to the engine at this address, and has its messages printed.
    pub(crate) async fn open<P: Platform>(p: &P, address: &str, tries_max: u32) -> Result<Engine, String> {
        let address = Address::parse(address).map_err(|error| format!("--store: {error}"))?;
        let (engine, mut messages) = jetstream::Engine::start(address).await?;
        let (usage, name) = (engine.usage(), format!("{}", engine.address()));
        match engine.ready() {
            Ok(()) => p.print(format_args!("upload-queue: {} items with {} bytes are in {name}", usage.0, usage.1)),
            Err(error) => p.print(format_args!("upload-queue: {error}; requests are answered by 503 until it does")),
        }
        let platform = p.clone();
        let print = async move {
            while let Some(message) = messages.recv().await {
                platform.print(format_args!("upload-queue: {message}"));
            }
        };
        p.spawn("engine", print).map_err(|error| format!("{error}"))?;
        Ok(Engine { engine, tries_max: Cell::new(tries_max), given: Cell::new(0) })
    }

    /// Where the items are.
    pub(crate) fn address(&self) -> String {
        format!("{}", self.engine.address())
    }

    pub(crate) fn set_tries(&self, tries_max: u32) {
        self.tries_max.set(tries_max);
    }

    pub(crate) fn given(&self) -> u64 {
        self.given.get()
    }

    pub(crate) async fn refresh(&self) -> Result<(), StoreError> {
        self.engine.refresh().await.map_err(failed)
    }

    pub(crate) fn ready(&self) -> Result<(), String> {
        self.engine.ready()
    }

    fn item(&self, id: u64) -> Option<Item> {
        self.engine.item(id, self.tries_max.get())
    }

    pub(crate) fn oldest(&self, _: Instant) -> Option<Entry> {
        let item = self.engine.first(self.tries_max.get(), |item| item.place == jetstream::Place::Ready);
        item.as_ref().map(entry)
    }

    pub(crate) fn get(&self, id: u64, now: Instant) -> Option<Listed> {
        self.item(id).map(|item| listed(item, now))
    }

    pub(crate) fn after(&self, id: Option<u64>, count: usize, now: Instant) -> Vec<Listed> {
        let items = self.engine.items_after(id, count, self.tries_max.get());
        items.into_iter().map(|item| listed(item, now)).collect()
    }

    /// How many items there are, and their bytes.
    pub(crate) fn usage(&self) -> (usize, u64) {
        self.engine.usage()
    }

    pub(crate) async fn take(&self, id: u64, time: Duration) -> Result<Option<(Fence, u32)>, StoreError> {
        let Some(item) = self.item(id).filter(|item| item.place == jetstream::Place::Ready) else { return Ok(None) };
        let taken = self.engine.take(id, item.lease, time).await.map_err(failed)?;
        Ok(taken.map(|lease| {
            self.given.set(self.given.get() + 1);
            (Fence::of(item.random, lease.number), lease.tries)
        }))
    }

    /// The number of the lease of item `id`, if `is_named` accepts it.
    fn lease(&self, id: u64, is_named: Named<'_>) -> Result<u64, LeaseError> {
        let item = self.item(id).ok_or(LeaseError::Gone)?;
        match item.lease {
            0 => Err(LeaseError::Refused(Refused::NoLease)),
            _ if !is_named(&fence(&item)) => Err(LeaseError::Refused(Refused::OtherLease)),
            number => Ok(number),
        }
    }

    pub(crate) async fn acknowledge(&self, id: u64, is_named: Named<'_>) -> Result<(), LeaseError> {
        let number = self.lease(id, is_named)?;
        self.engine.acknowledge(id, number).await.map_err(lease_failed)
    }

    pub(crate) async fn extend(&self, id: u64, is_named: Named<'_>, time: Duration) -> Result<(), LeaseError> {
        let number = self.lease(id, is_named)?;
        self.engine.extend(id, number, time).await.map_err(lease_failed)
    }

    pub(crate) async fn give_back(&self, id: u64, is_named: Named<'_>) -> Result<(), LeaseError> {
        let number = self.lease(id, is_named)?;
        self.engine.give_back(id, number).await.map_err(lease_failed)
    }

    pub(crate) async fn revive(&self, id: u64) -> Result<(), LeaseError> {
        self.engine.revive(id).await.map_err(lease_failed)
    }

    pub(crate) async fn remove(&self, id: u64) -> Result<(), LeaseError> {
        self.engine.remove(id).await.map_err(lease_failed)
    }

    pub(crate) async fn remove_free(&self, id: u64) -> Result<(), LeaseError> {
        self.engine.remove_free(id).await.map_err(lease_failed)
    }

    pub(crate) fn changed(&self) -> Changed {
        self.engine.changed()
    }

    pub(crate) fn next_end(&self, now: Instant) -> Option<Instant> {
        self.engine.next_end().map(|left| now + left)
    }

    pub(crate) fn upload(&self, length: Option<u64>, length_max: u64) -> Result<Upload, StoreError> {
        let upload = self.engine.upload().map_err(failed)?;
        Ok(Upload {
            upload,
            chunk_bytes: self.engine.chunk_bytes(),
            length,
            length_max: length.unwrap_or(length_max),
            received: 0,
            chunk: Vec::new(),
            filled: 0,
            hasher: format::hasher(),
            digests: Digests::default(),
            charge: None,
            _held: None,
        })
    }

    pub(crate) fn fetch(&self, id: u64) -> Option<Download> {
        let item = self.item(id)?;
        Download::new(self.engine.clone(), entry(&item))
    }
}

fn lease_failed(error: jetstream::LeaseError) -> LeaseError {
    match error {
        jetstream::LeaseError::NoItem => LeaseError::Gone,
        jetstream::LeaseError::OtherLease => LeaseError::Refused(Refused::OtherLease),
        jetstream::LeaseError::Engine(error) => LeaseError::Store(failed(error)),
    }
}

/// An item that is being received.
pub(crate) struct Upload {
    upload: jetstream::Upload,
    chunk_bytes: usize,
    length: Option<u64>,
    length_max: u64,
    received: u64,
    /// The one that is being filled; empty before the first byte of it.
    chunk: Vec<u8>,
    filled: usize,
    hasher: Box<Xxh3>,
    digests: Digests,
    charge: Option<Charge>,
    _held: Option<Box<dyn Any>>,
}

/// As those of [`crate::Upload`].
impl Upload {
    pub(crate) fn hold(&mut self, guard: impl Any) {
        self._held = Some(Box::new(guard));
    }

    pub(crate) fn digests(&mut self) -> &mut Digests {
        &mut self.digests
    }

    pub(crate) fn set_charge(&mut self, charge: Option<Charge>) {
        self.charge = charge;
    }

    pub(crate) fn arrived(&mut self, bytes: u64) -> bool {
        let is_announced = self.length.is_some();
        let Some(charge) = &mut self.charge else { return true };
        charge.arrived(bytes);
        is_announced || charge.add(bytes)
    }

    pub(crate) fn missing_bytes(&self) -> u64 {
        self.length_max - self.received
    }

    pub(crate) fn is_open(&self) -> bool {
        self.length.is_none()
    }

    pub(crate) fn end(&mut self) {
        self.length = Some(self.received);
    }

    pub(crate) async fn receive<E>(
        &mut self,
        read: impl AsyncFnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<Result<usize, E>, StoreError> {
        if self.chunk.is_empty() {
            let bytes = self.missing_bytes().min(self.chunk_bytes as u64) as usize;
            self.chunk = vec![0; bytes];
        }
        let space = &mut self.chunk[self.filled..];
        let space_bytes = space.len();
        let result = read(space).await;
        if let Ok(count) = result {
            assert!(count <= space_bytes, "{count} bytes put into {space_bytes}");
            self.filled += count;
            self.received += count as u64;
            if self.filled == self.chunk.len() {
                self.send().await?;
            }
        }
        Ok(result)
    }

    async fn send(&mut self) -> Result<(), StoreError> {
        let mut chunk = core::mem::take(&mut self.chunk);
        chunk.truncate(core::mem::take(&mut self.filled));
        if chunk.is_empty() {
            return Ok(());
        }
        self.hasher.update(&chunk);
        self.digests.update(&chunk);
        self.upload.write(chunk).await.map_err(failed)
    }

    pub(crate) async fn finish(mut self) -> Result<u64, StoreError> {
        let length = self.length.unwrap_or(self.length_max);
        if self.received != length {
            return Err(StoreError::Short { length, received: self.received });
        }
        self.send().instrument(info_span!("write")).await?;
        self.digests.verify()?;
        let finish = self.upload.finish(length, self.hasher.digest());
        finish.instrument(info_span!("commit")).await.map_err(failed)
    }
}

/// An item that is being read.
pub(crate) struct Download {
    engine: jetstream::Engine,
    entry: Entry,
    download: jetstream::Download,
    bytes_left: u64,
    hasher: Box<Xxh3>,
    _held: Option<Box<dyn Any>>,
}

/// As those of [`crate::Download`].
impl Download {
    fn new(engine: jetstream::Engine, entry: Entry) -> Option<Download> {
        let download = engine.download(entry.id)?;
        let hasher = format::hasher();
        Some(Download { engine, entry, download, bytes_left: entry.length, hasher, _held: None })
    }

    pub(crate) fn again(&self) -> Result<Download, StoreError> {
        Download::new(self.engine.clone(), self.entry).ok_or(failed(EngineError::Gone))
    }

    pub(crate) fn hold(&mut self, guard: impl Any) {
        self._held = Some(Box::new(guard));
    }

    pub(crate) fn entry(&self) -> &Entry {
        &self.entry
    }

    pub(crate) fn bytes_left(&self) -> u64 {
        self.bytes_left
    }

    pub(crate) async fn next(&mut self) -> Result<Option<Vec<u8>>, StoreError> {
        if self.bytes_left == 0 {
            return Ok(None);
        }
        let chunk = match self.download.next().await {
            Some(chunk) => chunk.map_err(failed)?,
            None => return Err(self.damaged()),
        };
        self.hasher.update(&chunk);
        self.bytes_left = self.bytes_left.checked_sub(chunk.len() as u64).ok_or_else(|| self.damaged())?;
        if self.bytes_left == 0 && self.hasher.digest() != self.entry.checksum {
            return Err(self.damaged());
        }
        Ok(Some(chunk))
    }

    fn damaged(&self) -> StoreError {
        StoreError::Damaged { id: self.entry.id, stored: self.entry.checksum, computed: self.hasher.digest() }
    }
}
