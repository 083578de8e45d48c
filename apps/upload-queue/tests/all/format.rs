//! Formatting a new queue, and detecting a damaged one.

use crate::common::{Cutter, RecordingDisk, Rng, content, get, open, put, remove_head, run};
use upload_queue::format::{BLOCK_BYTES, Fault};
use upload_queue::{OpenError, Store};

const DISK_BYTES: usize = 40 * BLOCK_BYTES;

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

/// A disk with the items a, b, c after four commits, the third of which is in slot 0.
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
fn a_flipped_bit_in_the_newest_index_is_reported_and_shows_an_older_state() {
    let image = disk_with_items().image();
    // Sequence 4 is in slot 0 (block 1), sequence 3 in slot 1 (block 2).
    for bit in 0..BLOCK_BYTES * 8 {
        let mut bad = image.clone();
        bad[BLOCK_BYTES + bit / 8] ^= 1 << (bit % 8);
        run(async move |_| {
            let (store, recovery) = Store::open(RecordingDisk::plain(bad), false).await.unwrap();
            assert_eq!((recovery.sequence, recovery.items), (3, 2), "bit {bit}");
            assert_eq!(recovery.broken_slot.unwrap().0, 0, "bit {bit}");
            assert!(recovery.remarks()[0].starts_with("index slot 0 cannot be used: "), "bit {bit}");
            assert_eq!(get(&store).await.unwrap().unwrap(), b"a");
        });
    }
}

#[test]
fn damage_in_both_slots_or_the_superblock_is_refused_with_the_reason() {
    let image = disk_with_items().image();
    let refused = |image: Vec<u8>, want: &str| {
        let error = contents(image).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    };
    for byte in 0..64 {
        let mut bad = image.clone();
        bad[BLOCK_BYTES + byte] ^= 0x80;
        bad[2 * BLOCK_BYTES + byte] ^= 0x80;
        refused(bad, "the queue's index is lost; slot 0: it");
    }
    for byte in 0..512 {
        let mut bad = image.clone();
        bad[byte] ^= 1;
        refused(bad, if byte < 8 { "something that is not a queue" } else { "the superblock of the queue is damaged" });
    }
}

#[test]
fn an_erased_slot_is_reported_unless_the_queue_is_new() {
    let opened = |image: Vec<u8>| {
        run(async move |_| {
            let (store, recovery) = Store::open(RecordingDisk::plain(image), false).await?;
            Ok((store.usage().items, recovery.sequence, recovery.broken_slot))
        })
    };
    let erased = |slots: &[usize]| {
        let mut image = disk_with_items().image();
        slots.iter().for_each(|slot| image[(1 + slot) * BLOCK_BYTES..][..BLOCK_BYTES].fill(0));
        opened(image)
    };
    assert_eq!(erased(&[]), Ok((3, 4, None)));
    assert_eq!(erased(&[0]), Ok((2, 3, Some((0, Fault::Magic)))));
    assert_eq!(erased(&[1]), Ok((3, 4, Some((1, Fault::Magic)))));
    assert_eq!(erased(&[0, 1]), Err(OpenError::NoIndex([None, None])));
    // The newest index may be in either slot.
    let disk = disk_with_items();
    let used = disk.clone();
    run(async move |executor| put(&open(&executor, used).await, b"d", 1).await.unwrap());
    assert_eq!(opened(disk.image()), Ok((4, 5, None)));
    // Its first commit will write the other slot.
    let new = RecordingDisk::plain(vec![0; DISK_BYTES]);
    let used = new.clone();
    run(async move |_| drop(Store::open(used, false).await.unwrap()));
    assert_eq!(opened(new.image()), Ok((0, 1, None)));
}

#[test]
fn random_damage_never_panics_and_never_shows_foreign_items() {
    let image = disk_with_items().image();
    let original: [Vec<u8>; 3] = [b"a".to_vec(), b"b".to_vec(), b"c".to_vec()];
    for seed in 0..3000 {
        let mut rng = Rng(seed);
        let mut bad = image.clone();
        for _ in 0..1 + rng.below(20) {
            let place = rng.below(3 * BLOCK_BYTES as u64) as usize;
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
