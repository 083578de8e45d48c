//! A disk that records every write and flush, and its possible contents after a power cut at any moment.

pub mod site;

use embassy_futures::yield_now;
use glass_lib_executor::{Executor, Unpark};
use glasshouse::{Block, BlockError, BlockInfo, Buf, check_change, check_request};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use upload_queue::{Download, Store, StoreError, Upload};

/// The unit that a power cut leaves whole, whatever the disk's sector size.
const TEAR_BYTES: usize = 512;

/// What discarded bytes contain.
pub const DISCARDED: u8 = 0xdd;

/// A small generator (splitmix64), so that a seed in a message is all it takes to repeat a failure.
#[derive(Clone)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Bytes that no other `tag` has.
pub fn content(tag: u64, length: usize) -> Vec<u8> {
    let mut rng = Rng(tag.wrapping_mul(0x1234_5678_9abc_def1));
    let mut bytes = vec![0; length.next_multiple_of(8)];
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&rng.next().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// What happened on a disk, in order.
#[derive(Clone)]
pub enum Event {
    /// A write started; it may reach the medium from now on.
    Write { id: u64, offset: usize, data: Rc<Vec<u8>> },
    /// The write was reported complete.
    Written { id: u64 },
    /// A flush started: it covers the writes completed by now.
    Flush { id: u64 },
    /// The flush was reported complete.
    Flushed { id: u64 },
    /// A flush failed: the writes completed before it may be on the medium, and no later flush covers them.
    FlushFailed,
    /// A note of the test.
    Note(Note),
}

/// The requests of a client of the queue, and their answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// The client sent the last byte of an upload, or is about to.
    AddAsked {
        tag: u64,
    },
    AddAnswered {
        tag: u64,
        id: u64,
        length: usize,
    },
    RemoveAsked {
        id: u64,
    },
    RemoveAnswered {
        id: u64,
    },
    /// So many bytes of an upload that can be resumed were acknowledged.
    Saved {
        tag: u64,
        offset: u64,
    },
    /// The client gave it up, or is about to.
    ForgetAsked {
        tag: u64,
    },
    ForgetAnswered {
        tag: u64,
    },
}

#[derive(Clone)]
pub struct RecordingDisk {
    inner: Rc<Inner>,
}

struct Inner {
    sector_bytes: u32,
    image: RefCell<Vec<u8>>,
    log: RefCell<Vec<Event>>,
    rng: RefCell<Rng>,
    /// Polls that a request takes, at most.
    latency_max: u64,
    ids: Cell<u64>,
    /// Writes or flushes that still succeed.
    good_writes: Cell<u64>,
    good_flushes: Cell<u64>,
    flushes: Cell<u64>,
    recording: bool,
}

impl RecordingDisk {
    pub fn new(image: Vec<u8>, sector_bytes: u32, seed: u64, latency_max: u64) -> RecordingDisk {
        RecordingDisk::with(image, sector_bytes, seed, latency_max, true)
    }

    /// A disk that completes immediately and keeps no record.
    pub fn plain(image: Vec<u8>) -> RecordingDisk {
        RecordingDisk::with(image, 512, 0, 0, false)
    }

    fn with(image: Vec<u8>, sector_bytes: u32, seed: u64, latency_max: u64, recording: bool) -> RecordingDisk {
        RecordingDisk {
            inner: Rc::new(Inner {
                sector_bytes,
                image: RefCell::new(image),
                log: RefCell::default(),
                rng: RefCell::new(Rng(seed)),
                latency_max,
                ids: Cell::new(0),
                good_writes: Cell::new(u64::MAX),
                good_flushes: Cell::new(u64::MAX),
                flushes: Cell::new(0),
                recording,
            }),
        }
    }

    pub fn note(&self, note: Note) {
        self.log(Event::Note(note));
    }

    pub fn events(&self) -> Vec<Event> {
        self.inner.log.borrow().clone()
    }

    pub fn image(&self) -> Vec<u8> {
        self.inner.image.borrow().clone()
    }

    pub fn change_image(&self, change: impl FnOnce(&mut Vec<u8>)) {
        change(&mut self.inner.image.borrow_mut());
    }

    pub fn flushes(&self) -> u64 {
        self.inner.flushes.get()
    }

    pub fn fail_flushes_after(&self, good: u64) {
        self.inner.good_flushes.set(good);
    }

    pub fn fail_writes_after(&self, good: u64) {
        self.inner.good_writes.set(good);
    }

    fn log(&self, event: Event) {
        if self.inner.recording {
            self.inner.log.borrow_mut().push(event);
        }
    }

