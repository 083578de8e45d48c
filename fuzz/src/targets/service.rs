//! Input of a service: requests of clients, its disk, the host's requests for its trace.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use fastrand::Rng;
use glass_api::{
    Address, Block, BlockError, BlockInfo, Buf, Clock, Instant, JoinHandle, NetError, Panicked, Spawn, SpawnError,
    Stream, check_request,
};
use glass_lib_executor::{Executor, Uncontained, Unpark};
use glass_lib_http::{Connection, HttpError, Limits, Request, Status};
use glass_lib_trace::{CONTROL, Event, Group, Kind, Writer};
use upload_queue::Store;
use upload_queue::format::{
    self, BLOCK_BYTES, EXTENTS_MAX, Entry, Extent, Geometry, Superblock, SuperblockState, UploadEntry, UploadProgress,
};

use super::Target;
use crate::mutate;

struct Nothing;

impl Unpark for Nothing {
    fn unpark(&self) {}
}

/// Tasks, and a clock that jumps when no task is runnable.
#[derive(Clone)]
pub(super) struct World {
    pub(super) executor: Executor,
    now: Rc<Cell<Instant>>,
}

impl Clock for World {
    fn now(&self) -> Instant {
        self.now.get()
    }

    fn sleep_until(&self, deadline: Instant) -> impl Future<Output = ()> + 'static {
        self.executor.sleep_until(deadline)
    }
}

impl Spawn for World {
    fn spawn<T: 'static>(
        &self,
        name: &'static str,
        task: impl Future<Output = T> + 'static,
    ) -> Result<JoinHandle<T>, SpawnError> {
        self.executor.spawn(name, task)
    }

    fn contain<F: Future>(&self, task: F) -> impl Future<Output = Result<F::Output, Panicked>> + use<F> {
        Uncontained::new(task)
    }
}

impl World {
    pub(super) fn new() -> World {
        World { executor: Executor::new(Arc::new(Nothing)), now: Rc::default() }
    }

    /// Runs one task, and those that it spawns, to the end.
    pub(super) fn run(&self, task: impl Future<Output = ()> + 'static) {
        let done = Rc::new(Cell::new(false));
        let flag = done.clone();
        let whole = async move {
            task.await;
            flag.set(true);
        };
        self.executor.spawn("case", whole).expect("there are few tasks");
        for _ in 0..1_000_000 {
            if done.get() {
                return;
            }
            if self.executor.run_ready() > 0 {
                continue;
            }
            let deadline = self.executor.next_deadline();
            let deadline = deadline.expect("a task waits for an event that never happens");
            self.now.set(self.now.get().max(deadline));
            self.executor.fire_timers(self.now.get());
        }
        panic!("the simulation does not become idle");
    }
}

/// A client that has sent all that it will ever send.
struct Client {
    sent: Vec<u8>,
    /// Maximum of bytes of one read.
    piece: usize,
    answered: Rc<RefCell<Vec<u8>>>,
}

impl Stream for Client {
    async fn read(&mut self, buf: &mut [u8]) -> Result<usize, NetError> {
        let count = buf.len().min(self.sent.len()).min(self.piece);
        buf[..count].copy_from_slice(&self.sent[..count]);
        self.sent.drain(..count);
        Ok(count)
    }

    async fn write(&mut self, data: &[u8]) -> Result<usize, NetError> {
        self.answered.borrow_mut().extend_from_slice(data);
        Ok(data.len())
    }

    async fn close(&mut self) -> Result<(), NetError> {
        Ok(())
    }

    fn peer(&self) -> Address {
        SocketAddr::from(([127, 0, 0, 1], 1)).into()
    }
}

/// Requests: the first byte determines the size of their pieces.
pub struct Http;

async fn echo(connection: &mut Connection<Client, World>, request: Request) -> Result<(), HttpError> {
    let mut body = vec![0; connection.body_left().min(1 << 16) as usize];
    let count = connection.fill_from_body(&mut body).await?;
    let text = format!("{} {} {}", request.method_name(), request.path(), String::from_utf8_lossy(&body[..count]));
    connection.respond_text(Status::OK, &text).await
}

