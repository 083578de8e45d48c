//! A store on a disk that others wrote: the input is a list of changes of a valid one, with right checksums or without.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::OnceLock;

use fastrand::Rng;
use glass_lib_store::{Batch, Options, Store, StoreError};
use xxhash_rust::xxh3::xxh3_64;

use super::Target;
use super::service::{Disk, World};
use crate::mutate;

const PAGE_BYTES: usize = 4096;
const DISK_BYTES: usize = 100 * PAGE_BYTES;
const SLOT_BYTES: usize = 512;
/// A change: four bytes of the offset, and the new byte.
const CHANGE_BYTES: usize = 5;
const ENTRIES: u32 = 150;

/// A store's disk. If the first byte of the input is odd, the checksums are those of the changed bytes.
pub struct StoreDisk;

/// A valid disk: a map of two levels with some values that have pages of their own, and a log.
fn valid() -> &'static [u8] {
    static DISK: OnceLock<Vec<u8>> = OnceLock::new();
    DISK.get_or_init(|| {
        let bytes = Rc::new(RefCell::new(vec![0; DISK_BYTES]));
        let (world, disk) = (World::new(), Disk(bytes.clone()));
        world.clone().run(async move {
            let (store, _) = Store::open(disk, &world, Options::default()).await.expect("an empty disk");
            let (map, log) = (store.map("map").expect("a name"), store.log("log").expect("a name"));
            for number in 0..ENTRIES {
                let length = if number % 50 == 7 { 5000 } else { 100 };
                let mut batch = Batch::new();
                batch.put(&map, number.to_be_bytes(), vec![number as u8; length]);
                batch.append(&log, b"record");
                store.commit(batch).await.expect("the disk has space");
            }
        });
        bytes.take()
    })
}

fn number_at(bytes: &[u8], at: usize, count: usize) -> u64 {
    let digits = bytes.get(at..at + count).unwrap_or_default();
    digits.iter().rev().fold(0, |number, digit| number << 8 | u64::from(*digit))
}

/// Gives the slots, and all pages that they lead to, the checksums of their bytes (`docs/formats/store.md`).
fn repair(disk: &mut [u8]) {
    for slot in [0, PAGE_BYTES] {
        for tree in (64..SLOT_BYTES).step_by(64) {
            let level = disk[slot + tree + 25];
            repair_pointer(disk, slot + tree + 32, level.min(8));
        }
        disk[slot + 56..slot + 64].fill(0);
        let checksum = xxh3_64(&disk[slot..slot + SLOT_BYTES]);
        disk[slot + 56..slot + 64].copy_from_slice(&checksum.to_le_bytes());
    }
}

/// The same for the page that the pointer at byte `at` names. The depth is the level.
fn repair_pointer(disk: &mut [u8], at: usize, level: u8) {
    let page = number_at(disk, at, 4) as usize * PAGE_BYTES;
    if page < 2 * PAGE_BYTES || page + PAGE_BYTES > DISK_BYTES {
        return;
    }
    if level > 0 {
        // A few: a page may lead to itself.
        for index in 0..(number_at(disk, page + 2, 2) as usize).min(8) {
            let entry = page + number_at(disk, page + 16 + index * 2, 2) as usize;
            let pointer = entry + 4 + number_at(disk, entry, 2) as usize;
            if pointer + 16 <= page + PAGE_BYTES {
                repair_pointer(disk, pointer, level - 1);
            }
        }
    }
    let checksum = xxh3_64(&disk[page..page + PAGE_BYTES]);
    if at + 16 <= DISK_BYTES {
        disk[at + 8..at + 16].copy_from_slice(&checksum.to_le_bytes());
    }
}

/// Opens the store, reads and changes everything. Every error is allowed.
fn use_all(bytes: Vec<u8>) {
    let (world, disk) = (World::new(), Disk(Rc::new(RefCell::new(bytes))));
    world.clone().run(async move {
        let Ok((store, recovery)) = Store::open(disk, &world, Options { cache_bytes: 0 }).await else { return };
        assert_eq!(recovery.to_string().lines().count(), 1);
        let (Ok(map), Ok(log)) = (store.map("map"), store.log("log")) else { return };
        let (mut scan, mut keys) = (map.scan(), Vec::new());
        loop {
            match scan.next().await {
                Ok(Some((key, _))) => keys.push(key),
                Err(StoreError::Damaged { .. }) => {}
                Ok(None) | Err(_) => break,
            }
        }
        drop(scan);
        let _ = map.put(b"one more", vec![1; 6000]).await;
        for key in keys {
            let _ = map.get(&key).await;
            let _ = map.remove(&key).await;
        }
        let _ = log.append(b"one more").await;
        let _ = log.trim(u64::MAX).await;
        assert!(store.usage().free_bytes <= DISK_BYTES as u64);
    });
}

impl Target for StoreDisk {
    fn name(&self) -> &'static str {
        "store"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        vec![vec![0], vec![1]]
    }

    fn change(&self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
        if rng.u32(..8) == 0 {
            return mutate::plain(bytes, corpus, rng);
        }
        // Bytes that have a meaning: those of slots and of the starts of pages first.
        let page = if rng.bool() { rng.u32(..2) } else { rng.u32(..100) } * PAGE_BYTES as u32;
        let offset = page + if rng.bool() { rng.u32(..300) } else { rng.u32(..PAGE_BYTES as u32) };
        bytes.extend(offset.to_le_bytes());
        bytes.push(if rng.bool() { rng.u8(..) } else { valid()[offset as usize] ^ 1 << rng.u32(..8) });
    }

    fn cost(&self) -> u64 {
        20
    }

    fn bytes_max(&self) -> usize {
        1 + 64 * CHANGE_BYTES
    }

    fn run(&self, input: &[u8]) {
        let Some((kind, changes)) = input.split_first() else { return };
        let mut disk = valid().to_vec();
        for change in changes.chunks_exact(CHANGE_BYTES) {
            disk[number_at(change, 0, 4) as usize % DISK_BYTES] = change[4];
        }
        if kind % 2 == 1 {
            repair(&mut disk);
        }
        use_all(disk);
    }
}