    /// Some first sectors of `bytes`, none or all included.
    fn part(&self, bytes: usize) -> usize {
        let sectors = (bytes / TEAR_BYTES) as u64;
        self.inner.rng.borrow_mut().below(sectors + 1) as usize * TEAR_BYTES
    }

    fn next_id(&self) -> u64 {
        self.inner.ids.set(self.inner.ids.get() + 1);
        self.inner.ids.get()
    }

    async fn delay(&self) {
        if self.inner.latency_max > 0 {
            let polls = self.inner.rng.borrow_mut().below(self.inner.latency_max);
            for _ in 0..polls {
                yield_now().await;
            }
        }
    }
}

fn spend(budget: &Cell<u64>) -> Result<(), BlockError> {
    let left = budget.get().checked_sub(1).ok_or(BlockError::Device(5))?;
    budget.set(left);
    Ok(())
}

impl Block for RecordingDisk {
    fn info(&self) -> BlockInfo {
        let size_bytes = self.inner.image.borrow().len() as u64;
        BlockInfo { sector_bytes: self.inner.sector_bytes, size_bytes, read_only: false }
    }

    async fn read(&self, offset: u64, mut buf: Buf) -> (Result<(), BlockError>, Buf) {
        if let Err(error) = check_request(self.info(), offset, buf.len()) {
            return (Err(error), buf);
        }
        self.delay().await;
        let Some(bytes) = buf.as_mut() else { return (Err(BlockError::Shared), buf) };
        bytes.copy_from_slice(&self.inner.image.borrow()[offset as usize..][..bytes.len()]);
        (Ok(()), buf)
    }

    async fn write(&self, offset: u64, buf: Buf) -> (Result<(), BlockError>, Buf) {
        if let Err(error) = check_request(self.info(), offset, buf.len()) {
            return (Err(error), buf);
        }
        let result = spend(&self.inner.good_writes);
        // A write that fails may have written a part, or even all.
        let bytes = if result.is_ok() { buf.len() } else { self.part(buf.len()) };
        let (id, offset) = (self.next_id(), offset as usize);
        if self.inner.recording {
            self.log(Event::Write { id, offset, data: Rc::new(buf[..bytes].to_vec()) });
        }
        self.delay().await;
        self.inner.image.borrow_mut()[offset..][..bytes].copy_from_slice(&buf[..bytes]);
        self.log(Event::Written { id });
        (result, buf)
    }

    async fn discard(&self, offset: u64, len: usize) -> Result<(), BlockError> {
        check_change(self.info(), offset, len)?;
        // What is read afterwards is anything.
        let mut buf = Buf::zeroed(len).unwrap();
        buf.as_mut().unwrap().fill(DISCARDED);
        self.write(offset, buf).await.0
    }

    async fn flush(&self) -> Result<(), BlockError> {
        if let Err(error) = spend(&self.inner.good_flushes) {
            self.log(Event::FlushFailed);
            return Err(error);
        }
        let id = self.next_id();
        self.log(Event::Flush { id });
        self.delay().await;
        self.log(Event::Flushed { id });
        self.inner.flushes.set(self.inner.flushes.get() + 1);
        Ok(())
    }
}

/// Replays a log and returns what may be on the disk at each moment.
pub struct Cutter {
    durable: Vec<u8>,
    /// Writes that no flush has made durable, oldest first, and whether they are complete.
    pending: Vec<(u64, usize, Rc<Vec<u8>>, bool)>,
    /// For each flush in flight the writes that it covers.
    flushes: Vec<(u64, Vec<u64>)>,
    /// Decides what a failed flush wrote.
    rng: Rng,
}

impl Cutter {
    pub fn new(image: Vec<u8>) -> Cutter {
        Cutter { durable: image, pending: Vec::new(), flushes: Vec::new(), rng: Rng(0) }
    }

    pub fn follow(&mut self, event: &Event) {
        match event {
            Event::Write { id, offset, data } => self.pending.push((*id, *offset, data.clone(), false)),
            Event::Written { id } => {
                let write = self.pending.iter_mut().find(|write| write.0 == *id);
                write.expect("a write that completes has begun").3 = true;
            }
            Event::Flush { id } => {
                let covered = self.pending.iter().filter(|write| write.3).map(|write| write.0).collect();
                self.flushes.push((*id, covered));
            }
            Event::Flushed { id } => {
                let place = self.flushes.iter().position(|flush| flush.0 == *id).expect("the flush has begun");
                let (_, covered) = self.flushes.remove(place);
                for (_, offset, data, _) in self.pending.extract_if(.., |write| covered.contains(&write.0)) {
                    self.durable[offset..][..data.len()].copy_from_slice(&data);
                }
            }
            Event::FlushFailed => {
                for (_, offset, data, _) in self.pending.extract_if(.., |write| write.3) {
                    for (number, sector) in data.chunks(TEAR_BYTES).enumerate() {
                        if self.rng.below(2) == 0 {
                            self.durable[offset + number * TEAR_BYTES..][..sector.len()].copy_from_slice(sector);
                        }
                    }
                }
            }
            Event::Note(_) => {}
        }
    }