impl Target for Http {
    fn name(&self) -> &'static str {
        "http"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        [
            "\u{10}GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "\u{7f}PUT /uploader HTTP/1.1\r\nHost: a:80\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhelloDELETE /downloader HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
            "\u{1}POST /x?y=%20z HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nabc\r\nGET /b HTTP/1.1\r\nHost: b\r\n\r\n",
            "\u{40}PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            "\u{40}HEAD http://host/path HTTP/1.1\r\nHost: host\r\nX-A: 1\r\nX-B:\t2 \r\n\r\nOPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
        ]
        .map(|text| text.as_bytes().to_vec())
        .into()
    }

    fn change(&self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
        mutate::text(bytes, corpus, rng);
    }

    fn bytes_max(&self) -> usize {
        128 << 10
    }

    fn run(&self, input: &[u8]) {
        let Some((piece, sent)) = input.split_first() else { return };
        let answered = Rc::new(RefCell::new(Vec::new()));
        let piece = 1 + usize::from(*piece) * usize::from(*piece);
        let client = Client { sent: sent.to_vec(), piece, answered: answered.clone() };
        let world = World::new();
        let connection = Connection::new(client, world.clone(), Limits::default());
        world.run(async move {
            // Any end is allowed.
            let _ = connection.serve(echo).await;
        });
        let answered = answered.borrow();
        assert!(answered.is_empty() || answered.starts_with(b"HTTP/1.1 "));
        assert!(answered.len() <= 1024 + 200 * sent.len());
    }
}

/// A disk in memory.
#[derive(Clone)]
pub(super) struct Disk(pub(super) Rc<RefCell<Vec<u8>>>);

impl Block for Disk {
    fn info(&self) -> BlockInfo {
        BlockInfo { sector_bytes: 512, size_bytes: self.0.borrow().len() as u64, read_only: false }
    }

    async fn read(&self, offset: u64, mut buf: Buf) -> (Result<(), BlockError>, Buf) {
        if let Err(error) = check_request(self.info(), offset, buf.len()) {
            return (Err(error), buf);
        }
        let Some(bytes) = buf.as_mut() else { return (Err(BlockError::Shared), buf) };
        bytes.copy_from_slice(&self.0.borrow()[offset as usize..][..bytes.len()]);
        (Ok(()), buf)
    }

    async fn write(&self, offset: u64, buf: Buf) -> (Result<(), BlockError>, Buf) {
        if let Err(error) = check_request(self.info(), offset, buf.len()) {
            return (Err(error), buf);
        }
        self.0.borrow_mut()[offset as usize..][..buf.len()].copy_from_slice(&buf);
        (Ok(()), buf)
    }

    async fn flush(&self) -> Result<(), BlockError> {
        Ok(())
    }
}

/// The queue's disk: with an even first byte the rest is its start; with an odd one, the rest are the numbers of a
/// superblock and two index slots, which get right checksums.
pub struct QueueDisk;

const DISK_BYTES: usize = 64 * BLOCK_BYTES;
/// Fields of a slot: its sequence, the next id, the number of entries.
const SLOT_BYTES: usize = 17;
const ENTRY_BYTES: usize = 24 + 8 * EXTENTS_MAX;

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |word| u64::from_le_bytes(*word))
}

fn entry(bytes: &[u8]) -> Entry {
    let mut extents = [Extent::default(); EXTENTS_MAX];
    for (index, extent) in extents.iter_mut().enumerate() {
        let both = word(bytes, 24 + 8 * index);
        *extent = Extent { start: both as u32, blocks: (both >> 32) as u32 };
    }
    Entry { id: word(bytes, 0), length: word(bytes, 8), checksum: word(bytes, 16), extents }
}

/// An upload that can be resumed, or one that is complete.
fn upload(bytes: &[u8]) -> UploadEntry {
    let Entry { id, length, checksum, extents } = entry(bytes);
    let progress = match id % 2 {
        0 => UploadProgress::Open { offset: length & (u64::MAX >> 2), checksum, extents },
        _ => UploadProgress::Complete { id },
    };
    let name = u128::from(checksum).to_le_bytes();
    UploadEntry { name, length: Some(id).filter(|id| id % 4 < 2), deadline_secs: id, progress }
}

