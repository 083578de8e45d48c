//! The store beside a model without power cuts: contents, ranges, snapshots, and no space that is lost.

use crate::common::{Model, batch, content, open, read_all, run, steps};
use glass_lib_store::{Batch, StoreError};
use glass_platform_sim::{Chance, DiskConfig, SimBlock, for_seeds};

fn disk(seed: u64, size_bytes: u64) -> SimBlock {
    SimBlock::new(seed, DiskConfig { size_bytes, ..DiskConfig::default() })
}

#[test]
fn contents_ranges_and_snapshots_are_those_of_the_model() {
    for_seeds(0..60, |seed| {
        let disk = disk(seed, 4 << 20);
        let again = disk.clone();
        let model = run(async move |tasks| {
            let opened = open(&tasks, disk).await;
            let (mut model, mut chance, mut kept) = (Model::default(), Chance::new(seed), Vec::new());
            for number in 0..80 {
                let steps = steps(&mut chance, 250);
                let result = opened.store.commit(batch(&opened, &steps)).await;
                assert_eq!(result.is_ok(), model.apply(&steps), "batch {number}: {result:?}");
                if number % 20 == 7 {
                    kept.push((opened.store.snapshot(), model.clone()));
                }
            }
            assert!(read_all(&opened).await.unwrap() == model);
            for (snapshot, then) in &kept {
                let (mut scan, mut entries) = (snapshot.scan(&opened.map), then.map.iter());
                while let Some((key, value)) = scan.next().await.unwrap() {
                    assert_eq!(entries.next(), Some((&key, &value)));
                }
                assert_eq!(entries.next(), None);
            }
            for _ in 0..20 {
                let (from, to) = (content(chance.next_u64(), 2), content(chance.next_u64(), 2));
                let (from, to) = if from <= to { (from, to) } else { (to, from) };
                let mut scan = opened.map.range(&from[..]..&to[..]);
                let mut found = Vec::new();
                while let Some((key, _)) = scan.next().await.unwrap() {
                    found.push(key);
                }
                let expected: Vec<_> = model.map.range(from..to).map(|(key, _)| key.clone()).collect();
                assert_eq!(found, expected);
            }
            for prefix in [&[7][..], &[0xff], &[]] {
                let mut scan = opened.map.prefix(prefix);
                let mut found = 0;
                while let Some((key, _)) = scan.next().await.unwrap() {
                    assert!(key.starts_with(prefix));
                    found += 1;
                }
                assert_eq!(found, model.map.keys().filter(|key| key.starts_with(prefix)).count());
            }
            model
        });
        let disk = again.restart(seed);
        let read = run(async move |tasks| read_all(&open(&tasks, disk).await).await.unwrap());
        assert!(read == model);
    });
}

/// More leaves of one page than are read at the same time: each gets its own changes.
#[test]
fn a_batch_changes_many_leaves() {
    let disk = disk(1, 4 << 20);
    run(async move |tasks| {
        let opened = open(&tasks, disk).await;
        let key = |number: u32| number.to_be_bytes();
        let value = |number: u32, round: u32| [number, round].map(u32::to_be_bytes).concat().repeat(10);
        for (round, step) in [1, 37, 61].into_iter().enumerate() {
            let mut changes = Batch::new();
            for number in (0..4000).step_by(step) {
                changes.put(&opened.map, key(number), value(number, round as u32));
            }
            opened.store.commit(changes).await.unwrap();
        }
        let (mut scan, mut count) = (opened.map.scan(), 0);
        while let Some((found, bytes)) = scan.next().await.unwrap() {
            let round = if count % 61 == 0 { 2 } else { u32::from(count % 37 == 0) };
            assert!(found == key(count) && bytes == value(count, round), "{count}");
            count += 1;
        }
        assert_eq!(count, 4000);
    });
}

/// All pages are free again when everything was removed: nothing leaks, in the same run and after a start.
#[test]
fn space_comes_back() {
    for_seeds(0..20, |seed| {
        let disk = disk(seed, 2 << 20);
        let again = disk.clone();
        run(async move |tasks| {
            let opened = open(&tasks, disk).await;
            let empty = opened.store.usage().free_bytes;
            let (mut chance, mut keys) = (Chance::new(seed), std::collections::BTreeSet::new());
            for _ in 0..60 {
                for step in steps(&mut chance, 300) {
                    if let crate::common::Step::Put(key, value) = step {
                        opened.map.put(&key, &value).await.unwrap();
                        opened.log.append(&value).await.unwrap();
                        keys.insert(key);
                    }
                }
            }
            assert!(opened.store.usage().free_bytes < empty);
            let snapshot = opened.store.snapshot();
            for key in keys {
                opened.map.remove(key).await.unwrap();
            }
            opened.log.trim(u64::MAX).await.unwrap();
            let next = opened.log.next_index();
            assert!(next > 0 && opened.log.is_empty() && opened.map.is_empty());
            assert!(opened.store.usage().snapshot_bytes > 0);
            drop(snapshot);
            assert_eq!(opened.store.usage().free_bytes, empty, "space is lost");
            assert_eq!(opened.log.append(b"more").await, Ok(next));
        });
        let disk = again.restart(seed);
        run(async move |tasks| {
            let opened = open(&tasks, disk).await;
            let free = opened.store.usage().free_bytes;
            assert!(free >= (2 << 20) - (2 + 32 + 1) * 4096, "{free} bytes are free after a start");
        });
    });
}

