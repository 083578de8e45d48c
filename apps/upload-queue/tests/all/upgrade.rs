//! Queues of versions 1 and 2 become version 3 at a start, and a power cut at any moment of that leaves them whole.

use crate::common::{Cutter, RecordingDisk, Rng, content, drain, get, open, put, remove_head, run, send};
use upload_queue::format::{
    self, BLOCK_BYTES, EXTENTS_MAX, Entry, Extent, Geometry, IndexPlace, Superblock, SuperblockState, UploadEntry,
    UploadProgress, VERSION_1, VERSION_2, VERSION_3, decode_superblock, encode_slot, encode_superblock,
};
use upload_queue::{OpenError, Recovery, Store};

/// The disk of a queue before there was version 2, with the items xx (removed), a and ccc: made by the program of commit f095870f. Each line is
/// the place of a part that is not zero, and its bytes.
const VERSION_1_DISK: &str = include_str!("../data/version-1.hex");

fn version_1() -> Vec<u8> {
    let mut image = vec![0; 40 * BLOCK_BYTES];
    for line in VERSION_1_DISK.lines() {
        let (place, bytes) = line.split_once(' ').unwrap();
        let place: usize = place.parse().unwrap();
        for (number, pair) in bytes.as_bytes().chunks(2).enumerate() {
            image[place + number] = u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
        }
    }
    image
}

fn version(image: &[u8]) -> u32 {
    decode_superblock(image).unwrap().unwrap().place.version()
}

/// A disk of version 1 or 2: what it has, for comparisons.
struct Old {
    image: Vec<u8>,
    /// Ids and lengths of items, whose content has the id as its tag.
    items: Vec<(u64, usize)>,
    /// Tag, saved bytes and whether it is complete.
    uploads: Vec<(u8, usize, bool)>,
}

/// Blocks are given out at random; the last `left` ones stay free.
fn old(seed: u64, geometry: Geometry, left: u32) -> Old {
    let mut rng = Rng(seed);
    let data_start = geometry.data_start();
    let mut free: Vec<u32> = (data_start..geometry.total_blocks - left).collect();
    let mut old =
        Old { image: vec![0; geometry.total_blocks as usize * BLOCK_BYTES], items: Vec::new(), uploads: Vec::new() };
    let (mut entries, mut uploads): (Vec<Entry>, Vec<UploadEntry>) = (Vec::new(), Vec::new());
    let mut id = 1 + rng.below(5);
    let mut place = |image: &mut Vec<u8>, data: &[u8], rng: &mut Rng| {
        let mut extents = [Extent::default(); EXTENTS_MAX];
        for (number, piece) in data.chunks(BLOCK_BYTES).enumerate() {
            let at = if rng.below(2) == 0 { 0 } else { rng.below(free.len() as u64) as usize };
            let block = free.remove(at);
            extents[number] = Extent { start: block, blocks: 1 };
            image[block as usize * BLOCK_BYTES..][..piece.len()].copy_from_slice(piece);
        }
        let mut hasher = format::hasher();
        hasher.update(data);
        (extents, hasher.digest(), free.len())
    };
    loop {
        let entries_used = entries.len() + uploads.iter().map(UploadEntry::entries).sum::<usize>();
        let length = rng.below((EXTENTS_MAX * BLOCK_BYTES) as u64) as usize;
        if entries_used + 2 > geometry.items_max() {
            break;
        }
        let kind = rng.below(8);
        let data = content(if kind == 0 { 1000 + old.uploads.len() as u64 } else { id }, length);
        let (extents, checksum, free_left) = place(&mut old.image, &data, &mut rng);
        let tag = old.uploads.len() as u8;
        match kind {
            0 => {
                let progress = UploadProgress::Open { offset: length as u64, checksum, extents };
                let length_of = tag.is_multiple_of(2).then_some(100_000);
                uploads.push(UploadEntry { name: [tag; 16], length: length_of, deadline_secs: 5, progress });
                old.uploads.push((tag, length, false));
            }
            1 => {
                entries.push(Entry { id, length: length as u64, checksum, extents });
                old.items.push((id, length));
                let progress = UploadProgress::Complete { id };
                uploads.push(UploadEntry { name: [tag; 16], length: Some(length as u64), deadline_secs: 5, progress });
                old.uploads.push((tag, length, true));
                id += 1 + rng.below(3);
            }
            _ => {
                entries.push(Entry { id, length: length as u64, checksum, extents });
                old.items.push((id, length));
                id += 1 + rng.below(3);
            }
        }
        if free_left < EXTENTS_MAX {
            break;
        }
    }
    let sequence = 7 + rng.below(2);
    for (sequence, count) in [(sequence - 1, entries.len().min(1)), (sequence, entries.len())] {
        let mut slot = vec![0; geometry.slot_bytes()];
        let of_slot: &[UploadEntry] = if count == entries.len() { &uploads } else { &[] };
        let used = encode_slot(sequence, id, entries[..count].iter().copied(), of_slot, &mut slot);
        let at = geometry.slot_start(sequence) as usize * BLOCK_BYTES;
        old.image[at..at + used].copy_from_slice(&slot[..used]);
    }
    let version = if uploads.is_empty() { VERSION_1 } else { VERSION_2 };
    let superblock = Superblock { place: IndexPlace::Slots { version, geometry }, state: SuperblockState::Ready };
    encode_superblock(&superblock, &mut old.image[..BLOCK_BYTES]);
    old
}