/// Puts the superblock and the slots that `numbers` describe on a disk.
fn write_disk(disk: &mut [u8], numbers: &[u8]) {
    let both = word(numbers, 0);
    let geometry = Geometry { total_blocks: both as u32, slot_blocks: (both >> 32) as u32 };
    let state = if word(numbers, 8) as u8 == 1 { SuperblockState::Formatting } else { SuperblockState::Ready };
    let version = 1 + (word(numbers, 8) as u32 >> 1) % 2;
    format::encode_superblock(&Superblock { version, geometry, state }, &mut disk[..BLOCK_BYTES]);
    let mut rest = numbers.get(9..).unwrap_or_default();
    for slot in 0..2 {
        let counts = usize::from(rest.get(16).copied().unwrap_or(0));
        let (count, upload_count) = (counts.min(32), counts >> 6);
        let list = rest.get(SLOT_BYTES..).unwrap_or_default();
        let entries = (0..count).map(|index| entry(list.get(index * ENTRY_BYTES..).unwrap_or_default()));
        let start = (1 + slot * geometry.slot_blocks as usize).min(60) * BLOCK_BYTES;
        let more = |index: usize| list.get((count + index) * ENTRY_BYTES..).unwrap_or_default();
        let uploads: Vec<UploadEntry> = (0..upload_count).map(|index| upload(more(index))).collect();
        format::encode_slot(word(rest, 0), word(rest, 8), entries, &uploads, &mut disk[start..]);
        rest = more(upload_count);
    }
}

/// Opens the queue, which takes all of its disk with `grow`, and removes every item. Returns the number of items.
fn drain(disk: Vec<u8>, grow: bool) -> Option<usize> {
    let disk = Disk(Rc::new(RefCell::new(disk)));
    let world = World::new();
    let taken = Rc::new(Cell::new(None));
    let (result, executor) = (taken.clone(), world.executor.clone());
    world.run(async move {
        let opened = if grow { Store::open_and_grow(disk).await } else { Store::open(disk, false).await };
        let Ok((store, recovery)) = opened else { return };
        let running = store.clone();
        executor.spawn("store", async move { running.run().await }).expect("there are few tasks");
        for known in store.resumables() {
            // What its disk has may be damaged.
            drop(store.resume(&known, 1 << 20, 0).await);
            store.forget(&known).await.expect("the disk works");
        }
        for _ in 0..recovery.items {
            let Some(mut download) = store.fetch() else { panic!("an item has gone") };
            let (mut bytes, length) = (0, download.entry().length);
            while let Ok(Some(chunk)) = download.next().await {
                bytes += chunk.len() as u64;
            }
            assert!(bytes <= length);
            let id = download.entry().id;
            drop(download);
            if store.remove(id).await.is_err() {
                break;
            }
        }
        // An uploaded item can be downloaded.
        let mut upload = store.upload(5).expect("the queue is empty");
        let put = upload.receive(async |space: &mut [u8]| {
            space[..5].copy_from_slice(b"hello");
            Ok::<usize, ()>(5)
        });
        assert_eq!(put.await, Ok(Ok(5)));
        upload.finish().await.expect("the disk does not fail");
        let mut download = store.fetch().expect("the uploaded item");
        assert_eq!(download.next().await.map(|chunk| chunk.map(|chunk| chunk.to_vec())), Ok(Some(b"hello".to_vec())));
        result.set(Some(recovery.items));
    });
    taken.get()
}

/// In the first byte of a case: its queue grows.
const GROW: u8 = 2;

/// The disk of a case: its first bytes, or numbers for its fields.
pub(super) fn disk_of(input: &[u8]) -> Option<Vec<u8>> {
    let (kind, rest) = input.split_first()?;
    let mut disk = vec![0; DISK_BYTES];
    match kind % 2 {
        0 => disk[..rest.len().min(DISK_BYTES)].copy_from_slice(&rest[..rest.len().min(DISK_BYTES)]),
        _ => write_disk(&mut disk, rest),
    }
    Some(disk)
}

