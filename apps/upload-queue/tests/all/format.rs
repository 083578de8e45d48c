//! Formatting a new queue, and detecting a damaged one.

use crate::common::{Cutter, Event, RecordingDisk, Rng, content, get, open, put, remove_head, run};
use upload_queue::format::{BLOCK_BYTES, Fault, decode_superblock};
use upload_queue::{OpenError, Store};

const DISK_BYTES: usize = 50 * BLOCK_BYTES;
/// The checkpoint of a new queue, the first block of the log.
const CHECKPOINT: usize = 2 * BLOCK_BYTES;
const LOG: usize = 3 * BLOCK_BYTES;

/// Opens `image` and removes every item.
fn contents(image: Vec<u8>) -> Result<Vec<Vec<u8>>, OpenError> {
    run(async move |executor| {
        let (store, _) = Store::open(RecordingDisk::plain(image), false).await?;
        let running = store.clone();
        executor.spawn("store", async move { running.run().await }).unwrap();
        let mut items = Vec::new();
        while let Some(data) = get(&store).await {
            items.push(data.unwrap_or_default());
            remove_head(&store).await.unwrap();
        }
        Ok(items)
    })
}

/// A disk with the items a, b, c after four commits: the first one made the queue, and the others are in the first three blocks of the log.
fn disk_with_items() -> RecordingDisk {
    let disk = RecordingDisk::new(vec![0; DISK_BYTES], 512, 1, 2);
    let used = disk.clone();
    run(async move |executor| {
        let store = open(&executor, used).await;
        for data in [b"a", b"b", b"c"] {
            put(&store, data, 1).await.unwrap();
        }
    });
    disk
}

#[test]
fn a_cut_while_formatting_is_healed_by_the_next_start() {
    let other_queue = disk_with_items().image();
    for (before, erase) in [(vec![0; DISK_BYTES], false), (vec![7; DISK_BYTES], true), (other_queue, true)] {
        for seed in 0..50 {
            let disk = RecordingDisk::new(before.clone(), 512, seed, 4);
            let used = disk.clone();
            run(async move |_| drop(Store::open(used, erase).await.unwrap()));
            let (mut cutter, mut rng) = (Cutter::new(before.clone()), Rng(seed));
            let mut began = false;
            for event in disk.events() {
                cutter.follow(&event);
                let image = cutter.cut(&mut rng);
                let untouched = image[..512] == before[..512];
                began |= !untouched;
                match contents(image) {
                    Ok(items) if items.is_empty() => {}
                    Ok(_) => assert!(untouched && erase, "seed {seed}: half an old queue"),
                    Err(OpenError::Foreign { .. }) => assert!(untouched && erase, "seed {seed}"),
                    Err(error) => panic!("seed {seed}: {error}"),
                }
            }
            assert!(began);
        }
    }
}

#[test]
fn a_flipped_bit_in_the_newest_commit_is_reported_and_shows_the_state_before() {
    let image = disk_with_items().image();
    for bit in 0..BLOCK_BYTES * 8 {
        let mut bad = image.clone();
        bad[LOG + 2 * BLOCK_BYTES + bit / 8] ^= 1 << (bit % 8);
        run(async move |_| {
            let disk = RecordingDisk::plain(bad);
            let (store, recovery) = Store::open(disk.clone(), false).await.unwrap();
            assert_eq!((recovery.sequence, recovery.items, recovery.is_log_broken), (3, 2, true), "bit {bit}");
            assert!(recovery.remarks()[0].contains("continuing with commit 3"), "bit {bit}");
            assert_eq!(get(&store).await.unwrap().unwrap(), b"a");
            // It is cleared, so that it is never joined with parts of a later one, and is not reported again.
            let (_, recovery) = Store::open(disk, false).await.unwrap();
            assert!(!recovery.is_log_broken, "bit {bit}");
        });
    }
}