impl Old {
    /// Opens a disk that was this one, and fails unless all is there and the queue works.
    fn check(&self, image: Vec<u8>, grow: bool, context: &str) -> Recovery {
        let (items, uploads, context) = (self.items.clone(), self.uploads.clone(), context.to_owned());
        run(async move |executor| {
            let disk = RecordingDisk::plain(image);
            let opened =
                if grow { Store::open_and_grow(disk.clone()).await } else { Store::open(disk.clone(), false).await };
            let (store, recovery) = opened.unwrap_or_else(|error| panic!("{context}: {error}"));
            let running = store.clone();
            executor.spawn("store", async move { running.run().await }).unwrap();
            assert_eq!(version(&disk.image()), VERSION_3, "{context}");
            let entries = store.items_after(None, usize::MAX);
            let found: Vec<_> = entries.iter().map(|entry| (entry.id, entry.length as usize)).collect();
            assert_eq!(found, items, "{context}");
            for (id, length) in items {
                let data = drain(store.fetch_item(id).unwrap()).await;
                assert!(data.unwrap_or_else(|error| panic!("{context}: {error}")) == content(id, length), "{context}");
                assert_eq!(store.remove(id).await, Ok(true), "{context}");
            }
            assert_eq!(store.resumables().len(), uploads.len(), "{context}");
            for (tag, saved, is_complete) in uploads {
                let known = store.find(&[tag; 16]).unwrap();
                assert_eq!((known.offset() as usize, known.item().is_some()), (saved, is_complete), "{context}");
                if !is_complete && store.usage().free_bytes > 12 * BLOCK_BYTES as u64 {
                    let upload = store.resume(&known, 1 << 20, 5).await;
                    let mut upload = upload.unwrap_or_else(|error| panic!("{context}: {error}"));
                    let data = content(1000 + u64::from(tag), saved);
                    let rest = if known.length().is_some() { 100_000 - saved } else { 3 };
                    if rest < 50_000 {
                        send(&mut upload, &vec![7; rest]).await.unwrap();
                        if upload.is_open() {
                            upload.end();
                        }
                        upload.finish().await.unwrap();
                        let whole = [data, vec![7; rest]].concat();
                        assert!(get(&store).await.unwrap().unwrap() == whole, "{context}: upload {tag}");
                        assert_eq!(remove_head(&store).await, Ok(true));
                    }
                }
                store.forget(&known).await.unwrap();
            }
            let usage = store.usage();
            let (free, all) = ((usage.free_bytes, usage.free_items), (usage.data_bytes, usage.items_max));
            assert_eq!(free, all, "{context}: space leaks");
            put(&store, b"more", 4).await.unwrap();
            recovery
        })
    }
}

