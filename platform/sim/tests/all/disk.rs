//! The guarantees of a simulated disk.

use core::cell::Cell;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use glass_api::{Block, BlockError, Buf, Clock, Platform};
use glass_platform_sim::{DiskConfig, Faults, Node, NodeConfig, SimBlock, SimFailure, World, for_seeds};
use std::rc::Rc;

const SECTOR: u64 = 512;
const MINUTE: Duration = Duration::from_secs(60);

fn small() -> DiskConfig {
    DiskConfig { size_bytes: 64 * SECTOR, ..DiskConfig::default() }
}

fn sector(value: u8) -> Buf {
    Buf::copy_of(&[value; SECTOR as usize]).unwrap()
}

/// A disk on its own never waits.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a disk on its own made a request wait"),
    }
}

/// A world with one machine that has this disk.
fn machine(seed: u64, disk: &SimBlock) -> (World, Node) {
    let mut world = World::new(seed);
    let node = world.node("machine", NodeConfig { disks: vec![disk.clone()], ..NodeConfig::default() });
    (world, node)
}

#[test]
fn a_disk_on_its_own_keeps_what_is_written() {
    let disk = SimBlock::new(1, small());
    let (result, buf) = now(disk.write(SECTOR, sector(7)));
    assert_eq!(result, Ok(()));
    let (result, buf) = now(disk.read(SECTOR, buf));
    assert_eq!(result, Ok(()));
    assert!(buf.iter().all(|byte| *byte == 7));
    assert_eq!(disk.image()[SECTOR as usize], 7);
    assert_eq!((disk.operations(), disk.counters().reads), (1, 1));
}

#[test]
fn wrong_requests_are_refused() {
    let disk = SimBlock::new(1, DiskConfig { sector_bytes: 4096, ..DiskConfig::default() });
    let size = disk.info().size_bytes;
    let page = || Buf::zeroed(4096).unwrap();
    assert!(matches!(now(disk.write(512, page())).0, Err(BlockError::Misaligned { .. })));
    assert!(matches!(now(disk.write(size, page())).0, Err(BlockError::OutOfRange { .. })));
    let shared = page();
    assert_eq!(now(disk.read(0, shared.clone())).0, Err(BlockError::Shared));
}

#[test]
fn a_cut_keeps_what_was_flushed_and_ends_everything() {
    let mut survived = [0; 2];
    for_seeds(0..200, |seed| {
        let disk = SimBlock::new(seed, small());
        now(disk.write(0, sector(1))).0.unwrap();
        now(disk.flush()).unwrap();
        now(disk.write(SECTOR, sector(2))).0.unwrap();
        disk.power_cut();
        assert!(!disk.has_power());
        assert_eq!(now(disk.write(0, sector(3))).0, Err(BlockError::Device(5)));
        assert_eq!(now(disk.read(0, sector(3))).0, Err(BlockError::Device(5)));
        assert_eq!(now(disk.flush()), Err(BlockError::Device(5)));
        let image = disk.restart(seed).image();
        assert_eq!(image[0], 1, "seed {seed}");
        survived[usize::from(image[SECTOR as usize] == 2)] += 1;
    });
    assert!(survived[0] > 50 && survived[1] > 50, "{survived:?}");
}

#[test]
fn a_cut_at_an_operation_comes_before_it_completes() {
    for_seeds(0..50, |seed| {
        let disk = SimBlock::new(seed, small());
        disk.cut_at_operation(2);
        assert_eq!(now(disk.write(0, sector(1))).0, Ok(()));
        assert_eq!(now(disk.flush()), Ok(()));
        assert_eq!(now(disk.write(0, sector(2))).0, Err(BlockError::Device(5)));
        assert!(!disk.has_power());
        assert!([1, 2].contains(&disk.image()[0]), "seed {seed}");
    });
}

#[test]
fn restart_without_a_cut_keeps_what_was_completed() {
    let disk = SimBlock::new(1, small());
    now(disk.write(0, sector(9))).0.unwrap();
    let again = disk.restart(2);
    assert!(!disk.has_power() && again.has_power());
    assert_eq!(again.image()[0], 9);
}

#[test]
fn requests_overtake_each_other() {
    let (mut in_order, mut overtaken) = (0, 0);
    for_seeds(0..50, |seed| {
        let disk = SimBlock::new(seed, small());
        let (mut world, node) = machine(seed, &disk);
        let order = Rc::new(Cell::new([None; 2]));
        for index in 0..2 {
            let (disk, order) = (node.block(0).unwrap(), order.clone());
            node.run("writer", async move {
                disk.write(index * SECTOR, sector(1)).await.0.unwrap();
                let mut seen = order.get();
                seen[usize::from(seen[0].is_some())] = Some(index);
                order.set(seen);
            });
        }
        world.run_until(MINUTE, || order.get()[1].is_some()).unwrap();
        match order.get() {
            [Some(0), Some(1)] => in_order += 1,
            _ => overtaken += 1,
        }
    });
    assert!(in_order > 10 && overtaken > 10, "{in_order} in order, {overtaken} not");
}

