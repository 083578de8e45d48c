//! The service in a simulation: hours take no time, and the power is cut.

use core::time::Duration;
use glass_platform_sim::{Chance, DiskConfig, NodeConfig, SimBlock, World, for_seeds};

/// Runs the service on `disk` for an hour, or until its power is cut; returns the numbers of its rounds.
fn rounds(seed: u64, disk: &SimBlock) -> Vec<u64> {
    let mut world = World::new(seed);
    let node = world.node("server", NodeConfig { disks: vec![disk.clone()], ..NodeConfig::default() });
    node.run("service", my_service::serve(node.clone()));
    let _ = world.run_until(Duration::from_secs(3600), || !node.is_alive());
    let lines = node.console();
    lines.iter().filter_map(|line| line.strip_prefix("round ")?.parse().ok()).collect()
}

#[test]
fn no_round_is_left_out() {
    for_seeds(0..20, |seed| {
        let disk = SimBlock::new(seed, DiskConfig { size_bytes: 1 << 20, ..DiskConfig::default() });
        disk.cut_at_operation(Chance::new(seed).below(300));
        let first = rounds(seed, &disk);
        let second = rounds(seed + 1, &disk.restart(seed + 1));
        assert!(first.iter().copied().eq(0..first.len() as u64), "{first:?}");
        let start = second.first().copied().expect("an hour has some rounds");
        // The last round may be repeated: it was done and not stored.
        assert!(start + 1 >= first.len() as u64 && start <= first.len() as u64, "{} then {start}", first.len());
        assert!(second.iter().copied().eq(start..start + second.len() as u64));
    });
}