    /// The disk after a power cut now: each write that was not flushed is there, is not there, or is
    /// there in part.
    pub fn cut(&self, rng: &mut Rng) -> Vec<u8> {
        let mut image = self.durable.clone();
        for (_, offset, data, _) in &self.pending {
            let fate = rng.below(4);
            for (number, sector) in data.chunks(TEAR_BYTES).enumerate() {
                if fate == 0 || (fate > 1 && rng.below(fate) == 0) {
                    image[offset + number * TEAR_BYTES..][..sector.len()].copy_from_slice(sector);
                }
            }
        }
        image
    }
}

struct NoUnpark;

impl Unpark for NoUnpark {
    fn unpark(&self) {}
}

/// Runs `test` beside the store's own task until it ends; fails on a deadlock.
pub fn run<T: 'static>(test: impl AsyncFnOnce(Executor) -> T + 'static) -> T {
    let executor = Executor::new(Arc::new(NoUnpark));
    let result = Rc::new(RefCell::new(None));
    let (handle, place) = (executor.clone(), result.clone());
    executor.spawn("test", async move { *place.borrow_mut() = Some(test(handle).await) }).unwrap();
    for _ in 0..10_000_000u64 {
        let polled = executor.run_ready();
        if let Some(value) = result.borrow_mut().take() {
            return value;
        }
        assert!(polled > 0, "everything waits: {} tasks", executor.task_count());
    }
    panic!("no end after ten million rounds");
}

/// Opens the queue on `disk` and runs it.
pub async fn open<B: Block>(executor: &Executor, disk: B) -> Store<B> {
    started(executor, Store::open(disk, false).await.unwrap().0)
}

/// Opens the queue on `disk`, which takes all of it, and runs it.
pub async fn open_grown<B: Block>(executor: &Executor, disk: B) -> Store<B> {
    started(executor, Store::open_and_grow(disk).await.unwrap().0)
}

fn started<B: Block>(executor: &Executor, store: Store<B>) -> Store<B> {
    let running = store.clone();
    executor.spawn("store", async move { running.run().await }).unwrap();
    store
}

/// Uploads `data` in pieces of at most `piece` bytes.
pub async fn put<B: Block>(store: &Store<B>, data: &[u8], piece: usize) -> Result<u64, StoreError> {
    let mut upload = store.upload(data.len() as u64)?;
    let mut rest = data;
    while !rest.is_empty() {
        let read = async |space: &mut [u8]| {
            let count = space.len().min(piece).min(rest.len());
            space[..count].copy_from_slice(&rest[..count]);
            Ok::<usize, ()>(count)
        };
        let count = upload.receive(read).await?.unwrap();
        assert!(count > 0);
        rest = &rest[count..];
    }
    upload.finish().await
}

/// Lets `upload` receive `data`, in pieces.
pub async fn send<B: Block>(upload: &mut Upload<B>, data: &[u8]) -> Result<(), StoreError> {
    let mut rest = data;
    while !rest.is_empty() {
        let read = async |space: &mut [u8]| {
            let count = space.len().min(rest.len()).min(30_000);
            space[..count].copy_from_slice(&rest[..count]);
            Ok::<usize, ()>(count)
        };
        let count = upload.receive(read).await?.unwrap();
        rest = &rest[count..];
    }
    Ok(())
}

/// All data of `download`.
pub async fn drain<B: Block>(mut download: Download<B>) -> Result<Vec<u8>, StoreError> {
    let mut data = Vec::new();
    while let Some(chunk) = download.next().await? {
        data.extend_from_slice(&chunk);
    }
    Ok(data)
}

/// The oldest item's data.
pub async fn get<B: Block>(store: &Store<B>) -> Option<Result<Vec<u8>, StoreError>> {
    match store.fetch() {
        Some(download) => Some(drain(download).await),
        None => None,
    }
}

/// Removes the oldest item; false when there is none.
pub async fn remove_head<B: Block>(store: &Store<B>) -> Result<bool, StoreError> {
    match store.head() {
        Some(head) => store.remove(head.id).await,
        None => Ok(false),
    }
}