#[test]
fn a_flipped_bit_before_the_newest_commit_is_refused_with_the_reason() {
    let image = disk_with_items().image();
    for bit in (0..2 * BLOCK_BYTES * 8).step_by(3) {
        let mut bad = image.clone();
        bad[LOG + bit / 8] ^= 1 << (bit % 8);
        let sequence = if bit < BLOCK_BYTES * 8 { 1 } else { 2 };
        assert_eq!(contents(bad), Err(OpenError::Index(Fault::Log { sequence })), "bit {bit}");
    }
}

/// Each page that a checkpoint names has to be the one that was written.
#[test]
fn damaged_and_older_pages_are_refused_with_the_reason() {
    let disk = RecordingDisk::new(vec![0; DISK_BYTES], 512, 1, 2);
    let used = disk.clone();
    // Checkpoints at the fifth commit and later ones, in turn in both places.
    run(async move |executor| {
        let store = open(&executor, used).await;
        for _ in 0..30 {
            put(&store, b"", 1).await.unwrap();
        }
    });
    let image = disk.image();
    let pages = LOG + 8 * BLOCK_BYTES;
    let mut refused = 0;
    for area in 0..2 {
        for bit in (0..BLOCK_BYTES * 8).step_by(17) {
            let mut bad = image.clone();
            bad[pages + area * BLOCK_BYTES + bit / 8] ^= 1 << (bit % 8);
            match contents(bad) {
                // The other area has the page that counts.
                Ok(items) => assert_eq!(items.len(), 30),
                Err(OpenError::Index(Fault::Page { page: 0, .. })) => refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert_eq!(refused, BLOCK_BYTES * 8 / 17 + 1, "one of two areas counts");
    // A disk that has lost the write of a page has an older one there, with a right checksum.
    let first = disk.events().into_iter().find_map(|event| match event {
        Event::Write { offset, data, .. } if offset >= pages && offset < pages + 2 * BLOCK_BYTES => {
            Some((offset, data))
        }
        _ => None,
    });
    let (offset, data) = first.expect("a page was written");
    let mut older = image.clone();
    older[offset..][..BLOCK_BYTES].copy_from_slice(&data);
    let other = if offset == pages { pages + BLOCK_BYTES } else { pages };
    let mut both = older.clone();
    both[other..][..BLOCK_BYTES].copy_from_slice(&data);
    assert_eq!(contents(both), Err(OpenError::Index(Fault::Pages)));
}

#[test]
fn damage_in_both_checkpoints_or_the_superblock_is_refused_with_the_reason() {
    let image = disk_with_items().image();
    let refused = |image: Vec<u8>, want: &str| {
        let error = contents(image).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    };
    for byte in 0..64 {
        let mut bad = image.clone();
        bad[CHECKPOINT + byte] ^= 0x80;
        refused(bad, "the queue's index is lost; slot 0: never written; slot 1: it");
    }
    for byte in 0..512 {
        let mut bad = image.clone();
        bad[byte] ^= 1;
        refused(bad, if byte < 8 { "something that is not a queue" } else { "the superblock of the queue is damaged" });
    }
    let mut bad = image.clone();
    bad[8] = 4;
    assert_eq!(decode_superblock(&bad), Err(Fault::Version(4)));
}

#[test]
fn random_damage_never_panics_and_never_shows_foreign_items() {
    let image = disk_with_items().image();
    let original: [Vec<u8>; 3] = [b"a".to_vec(), b"b".to_vec(), b"c".to_vec()];
    for seed in 0..3000 {
        let mut rng = Rng(seed);
        let mut bad = image.clone();
        for _ in 0..1 + rng.below(20) {
            let place = rng.below(14 * BLOCK_BYTES as u64) as usize;
            bad[place] = rng.next() as u8;
        }
        if let Ok(items) = contents(bad) {
            assert!(original.starts_with(&items), "seed {seed}: {items:?}");
        }
    }
    // Only noise.
    for seed in 0..200 {
        assert!(contents(content(seed, DISK_BYTES)).is_err());
    }
}
