//! Power cuts in a simulated world: requests take time, and many are in flight.

use crate::common::{Model, batch, of, open, read_all, steps};
use core::time::Duration;
use glass_lib_store::{Options, Store};
use glass_platform_sim::{Chance, DiskConfig, NodeConfig, SimBlock, World, for_seeds};
use std::cell::Cell;
use std::rc::Rc;

const LIMIT: Duration = Duration::from_secs(600);

#[test]
fn a_cut_while_requests_are_in_flight_loses_nothing_that_was_answered() {
    for_seeds(0..150, |seed| {
        let disk = SimBlock::new(seed, DiskConfig { size_bytes: 512 << 10, ..DiskConfig::default() });
        let mut chance = Chance::new(seed);
        let batches: Vec<_> = (0..20).map(|_| steps(&mut chance, 40)).collect();
        let mut world = World::new(seed);
        let node = world.node("server", NodeConfig { disks: vec![disk.clone()], ..NodeConfig::default() });
        disk.cut_at_operation(chance.below(80));
        let (sent, answered) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let (sends, answers, list, used, spawn) =
            (sent.clone(), answered.clone(), batches.clone(), disk.clone(), node.clone());
        node.run("writer", async move {
            let Ok((store, _)) = Store::open(used, &spawn, Options::default()).await else { return };
            let opened = of(store);
            for steps in list {
                sends.set(sends.get() + 1);
                if matches!(
                    opened.store.commit(batch(&opened, &steps)).await,
                    Err(glass_lib_store::StoreError::Disk(_))
                ) {
                    return;
                }
                answers.set(sends.get());
            }
        });
        let watched = node.clone();
        world.run_until(LIMIT, || !watched.is_alive() || watched.task_count() <= 1).unwrap();

        let disk = disk.restart(seed + 1);
        let mut world = World::new(seed + 1);
        let node = world.node("server", NodeConfig { disks: vec![disk.clone()], ..NodeConfig::default() });
        let spawn = node.clone();
        let found = world.complete(&node, LIMIT, async move { read_all(&open(&spawn, disk).await).await.unwrap() });
        let found = found.unwrap();
        let mut state = Model::default();
        let mut is_one = answered.get() == 0 && found == state;
        for (count, steps) in batches.iter().take(sent.get()).enumerate() {
            state.apply(steps);
            is_one |= count + 1 >= answered.get() && found == state;
        }
        assert!(is_one, "not the state after {} to {} batches", answered.get(), sent.get());
    });
}
