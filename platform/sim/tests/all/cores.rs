//! Machines with several cores: the seed chooses in which order they run.

use glass_api::{Cancelled, Clock, Console, Cores};
use glass_lib_cores::channel;
use glass_platform_sim::{Node, NodeConfig, SimError, World, for_seeds};
use std::collections::BTreeSet;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// `cargo xtask test --long` sets it.
fn seeds() -> u64 {
    if std::env::var_os("GLASS_TESTS_LONG").is_some() { 10_000 } else { 300 }
}

fn four_cores(world: &mut World) -> Node {
    world.node("node", NodeConfig { cores: 4, ..NodeConfig::default() })
}

/// The cores on which three tasks with two waits each ran, in that order.
fn order(seed: u64) -> (Vec<usize>, u64) {
    let mut world = World::new(seed);
    let node = four_cores(&mut world);
    let own = node.clone();
    let order = world.complete(&node, SECOND, async move {
        let (sender, receiver) = std::sync::mpsc::channel();
        let start = |core| {
            let sender = sender.clone();
            own.spawn_on(core, "note", move |core| async move {
                for _ in 0..3 {
                    sender.send(core.core()).unwrap();
                    core.sleep(Duration::from_millis(1)).await;
                }
                core.print(format_args!("{} is done", core.core()));
            })
        };
        let tasks: Vec<_> = (1..4).map(|core| start(core).unwrap()).collect();
        for task in tasks {
            task.await.unwrap();
        }
        receiver.try_iter().collect::<Vec<_>>()
    });
    (order.unwrap(), world.fingerprint())
}

#[test]
fn a_seed_is_one_order_and_seeds_differ() {
    let orders: BTreeSet<Vec<usize>> = (0..50).map(|seed| order(seed).0).collect();
    assert!(orders.len() > 10, "only {} orders: {orders:?}", orders.len());
    for seed in 0..5 {
        assert_eq!(order(seed), order(seed));
    }
}

/// Values travel around all cores in a ring, some of whose links are short; at random moments one task is cancelled and the others notice.
fn around(seed: u64) -> Result<(), SimError> {
    let mut world = World::new(seed);
    let node = four_cores(&mut world);
    let own = node.clone();
    world.complete(&node, 60 * SECOND, async move {
        let (mut first, mut previous) = channel::<u64>(1 + seed as usize % 3);
        let mut tasks = Vec::new();
        for number in [1, 2, 3, 0] {
            let (mut next, receiver) = channel(1 + number);
            let mut from = std::mem::replace(&mut previous, receiver);
            let task = own.spawn_on(number, "link", move |core| async move {
                while let Some(value) = from.recv().await {
                    if value % 7 == number as u64 {
                        core.sleep(Duration::from_micros(value)).await;
                    }
                    if next.send(value + 1).await.is_err() {
                        return Err(value);
                    }
                }
                Ok(core.core())
            });
            tasks.push(task.unwrap());
        }
        for value in 0..20 {
            first.send(value).await.unwrap();
            assert_eq!(previous.recv().await, Some(value + 4), "seed {seed}");
        }
        if seed.is_multiple_of(2) {
            // A link in the chain goes: all behind it end, and the next value is refused or lost.
            tasks[1].cancel();
            let _ = first.send(7).await;
            assert_eq!(previous.recv().await, None);
            assert_eq!(tasks.remove(1).await, Err(Cancelled));
            drop(first);
            for task in tasks {
                let _ = task.await.expect("only one was cancelled");
            }
        } else {
            drop(first);
            for (task, core) in tasks.into_iter().zip([1, 2, 3, 0]) {
                assert_eq!(task.await, Ok(Ok(core)));
            }
        }
    })
}

#[test]
fn values_go_around_all_cores_in_every_order() {
    for_seeds(0..seeds(), |seed| around(seed).unwrap());
}
