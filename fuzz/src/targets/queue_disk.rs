//! Disks of the upload queue, as the service reads and continues them.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use fastrand::Rng;
use upload_queue::Store;
use upload_queue::format::{
    self, BLOCK_BYTES, EXTENTS_MAX, Entry, Extent, Geometry, IndexPlace, Superblock, SuperblockState, UploadEntry,
    UploadProgress,
};

use super::Target;
use super::service::{Disk, World, word};
use crate::mutate;

/// The queue's disk: with an even first byte the rest is its start, which gets right checksums if the byte has [`SEALED`]; with an odd one,
/// the rest are the numbers of a superblock and two index slots of before version 3, which get right checksums.
pub struct QueueDisk;

const DISK_BYTES: usize = 64 * BLOCK_BYTES;
/// Fields of a slot: its sequence, the next id, the number of entries.
const SLOT_BYTES: usize = 17;
const ENTRY_BYTES: usize = 24 + 8 * EXTENTS_MAX;

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
    let place = IndexPlace::Slots { version, geometry };
    format::encode_superblock(&Superblock { place, state }, &mut disk[..BLOCK_BYTES]);
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

/// Gives all blocks of a queue of version 3 right checksums, and its checkpoints the right sums of its pages.
fn seal(disk: &mut [u8]) {
    let checksum = |block: &mut [u8], place: Range<usize>| {
        block[place.clone()].fill(0);
        let mut hasher = format::hasher();
        hasher.update(block);
        let checksum = hasher.digest();
        block[place].copy_from_slice(&checksum.to_le_bytes());
        checksum
    };
    checksum(&mut disk[..512], 32..40);
    let mut sums = Vec::new();
    for block in disk.chunks_exact_mut(BLOCK_BYTES).skip(1) {
        let is_page = block.starts_with(b"GLSQPAGE");
        let is_sealed = is_page || block.starts_with(b"GLSQULOG");
        sums.push(if is_sealed { checksum(block, 56..64) } else { 0 });
    }
    let Ok(Some(Superblock { place: IndexPlace::Pages(layout), .. })) = format::decode_superblock(disk) else { return };
    for block in disk.chunks_exact_mut(BLOCK_BYTES).skip(1).filter(|block| block.starts_with(b"GLSCHECK")) {
        let pages = u32::from_le_bytes(block[40..44].try_into().expect("four bytes")).min(layout.pages_max);
        let is_second = |page: u32| block.get(64 + page as usize / 8).is_some_and(|bits| bits >> (page % 8) & 1 == 1);
        let places = (0..pages).map(|page| layout.page_place(page, is_second(page)) as usize - 1);
        let sum = places.filter_map(|place| sums.get(place)).copied().fold(0, u64::wrapping_add);
        block[48..56].copy_from_slice(&sum.to_le_bytes());
        checksum(block, 56..64);
    }
}

/// The disk of a queue of version 3 with items, uploads and a checkpoint.
fn pages_disk() -> Vec<u8> {
    let disk = Disk(Rc::new(RefCell::new(vec![0; DISK_BYTES])));
    let (world, used) = (World::new(), disk.clone());
    let executor = world.executor.clone();
    world.run(async move {
        let (store, _) = Store::open(used, false).await.expect("an empty disk");
        let running = store.clone();
        executor.spawn("store", async move { running.run().await }).expect("there are few tasks");
        for length in [5000u64, 0, 1, 9000, 100, 7, 8, 9, 10] {
            let mut upload = store.upload(length).expect("there is space");
            while upload.missing_bytes() > 0 {
                let put = upload.receive(async |space: &mut [u8]| Ok::<usize, ()>(space.len()));
                assert!(matches!(put.await, Ok(Ok(1..))));
            }
            upload.finish().await.expect("the disk does not fail");
        }
        store.remove(2).await.expect("the disk does not fail");
        for name in 1..3 {
            let mut upload = store.begin([name; 16], Some(100), 100, 1).await.expect("there is space");
            let put = upload.receive(async |space: &mut [u8]| Ok::<usize, ()>(space.len().min(50 * usize::from(name))));
            assert!(matches!(put.await, Ok(Ok(1..))));
            let saved = if name == 1 { upload.save().await } else { upload.finish().await };
            saved.expect("the disk does not fail");
        }
    });
    disk.0.take()
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
/// In the first byte of a case: its blocks get right checksums.
const SEALED: u8 = 4;
/// Blocks of the corpus of version 3: the superblock and the index.
const START_BLOCKS: usize = 13;
/// Of the log in such a disk, the checkpoints before it, and the pages behind it.
const LOG_AT: usize = 3 * BLOCK_BYTES;
const PAGES_AT: usize = 11 * BLOCK_BYTES;

/// The disk of a case: its first bytes, or numbers for its fields.
pub(super) fn disk_of(input: &[u8]) -> Option<Vec<u8>> {
    let (kind, rest) = input.split_first()?;
    let mut disk = vec![0; DISK_BYTES];
    match kind % 2 {
        0 => {
            disk[..rest.len().min(DISK_BYTES)].copy_from_slice(&rest[..rest.len().min(DISK_BYTES)]);
            if kind & SEALED != 0 {
                seal(&mut disk);
            }
        }
        _ => write_disk(&mut disk, rest),
    }
    Some(disk)
}

/// Places and lengths of the fields of a case that is a disk of version 3.
fn page_fields() -> Vec<(usize, usize)> {
    let mut fields = vec![(8, 4), (12, 4), (16, 8), (24, 4), (28, 4), (40, 4)];
    for checkpoint in [BLOCK_BYTES, 2 * BLOCK_BYTES] {
        fields.extend(
            [(0, 8), (8, 8), (16, 8), (24, 8), (32, 8), (40, 4), (64, 1)].map(|(at, len)| (checkpoint + at, len)),
        );
    }
    let entry = |at: usize| {
        [(0, 8), (8, 8), (16, 8), (24, 4), (28, 4), (32, 4), (36, 4), (48, 4)].map(|(field, len)| (at + field, len))
    };
    for block in (LOG_AT..PAGES_AT).step_by(BLOCK_BYTES) {
        fields.extend([(8, 8), (16, 8), (24, 8), (32, 4), (36, 4), (40, 4)].map(|(at, len)| (block + at, len)));
        for change in 0..3 {
            fields.push((block + 64 + change * 72, 4));
            fields.extend(entry(block + 64 + change * 72 + 8));
        }
    }
    for page in [PAGES_AT, PAGES_AT + BLOCK_BYTES] {
        fields.extend([(page + 8, 4), (page + 16, 8)]);
        (0..12).for_each(|place| fields.extend(entry(page + 64 + place * 64)));
    }
    // The first byte of a case is its kind.
    fields.into_iter().map(|(at, len)| (at + 1, len)).collect()
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
        let pages = pages_disk();
        let count = drain(pages.clone(), false);
        assert_eq!(count, Some(9), "a valid disk");
        let mut sealed = pages.clone();
        seal(&mut sealed);
        assert!(sealed == pages, "its checksums are right");
        let pages = [&[SEALED], &pages[..START_BLOCKS * BLOCK_BYTES]].concat();
        vec![raw, vec![0, 0], numbers, smaller, pages]
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
        if bytes.first().is_some_and(|kind| kind & SEALED != 0) && rng.u32(..4) > 0 {
            return mutate::fields(bytes, &page_fields(), rng);
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