#[test]
fn a_disk_of_version_1_becomes_version_3() {
    run(async |executor| {
        let disk = RecordingDisk::new(version_1(), 512, 1, 3);
        let (store, recovery) = Store::open(disk.clone(), false).await.unwrap();
        assert_eq!((recovery.items, recovery.sequence, recovery.upgraded_from), (2, 5, Some(1)));
        assert_eq!(recovery.remarks(), ["the queue had version 1 of its format and has version 3 now"]);
        assert_eq!((store.usage().items, version(&disk.image())), (2, VERSION_3));
        let store = open(&executor, disk.clone()).await;
        put(&store, b"dddd", 4).await.unwrap();
        for data in [&b"a"[..], b"ccc", b"dddd"] {
            assert_eq!(get(&store).await.unwrap().unwrap(), data);
            remove_head(&store).await.unwrap();
        }
        // What the slots had is free as well: all but the superblock and the index.
        assert_eq!(store.usage().free_bytes, (40 - 1 - 12) * BLOCK_BYTES as u64);
    });
}

#[test]
fn a_power_cut_at_every_moment_of_an_upgrade_loses_nothing() {
    let (mut before, mut after) = (0, 0);
    for seed in 0..60 {
        let geometry = Geometry { total_blocks: 100, slot_blocks: 1 };
        let old = old(seed, geometry, 30);
        let grow = seed % 3 == 0;
        let mut image = old.image.clone();
        if grow {
            image.resize(120 * BLOCK_BYTES, 0x77);
        }
        let disk = RecordingDisk::new(image.clone(), if seed % 2 == 0 { 512 } else { 4096 }, seed, 1 + seed % 8);
        let opened = disk.clone();
        run(async move |_| match grow {
            true => drop(Store::open_and_grow(opened).await.unwrap()),
            false => drop(Store::open(opened, false).await.unwrap()),
        });
        let (mut cutter, mut rng) = (Cutter::new(image), Rng(seed));
        for (moment, event) in disk.events().iter().enumerate() {
            cutter.follow(event);
            let cut = cutter.cut(&mut rng);
            match version(&cut) {
                VERSION_3 => after += 1,
                _ => before += 1,
            }
            old.check(cut, grow && moment % 2 == 0, &format!("seed {seed}, cut after event {moment}"));
        }
        old.check(disk.image(), false, &format!("seed {seed}, at the end"));
    }
    assert!(before > 300 && after > 50, "{before} before and {after} after the superblock");
}

/// Of a disk without free space only the slot that is not the current one can take the index.
#[test]
fn a_full_disk_is_upgraded_in_the_slot_that_has_no_use() {
    for seed in 0..4 {
        let old = old(seed, Geometry { total_blocks: 80, slot_blocks: 16 }, 0);
        let recovery = old.check(old.image.clone(), false, &format!("seed {seed}"));
        assert!(recovery.upgraded_from.is_some());
    }
}

#[test]
fn a_disk_without_space_for_the_index_is_refused_until_it_has_grown() {
    let old = old(3, Geometry { total_blocks: 60, slot_blocks: 1 }, 0);
    let before = old.image.clone();
    let image = before.clone();
    run(async move |_| {
        let disk = RecordingDisk::plain(image.clone());
        let error = Store::open(disk.clone(), false).await.err().unwrap();
        assert!(matches!(error, OpenError::NoSpace { bytes: 49_152 | 57_344 }), "{error}");
        assert!(error.to_string().ends_with("start it with --grow") && disk.image() == image);
    });
    let mut larger = before;
    larger.resize(80 * BLOCK_BYTES, 0);
    old.check(larger, true, "with more space");
}