#[test]
fn a_flush_does_not_cover_a_write_that_completes_after_it_began() {
    let mut lost = 0;
    for_seeds(0..200, |seed| {
        let slow_flush = Duration::from_millis(10)..Duration::from_millis(11);
        let disk = SimBlock::new(seed, DiskConfig { flush_latency: slow_flush, ..small() });
        let (mut world, node) = machine(seed, &disk);
        let (writer, flusher) = (node.block(0).unwrap(), node.block(0).unwrap());
        node.run("writer", async move { writer.write(0, sector(1)).await.0.unwrap() });
        let flushed = world.complete(&node, MINUTE, async move { flusher.flush().await });
        assert_eq!(flushed.unwrap(), Ok(()));
        assert_eq!(disk.image()[0], 1, "the write completed while the flush was in flight");
        disk.power_cut();
        lost += usize::from(disk.image()[0] == 0);
    });
    assert!(lost > 50, "{lost}");
}

#[test]
fn a_write_whose_future_is_dropped_happens_all_the_same() {
    let disk = SimBlock::new(1, small());
    let (mut world, node) = machine(1, &disk);
    let block = node.block(0).unwrap();
    node.run("impatient", async move {
        let mut write = Box::pin(block.write(0, sector(5)));
        assert!(write.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    });
    world.run_for(Duration::from_millis(10)).unwrap();
    assert_eq!(disk.image()[0], 5);
}

#[test]
fn overlapping_writes_are_counted() {
    let disk = SimBlock::new(1, small());
    let (mut world, node) = machine(1, &disk);
    for offset in [0, SECTOR, 3 * SECTOR] {
        let block = node.block(0).unwrap();
        node.run("writer", async move {
            block.write(offset, Buf::zeroed(2 * SECTOR as usize).unwrap()).await.0.unwrap();
        });
    }
    world.run_for(MINUTE).unwrap();
    assert_eq!(disk.counters().overlapping_writes, 1);
}

#[test]
fn faults_hit_what_they_should() {
    let disk = SimBlock::new(1, small());
    disk.set_faults(Faults {
        write_every: Some(3),
        flush_every: Some(2),
        read_ranges: vec![SECTOR..2 * SECTOR, 9 * SECTOR..10 * SECTOR],
        ..Faults::default()
    });
    let writes: Vec<bool> = (0..6).map(|_| now(disk.write(0, sector(1))).0.is_ok()).collect();
    assert_eq!(writes, [true, true, false, true, true, false]);
    assert_eq!([now(disk.flush()).is_ok(), now(disk.flush()).is_ok()], [true, false]);
    assert_eq!(now(disk.read(0, sector(0))).0, Ok(()));
    assert_eq!(now(disk.read(0, Buf::zeroed(1024).unwrap())).0, Err(BlockError::Device(5)));
    assert_eq!(disk.counters().faults, 4);
}

#[test]
fn a_machine_dies_with_its_disk() {
    let disk = SimBlock::new(1, small());
    let (mut world, node) = machine(1, &disk);
    disk.cut_at_operation(0);
    let block = node.block(0).unwrap();
    let written = world.complete(&node, MINUTE, async move { block.write(0, sector(1)).await.0 });
    assert_eq!(written.unwrap_err().reason, SimFailure::Died("machine".to_string()));
    assert!(!node.is_alive());
    assert_eq!(node.task_count(), 0);
}

/// A test of the guide waited for a cut that never came: the service under it had started that operation when it opened its disk.
#[test]
fn a_cut_at_an_operation_that_has_started_is_at_the_next() {
    let disk = SimBlock::new(1, small());
    now(disk.write(0, sector(1))).0.unwrap();
    now(disk.flush()).unwrap();
    disk.cut_at_operation(1);
    assert!(disk.has_power());
    assert!(now(disk.write(0, sector(2))).0.is_err());
    assert!(!disk.has_power());
}

/// Appends sectors that contain their number; `flushed`: it flushes before it records them.
async fn append(node: Node, acknowledged: Rc<Cell<u64>>, flushed: bool) {
    let disk = node.block(0).unwrap();
    for number in 0..20 {
        disk.write(number * SECTOR, sector(number as u8 + 1)).await.0.unwrap();
        if flushed {
            disk.flush().await.unwrap();
        }
        acknowledged.set(number + 1);
        node.sleep(Duration::from_micros(100)).await;
    }
}

/// The number of recorded sectors that are missing, over cuts at every operation.
fn lost(flushed: bool) -> u64 {
    let mut lost = 0;
    for_seeds(0..10, |seed| {
        for operation in 0.. {
            let disk = SimBlock::new(seed * 1000 + operation, small());
            disk.cut_at_operation(operation);
            let (mut world, node) = machine(seed, &disk);
            let acknowledged = Rc::new(Cell::new(0));
            node.run("append", append(node.clone(), acknowledged.clone(), flushed));
            world.run_until(MINUTE, || !node.is_alive() || node.task_count() == 0).unwrap();
            if disk.has_power() {
                return;
            }
            let image = disk.restart(seed).image();
            lost += (0..acknowledged.get())
                .filter(|number| image[(number * SECTOR) as usize] != *number as u8 + 1)
                .count() as u64;
        }
    });
    lost
}

#[test]
fn a_cut_at_every_operation_finds_a_missing_flush_and_only_that() {
    assert_eq!(lost(true), 0);
    assert!(lost(false) > 100);
}
