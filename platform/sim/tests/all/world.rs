//! The simulated world itself: time, ends that name their seed, and what follows from it.

use core::cell::Cell;
use core::future::{pending, poll_fn};
use core::task::Poll;
use core::time::Duration;
use glass_api::{Cancelled, Clock, Console, Instant, MemoryUse, Net, Platform, Random, TimedOut, WallSource};
use glass_platform_sim::{NodeConfig, SimBlock, SimFailure, World};
use std::rc::Rc;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn time_jumps_to_the_next_deadline() {
    let mut world = World::new(1);
    let node = world.node("sleeper", NodeConfig::default());
    let clock = node.clone();
    let begun = std::time::Instant::now();
    let woken = world.complete(&node, 3 * 86_400 * SECOND, async move {
        clock.sleep(2 * 86_400 * SECOND).await;
        clock.now()
    });
    assert_eq!(woken.unwrap(), Instant(2 * 86_400 * 1_000_000_000));
    assert!(begun.elapsed() < 60 * SECOND, "two days were waited for");
}

#[test]
fn an_end_without_result_names_the_seed_and_the_reason() {
    let mut world = World::new(77);
    let node = world.node("node", NodeConfig::default());
    let stalled = world.complete(&node, SECOND, pending::<()>()).unwrap_err();
    assert_eq!(stalled.reason, SimFailure::Stalled);
    assert_eq!(stalled.to_string(), "seed 77 at 0.000000 s: nothing is left that could happen");

    let clock = node.clone();
    let late = world.complete(&node, SECOND, async move { clock.sleep(2 * SECOND).await }).unwrap_err();
    assert_eq!(late.to_string(), "seed 77 at 1.000000 s: not done after 1s of simulated time");

    let spinning = world.complete(
        &node,
        SECOND,
        poll_fn(|context| {
            context.waker().wake_by_ref();
            Poll::<()>::Pending
        }),
    );
    assert_eq!(spinning.unwrap_err().reason, SimFailure::Spinning);
}