impl Target for QueueDisk {
    fn name(&self) -> &'static str {
        "queue"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        let mut numbers = vec![1];
        numbers.extend(64u32.to_le_bytes());
        numbers.extend(1u32.to_le_bytes());
        numbers.push(2);
        for sequence in [8u64, 7] {
            numbers.extend(sequence.to_le_bytes());
            numbers.extend(9u64.to_le_bytes());
            numbers.push(3);
            for item in 0..3u64 {
                [item + 2, 4096 * 2, 0].iter().for_each(|word| numbers.extend(word.to_le_bytes()));
                let mut extents = [0u64; EXTENTS_MAX];
                extents[0] = (3 + item * 8) | 2 << 32;
                extents.iter().for_each(|extent| numbers.extend(extent.to_le_bytes()));
            }
        }
        let mut disk = vec![0; DISK_BYTES];
        write_disk(&mut disk, &numbers[1..]);
        let raw = [&[0], &disk[..3 * BLOCK_BYTES]].concat();
        assert_eq!(drain(disk, false), Some(3), "a valid disk");
        let mut smaller = numbers.clone();
        (smaller[0], smaller[1]) = (1 | GROW, 40);
        vec![raw, vec![0, 0], numbers, smaller]
    }

    fn change(&self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
        if bytes.first().is_some_and(|kind| kind % 2 == 1) && rng.u32(..4) > 0 {
            let second = 10 + SLOT_BYTES + 3 * ENTRY_BYTES;
            let mut places = vec![(1, 4), (5, 4), (9, 1)];
            for slot in [10, second] {
                places.extend([(slot, 8), (slot + 8, 8), (slot + 16, 1)]);
                for item in 0..3 {
                    let at = slot + SLOT_BYTES + item * ENTRY_BYTES;
                    places.extend([
                        (at, 8),
                        (at + 8, 8),
                        (at + 16, 8),
                        (at + 24, 4),
                        (at + 28, 4),
                        (at + 32, 4),
                        (at + 36, 4),
                    ]);
                }
            }
            return mutate::fields(bytes, &places, rng);
        }
        mutate::plain(bytes, corpus, rng);
    }

    fn bytes_max(&self) -> usize {
        DISK_BYTES
    }

    fn run(&self, input: &[u8]) {
        if let Some(disk) = disk_of(input) {
            drain(disk, input[0] & GROW != 0);
        }
    }
}

/// Writes of the host into a guest's control pages: triples of an offset, a value, and an event that follows.
pub struct Host;

const RECORD_BYTES: usize = 12;

fn ring() -> &'static Writer {
    static RING: OnceLock<&'static Writer> = OnceLock::new();
    RING.get_or_init(|| {
        let words: &'static [AtomicU64] = Vec::leak((0..4 * 256).map(|_| AtomicU64::new(0)).collect());
        glass_lib_trace::start(true, words, 0, 1_000_000_000);
        Box::leak(Box::new(Writer::claim("case", words).expect("the first ring")))
    })
}

impl Target for Host {
    fn name(&self) -> &'static str {
        "host"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        let record = |place: u32, value: u64| [&place.to_le_bytes()[..], &value.to_le_bytes()].concat();
        let on: Vec<u8> =
            [record(0, 0x3f), record(1, 1), record(9, 5), record(0, 0x7f), record(1, 2), record(4, u64::MAX)].concat();
        vec![on.clone(), [on, record(0, 0), record(1, 3)].concat()]
    }

    fn change(&self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
        match rng.u32(..3) {
            0 => mutate::plain(bytes, corpus, rng),
            _ => mutate::words(bytes, 0, RECORD_BYTES, rng),
        }
    }

    fn bytes_max(&self) -> usize {
        RECORD_BYTES * 1000
    }

    fn run(&self, input: &[u8]) {
        glass_lib_trace::set_current(Some(ring()));
        for record in input.as_chunks::<RECORD_BYTES>().0 {
            let (place, value) = (word(record, 0) as u32, word(record, 4));
            match place % 8 {
                0 => CONTROL.groups_wanted.store(value as u32, Ordering::Relaxed),
                1 => CONTROL.request.store(value as u32, Ordering::Release),
                2 => CONTROL.recorder.store(value as u32, Ordering::Relaxed),
                3 => CONTROL.groups_before.store(value as u32, Ordering::Relaxed),
                4 => CONTROL.functions_wanted[place as usize / 8 % 1024].store(value, Ordering::Relaxed),
                5 => CONTROL.groups.store(value as u32, Ordering::Relaxed),
                6 => CONTROL.answered.store(value as u32, Ordering::Relaxed),
                _ => {}
            }
            let wanted = CONTROL.groups_wanted.load(Ordering::Relaxed);
            if let Some(change) = glass_lib_trace::follow_host(|_| {}) {
                assert_eq!(change.groups, wanted);
                assert!(!glass_lib_trace::has_request());
            }
            let number = (value >> 8) as u16;
            let event = Event { kind: number, a: place, b: value, ..Event::default() };
            glass_lib_trace::emit(if place & 1 == 0 { Group::Tasks } else { Group::Spans }, event);
            glass_lib_trace::emit(Group::Cores, Event { kind: Kind::IdleBegin as u16, b: value, ..Event::default() });
        }
    }
}
