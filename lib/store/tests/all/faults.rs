//! Disks that fail requests, and disks that are full.

use crate::common::{Model, Opened, Step, batch, content, open, read_all, run, steps};
use glass_lib_store::StoreError;
use glass_platform_sim::{Chance, DiskConfig, Faults, SimBlock, for_seeds};

fn disk(seed: u64, size_bytes: u64) -> SimBlock {
    SimBlock::new(seed, DiskConfig { size_bytes, ..DiskConfig::default() })
}

/// One batch, often with a value that has pages of its own. The failed ones are those since the last that was stored.
async fn change(opened: &Opened<SimBlock>, chance: &mut Chance, model: &mut Model, failed: &mut Vec<Vec<Step>>) {
    let mut steps = steps(chance, 40);
    if chance.below(2) == 0 {
        let value = content(chance.next_u64(), 3000 + chance.below(9000) as usize);
        steps.push(Step::Put(vec![0, chance.below(4) as u8], value));
    }
    match opened.store.commit(batch(opened, &steps)).await {
        Ok(_) => {
            assert!(model.apply(&steps));
            failed.clear();
        }
        Err(StoreError::Refused) => assert!(!model.clone().apply(&steps)),
        Err(_) => failed.push(steps),
    }
}

/// Removes everything: all pages are free.
async fn assert_nothing_leaks(opened: &Opened<SimBlock>, model: &mut Model, failed: &mut Vec<Vec<Step>>, empty: u64) {
    for key in model.map.keys() {
        opened.map.remove(key).await.unwrap();
    }
    opened.log.trim(u64::MAX).await.unwrap();
    opened.map.put(b"last", b"value").await.unwrap();
    opened.map.remove(b"last").await.unwrap();
    assert_eq!(opened.store.usage().free_bytes, empty, "space is lost");
    model.map.clear();
    model.log.clear();
    failed.clear();
}

/// A failed batch is absent at once. After a power cut it may be there, unless another one was stored since.
#[test]
fn a_failed_batch_is_absent_and_a_later_one_decides() {
    for_seeds(0..600, |seed| {
        let disk = disk(seed, 512 << 10);
        let (used, mut chance) = (disk.clone(), Chance::new(seed));
        let every = |chance: &mut Chance| (chance.below(3) == 0).then(|| 2 + chance.below(12));
        let faults = Faults {
            read_every: every(&mut chance).filter(|_| seed % 4 == 0),
            write_every: every(&mut chance),
            flush_every: every(&mut chance),
            ..Faults::default()
        };
        let (model, failed) = run(async move |tasks| {
            let opened = open(&tasks, used.clone()).await;
            let empty = opened.store.usage().free_bytes;
            let (mut model, mut failed) = (Model::default(), Vec::new());
            for _ in 0..30 {
                used.set_faults(faults.clone());
                change(&opened, &mut chance, &mut model, &mut failed).await;
                used.set_faults(Faults::default());
                if chance.below(4) == 0 {
                    assert!(read_all(&opened).await.unwrap() == model, "a failed batch is there");
                }
            }
            if seed % 5 == 0 {
                assert_nothing_leaks(&opened, &mut model, &mut failed, empty).await;
            }
            // Now, or during a commit, which may use pages of a failed one again.
            if chance.below(2) == 0 {
                used.cut_at_operation(used.operations() + chance.below(6));
                change(&opened, &mut chance, &mut model, &mut failed).await;
                change(&opened, &mut chance, &mut model, &mut failed).await;
            }
            used.power_cut();
            (model, failed)
        });
        let disk = disk.restart(seed + 1);
        let found = run(async move |tasks| read_all(&open(&tasks, disk).await).await.unwrap());
        let with = |steps: &Vec<_>| {
            let mut model = model.clone();
            model.apply(steps);
            model == found
        };
        assert!(found == model || failed.iter().any(with), "not the last state, nor one with one of {}", failed.len());
    });
}

#[test]
fn a_full_store_keeps_what_it_has_and_can_shrink() {
    for_seeds(0..20, |seed| {
        let disk = disk(seed, 300 << 10);
        run(async move |tasks| {
            let opened = open(&tasks, disk).await;
            let (mut count, mut chance) = (0u64, Chance::new(seed));
            let error = loop {
                let length = 1 + chance.below(2000) as usize;
                match opened.map.put(count.to_be_bytes(), content(count, length)).await {
                    Ok(()) => count += 1,
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, StoreError::Full { .. }), "{error}");
            assert!(count > 20 && opened.map.len() == count);
            for number in 0..count {
                assert!(opened.map.get(number.to_be_bytes()).await.unwrap().is_some());
            }
            for number in 0..count / 2 {
                opened.map.remove(number.to_be_bytes()).await.unwrap();
            }
            opened.map.put(0u64.to_be_bytes(), content(1, 2000)).await.unwrap();
            assert_eq!(opened.map.len(), count - count / 2 + 1);
        });
    });
}

/// What a refusal relied on was not stored: it is no refusal.
#[test]
fn a_batch_that_was_refused_by_one_that_failed_fails_as_that_one() {
    use glass_api::Spawn;
    let disk = disk(1, 512 << 10);
    run(async move |tasks| {
        let opened = open(&tasks, disk.clone()).await;
        disk.set_faults(Faults { flush_every: Some(1), ..Faults::default() });
        let inserts: Vec<_> = (0..2)
            .map(|_| {
                let map = opened.map.clone();
                tasks.spawn("insert", async move { map.insert(b"key", b"value").await }).unwrap()
            })
            .collect();
        for insert in inserts {
            assert!(matches!(insert.await.unwrap(), Err(StoreError::Disk(_))));
        }
    });
}

/// A batch that does not fit does not fail those that share its flush.
#[test]
fn a_batch_that_does_not_fit_fails_alone() {
    use glass_api::Spawn;
    let disk = disk(1, 512 << 10);
    run(async move |tasks| {
        let opened = open(&tasks, disk).await;
        let (small, large) = (opened.map.clone(), opened.map.clone());
        let small = tasks.spawn("small", async move { small.put(b"small", b"value").await }).unwrap();
        let large = tasks.spawn("large", async move { large.put(b"large", vec![1; 600 << 10]).await }).unwrap();
        assert_eq!(small.await.unwrap(), Ok(()));
        assert!(matches!(large.await.unwrap(), Err(StoreError::Full { .. })));
        assert_eq!(opened.map.len(), 1);
    });
}