#[test]
fn a_machine_that_is_switched_off_drops_its_tasks() {
    struct CountDrop(Rc<Cell<u32>>);
    impl Drop for CountDrop {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    let mut world = World::new(1);
    let node = world.node("node", NodeConfig::default());
    let dropped = Rc::new(Cell::new(0));
    for _ in 0..3 {
        let count_drop = CountDrop(dropped.clone());
        node.run("waits", async move {
            let _count_drop = count_drop;
            pending::<()>().await
        });
    }
    world.run_for(SECOND).unwrap();
    assert_eq!((dropped.get(), node.task_count()), (0, 3));
    // From one of its own tasks, which ends with the others.
    let (here, count_drop) = (node.clone(), CountDrop(dropped.clone()));
    node.run("switches off", async move {
        let _count_drop = count_drop;
        here.power_off();
        pending::<()>().await
    });
    world.run_for(SECOND).unwrap();
    assert_eq!((dropped.get(), node.task_count(), node.is_alive()), (4, 0, false));
}

#[test]
fn a_world_that_ends_drops_its_tasks() {
    let kept = Rc::new(());
    let mut world = World::new(1);
    let node =
        world.node("node", NodeConfig { disks: vec![SimBlock::new(1, Default::default())], ..NodeConfig::default() });
    let (here, held) = (node.clone(), kept.clone());
    node.run("waits", async move {
        let _listener = here.net().listen(1_u16).await.unwrap();
        let _held = held;
        pending::<()>().await
    });
    world.run_for(SECOND).unwrap();
    assert_eq!(Rc::strong_count(&kept), 2);
    drop((world, node));
    assert_eq!(Rc::strong_count(&kept), 1);
}

#[test]
fn a_machine_is_what_it_was_configured_to_be() {
    let mut world = World::new(5);
    let disks = vec![SimBlock::new(1, Default::default()), SimBlock::new(2, Default::default())];
    let args = vec!["--port".to_string(), "80".to_string()];
    let node = world.node("node", NodeConfig { disks, args: args.clone(), ..NodeConfig::default() });
    assert_eq!(node.args(), args);
    assert!(node.block(1).is_some() && node.block(2).is_none());
    node.print(format_args!("{} lines", 1));
    assert_eq!(node.console(), ["1 lines"]);
    let net = node.net();
    let up = world.complete(&node, SECOND, async move { net.up().await });
    assert_eq!(up.unwrap().unwrap().address, node.address());
}

#[test]
fn randomness_follows_from_the_seed() {
    let draw = |seed| {
        let mut world = World::new(seed);
        let node = world.node("node", NodeConfig::default());
        let mut bytes = [0; 20];
        node.fill_random(&mut bytes);
        bytes
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
}

#[test]
fn the_time_of_day_follows_from_the_seed_and_goes_on() {
    let wall = |seed| {
        let mut world = World::new(seed);
        let node = world.node("node", NodeConfig::default());
        let first = node.wall().unwrap();
        world.run_for(100 * SECOND).unwrap();
        assert_eq!(node.wall().unwrap().since_epoch - first.since_epoch, 100 * SECOND);
        assert_eq!(first.source, WallSource::Simulated);
        let text = first.to_string();
        assert!(text.starts_with("20"), "seed {seed}: {text}");
        text
    };
    assert_eq!(wall(1), wall(1));
    assert_ne!(wall(1), wall(2));
}

#[test]
fn a_service_is_asked_to_end() {
    let mut world = World::new(1);
    let node = world.node("node", NodeConfig::default());
    let (early, late) = (node.run("early", node.shutdown()), node.clone());
    world.run_for(SECOND).unwrap();
    assert!(!early.is_finished());
    node.shut_down();
    assert_eq!(world.complete(&node, SECOND, early).unwrap(), Ok(()));
    world.complete(&node, SECOND, async move { late.shutdown().await }).unwrap();
}

#[test]
fn a_time_limit_drops_what_it_limits() {
    let mut world = World::new(1);
    let node = world.node("node", NodeConfig::default());
    let clock = node.clone();
    let work = async move {
        let held = Rc::new(());
        let in_time = clock.timeout(2 * SECOND, clock.sleep(SECOND)).await;
        let kept = held.clone();
        let late = clock.timeout(SECOND, async move {
            let _kept = kept;
            pending::<()>().await
        });
        let late = late.await;
        // Both at the same moment: the value wins.
        let tie = clock.timeout(SECOND, clock.sleep(SECOND)).await;
        (in_time, late, tie, Rc::strong_count(&held), clock.now())
    };
    let ended = world.complete(&node, 10 * SECOND, work).unwrap();
    assert_eq!(ended, (Ok(()), Err(TimedOut), Ok(()), 1, Instant(3_000_000_000)));
}

#[test]
fn a_machine_without_power_takes_its_tasks_with_it() {
    let mut world = World::new(1);
    let node = world.node("node", NodeConfig::default());
    let waits = node.run("waits", pending::<()>());
    node.power_off();
    let too_late = node.run("too late", async { unreachable!("the machine is off") });
    let other = world.node("other", NodeConfig::default());
    let ends = world.complete(&other, SECOND, async move { (waits.await, too_late.await) });
    assert_eq!(ends.unwrap(), (Err(Cancelled), Err::<(), _>(Cancelled)));
}

#[test]
fn the_memory_of_a_machine_is_what_a_test_says() {
    let mut world = World::new(1);
    let node = world.node("node", NodeConfig::default());
    for (used, peak) in [(100, 100), (300, 300), (200, 300)] {
        node.set_memory_used(used);
        assert_eq!(node.memory(), MemoryUse { used_bytes: used, peak_bytes: peak, total_bytes: 64 << 20 });
    }
}

#[test]
fn a_warning_reaches_the_console_of_its_machine() {
    let mut world = World::new(1);
    let [first, second] = ["first", "second"].map(|name| world.node(name, NodeConfig::default()));
    first.run("warns", async { tracing::warn!(left = 2, "few places") });
    second.run("informs", async { tracing::info!("nothing to see") });
    world.run_for(SECOND).unwrap();
    assert_eq!(first.console(), [format!("0.000000 s WARN {}: few places left=2", module_path!())]);
    assert!(second.console().is_empty());
}