/// Sequential keys fill their pages; random ones leave them at two thirds.
#[test]
fn pages_are_used_well() {
    let used = |is_random: bool| {
        let disk = disk(1, 16 << 20);
        run(async move |tasks| {
            let opened = open(&tasks, disk).await;
            let empty = opened.store.usage().free_bytes;
            for number in 0..4000u64 {
                let key = if is_random { content(number, 8) } else { number.to_be_bytes().to_vec() };
                opened.map.put(key, content(number, 86)).await.unwrap();
            }
            empty - opened.store.usage().free_bytes
        })
    };
    // Each entry takes 100 bytes.
    let (sequential, random) = (used(false), used(true));
    assert!(sequential < 450_000, "{sequential} bytes for 400,000 in order");
    assert!(random < 640_000, "{random} bytes for 400,000 in random order");
}

#[test]
fn a_commit_flushes_once_for_all_that_wait() {
    let disk = disk(3, 4 << 20);
    let counted = disk.clone();
    run(async move |tasks| {
        use glass_api::Spawn;
        let opened = open(&tasks, disk).await;
        for number in 0..2000u64 {
            opened.map.put(number.to_be_bytes(), content(number, 50)).await.unwrap();
        }
        let before = counted.counters();
        opened.map.put(5u64.to_be_bytes(), b"one").await.unwrap();
        let one = counted.counters();
        // A page of each of three levels at most, and the slot; pages beside each other are one write.
        assert_eq!(one.flushes - before.flushes, 1);
        assert!((2..=4).contains(&(one.writes - before.writes)), "{before:?} {one:?}");
        let tasks: Vec<_> = (0..64u64)
            .map(|number| {
                let map = opened.map.clone();
                tasks.spawn("put", async move { map.put(number.to_be_bytes(), b"many").await.unwrap() }).unwrap()
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(counted.counters().flushes - one.flushes, 1);
    });
}

#[test]
fn bad_requests_are_refused_and_leave_the_others() {
    let disk = disk(4, 1 << 20);
    run(async move |tasks| {
        let opened = open(&tasks, disk).await;
        let (map, log) = (&opened.map, &opened.log);
        assert_eq!(map.put(b"", b"value").await, Err(StoreError::Key { bytes: 0 }));
        assert_eq!(map.put(vec![0; 513], b"value").await, Err(StoreError::Key { bytes: 513 }));
        assert!(matches!(map.put(b"a", vec![0; (1 << 20) + 1]).await, Err(StoreError::Value { .. })));
        map.insert(b"a", b"first").await.unwrap();
        assert_eq!(map.insert(b"a", b"second").await, Err(StoreError::Refused));
        let mut batch = Batch::new();
        batch.put(map, b"b", b"never");
        batch.append(log, b"never");
        batch.insert(map, b"a", b"second");
        assert_eq!(opened.store.commit(batch).await, Err(StoreError::Refused));
        assert_eq!(map.get(b"a").await.unwrap().as_deref(), Some(&b"first"[..]));
        assert_eq!((map.get(b"b").await, log.next_index()), (Ok(None), 0));
        let longer = |before: Option<&[u8]>| Ok(before.map(|before| [before, b"!"].concat()));
        assert_eq!(map.update(b"a", longer).await.unwrap().as_deref(), Some(&b"first!"[..]));
        assert_eq!(
            map.update(b"a", |_| Ok(Some(vec![0; (1 << 20) + 1]))).await,
            Err(StoreError::Value { bytes: (1 << 20) + 1 })
        );
        log.append(b"record").await.unwrap();
        assert!(matches!(opened.store.map("log").err(), Some(StoreError::Kind)));
        assert!(matches!(opened.store.map("").err(), Some(StoreError::Name)));
        for number in 0..5 {
            opened.store.map(&format!("map {number}")).unwrap().put(b"a", b"b").await.unwrap();
        }
        assert_eq!(opened.store.map("one more").unwrap().put(b"a", b"b").await, Err(StoreError::Trees));
        let mut large = Batch::new();
        for number in 0..5u64 {
            large.put(map, number.to_be_bytes(), vec![0; 1 << 20]);
        }
        assert_eq!(opened.store.commit(large).await, Err(StoreError::Batch));
    });
}
