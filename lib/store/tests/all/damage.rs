//! Flipped bits: what is returned is what was written, and the rest is reported.

use crate::common::{Model, OPTIONS, batch, content, of, open, read_all, run, steps};
use glass_lib_store::{OpenError, Store, StoreError};
use glass_platform_sim::{Chance, DiskConfig, SimBlock, for_seeds};
use std::collections::BTreeMap;

fn disk(seed: u64, image: Vec<u8>) -> SimBlock {
    SimBlock::with_image(seed, DiskConfig::default(), image)
}

/// An image after some batches, and its contents after each of the last two.
fn image(seed: u64) -> (Vec<u8>, [Model; 2]) {
    let disk = SimBlock::new(seed, DiskConfig { size_bytes: 1 << 20, ..DiskConfig::default() });
    let used = disk.clone();
    let states = run(async move |tasks| {
        let opened = open(&tasks, used).await;
        let mut chance = Chance::new(seed);
        let mut states = [Model::default(), Model::default()];
        for _ in 0..25 {
            let steps = steps(&mut chance, 60);
            if opened.store.commit(batch(&opened, &steps)).await.is_ok() {
                states = [states[1].clone(), read_all(&opened).await.unwrap()];
            }
        }
        states
    });
    (disk.image(), states)
}

/// All entries.
type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

/// Opens the image and reads what it can: every entry that it returns, and whether something is lost.
fn salvage(image: Vec<u8>) -> Result<(Entries, bool), OpenError> {
    run(async move |tasks| {
        let (store, recovery) = Store::open(disk(1, image), &tasks, OPTIONS).await?;
        let opened = of(store);
        let (mut scan, mut found, mut is_lost) = (opened.map.scan(), BTreeMap::new(), false);
        loop {
            match scan.next().await {
                Ok(Some((key, value))) => drop(found.insert(key, value)),
                Ok(None) => break,
                Err(StoreError::Damaged { .. }) => is_lost = true,
                Err(error) => panic!("{error}"),
            }
        }
        let is_writable = opened.map.put(b"one more", b"value").await;
        if recovery.damaged.is_some() {
            assert_eq!(is_writable, Err(StoreError::ReadOnly));
        }
        Ok((found, is_lost || recovery.dropped.is_some() || recovery.damaged.is_some()))
    })
}

#[test]
fn a_flipped_bit_is_found_and_never_returned() {
    let (mut lost, mut whole) = (0, 0);
    for_seeds(0..40, |seed| {
        let (image, [before, last]) = image(seed);
        let mut chance = Chance::new(seed);
        let used: Vec<usize> = (0..image.len()).filter(|at| image[*at] != 0).collect();
        for _ in 0..40 {
            let at = used[chance.below(used.len() as u64) as usize];
            let mut flipped = image.clone();
            flipped[at] ^= 1 << chance.below(8);
            let (found, is_lost) = salvage(flipped).unwrap();
            // Of the last state or, if it was dropped, of the one before: never a mixture, never anything else.
            let is_part_of =
                |state: &BTreeMap<Vec<u8>, Vec<u8>>| found.iter().all(|(key, value)| state.get(key) == Some(value));
            assert!(is_part_of(&last.map) || is_lost && is_part_of(&before.map), "a flipped bit at {at} changes data");
            if !is_lost {
                assert!(found == last.map, "byte {at}: lost in silence");
            }
            lost += u32::from(is_lost);
            whole += u32::from(!is_lost);
        }
    });
    // Most bytes are those of old pages, and many are of use.
    assert!(lost > 100 && whole > 100, "{lost} lost, {whole} whole");
}

/// The image in which a page that is all of one byte somewhere is replaced.
#[test]
fn a_damaged_leaf_loses_its_entries_only() {
    let disk_of = SimBlock::new(1, DiskConfig { size_bytes: 1 << 20, ..DiskConfig::default() });
    let used = disk_of.clone();
    run(async move |tasks| {
        let opened = open(&tasks, used).await;
        for number in 0..1000u64 {
            opened.map.put(number.to_be_bytes(), content(number, 60)).await.unwrap();
        }
    });
    let mut image = disk_of.image();
    let target = content(500, 60);
    let at: Vec<usize> = (0..image.len() - 60).filter(|at| image[*at..*at + 60] == target[..]).collect();
    for at in at {
        image[at] ^= 1;
    }
    run(async move |tasks| {
        let (store, recovery) = Store::open(disk(2, image), &tasks, OPTIONS).await.unwrap();
        assert_eq!((recovery.dropped, recovery.damaged), (None, None));
        let opened = of(store);
        let (mut found, mut lost) = (0, 0);
        for number in 0..1000u64 {
            match opened.map.get(number.to_be_bytes()).await {
                Ok(Some(value)) => {
                    assert_eq!(value, content(number, 60));
                    found += 1;
                }
                Err(StoreError::Damaged { .. }) => lost += 1,
                other => panic!("{other:?}"),
            }
        }
        assert!(found > 940 && (1..60).contains(&lost), "{found} found, {lost} lost");
        // Elsewhere it can be changed.
        opened.map.put(3u64.to_be_bytes(), b"new").await.unwrap();
        assert!(matches!(opened.map.put(500u64.to_be_bytes(), b"new").await, Err(StoreError::Damaged { .. })));
    });
}
