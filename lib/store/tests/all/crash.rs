//! Power cuts with torn and reordered writes: the store contains what was answered, whole batches, and nothing else.

use crate::common::{Model, Opened, Step, batch, of, open, read_all, run, steps};
use glass_api::Spawn;
use glass_lib_store::{Store, StoreError};
use glass_platform_sim::{Chance, DiskConfig, SimBlock, for_seeds};
use std::cell::RefCell;
use std::rc::Rc;

/// Each with three lives and a power cut in each.
const SEEDS: u64 = 2000;
/// 100,200 power cuts.
const SEEDS_LONG: u64 = 33_400;
const LIVES: u64 = 3;
const WORKERS: u64 = 3;

/// The batches of a life in the order in which they were sent, and how many first ones of them were answered.
#[derive(Default)]
struct Ledger {
    sent: Vec<Vec<Step>>,
    answered: usize,
}

/// The store's disk: small, so that pages are used again soon.
fn disk(seed: u64) -> SimBlock {
    let sector_bytes = if seed.is_multiple_of(2) { 512 } else { 4096 };
    let size_bytes = [256, 400, 1024][(seed % 3) as usize] << 10;
    SimBlock::new(seed, DiskConfig { sector_bytes, size_bytes, ..DiskConfig::default() })
}

/// One worker: sends batches until the disk fails.
async fn work(opened: Opened<SimBlock>, ledger: Rc<RefCell<Ledger>>, mut chance: Chance) {
    for _ in 0..12 {
        let steps = steps(&mut chance, 40);
        let place = {
            let mut ledger = ledger.borrow_mut();
            ledger.sent.push(steps.clone());
            ledger.sent.len()
        };
        match opened.store.commit(batch(&opened, &steps)).await {
            Ok(_) => {
                let mut ledger = ledger.borrow_mut();
                ledger.answered = ledger.answered.max(place);
            }
            // It is known to be absent: as if it was not sent.
            Err(StoreError::Full { .. } | StoreError::Refused) => ledger.borrow_mut().sent[place - 1].clear(),
            Err(_) => return,
        }
    }
}

/// One life from the state `model`: returns the state that the disk has after its power cut.
fn live(seed: u64, life: u64, disk: SimBlock, model: &Model) -> (SimBlock, Model) {
    let mut chance = Chance::new(seed * LIVES + life);
    disk.cut_at_operation(chance.below(if life == 0 { 60 } else { 90 }));
    let ledger = Rc::new(RefCell::new(Ledger::default()));
    let (own, used) = (ledger.clone(), disk.clone());
    run(async move |tasks| {
        // The first life may end before there is a store.
        let Ok((store, _)) = Store::open(used, &tasks, crate::common::OPTIONS).await else { return };
        let opened = of(store);
        let workers: Vec<_> = (0..WORKERS)
            .map(|_| tasks.spawn("worker", work(opened.clone(), own.clone(), chance.fork())).unwrap())
            .collect();
        for worker in workers {
            worker.await.unwrap();
        }
    });
    let disk = disk.restart(seed + life + 1);
    let read = disk.clone();
    let found = run(async move |tasks| {
        let opened = open(&tasks, read).await;
        read_all(&opened).await.unwrap()
    });
    let ledger = ledger.borrow();
    let mut expected = model.clone();
    for (count, steps) in ledger.sent.iter().enumerate() {
        if count >= ledger.answered && found == expected {
            return (disk, found);
        }
        expected.apply(steps);
    }
    let (answered, sent) = (ledger.answered, ledger.sent.len());
    assert!(found == expected, "life {life}: not the state after {answered} to {sent} batches");
    (disk, found)
}

#[test]
fn what_was_answered_survives_a_power_cut_and_nothing_else_appears() {
    let seeds = if std::env::var_os("GLASS_TESTS_LONG").is_some() { SEEDS_LONG } else { SEEDS };
    for_seeds(0..seeds, |seed| {
        let (mut disk, mut model) = (disk(seed), Model::default());
        for life in 0..LIVES {
            (disk, model) = live(seed, life, disk, &model);
        }
    });
}
