//! Power cuts.

use crate::disk::{Machine, get, pattern, put};
use glass_api::Files;
use glass_platform_sim::for_seeds;
use hadris_fat::FatKind;

/// What was synced before the last operation is there afterwards.
#[test]
fn what_was_synced_survives_a_power_cut() {
    for_seeds(0..60, |seed| {
        let mut machine = Machine::new(seed, [FatKind::Fat12, FatKind::Fat16, FatKind::Fat32][seed as usize % 3]);
        machine.run(|fat| async move {
            fat.create_dir("d").await.unwrap();
            put(&fat, "d/kept", &pattern(7, 40_000)).await.unwrap();
            fat.sync().await.unwrap();
        });
        machine.disk.cut_at_operation(machine.disk.operations() + 1 + seed * 3 % 100);
        let node = machine.node.clone();
        let fat = machine.fat.clone();
        node.run("work", async move {
            for round in 0..40 {
                let name = format!("d/file {}", round % 5);
                if round % 7 == 6 {
                    let _ = fat.remove_file(&name).await;
                } else {
                    let _ = put(&fat, &name, &pattern(round, 9000)).await;
                }
            }
        });
        let disk = machine.disk.clone();
        machine.world.run_until(crate::disk::LIMIT, || !disk.has_power()).unwrap();
        let mut again = Machine::with(seed + 1, machine.disk.restart(seed));
        again.run(|fat| async move {
            assert_eq!(get(&fat, "d/kept").await.unwrap(), pattern(7, 40_000));
            put(&fat, "d/later", &pattern(8, 30_000)).await.unwrap();
            assert_eq!(get(&fat, "d/later").await.unwrap(), pattern(8, 30_000));
            assert_eq!(get(&fat, "d/kept").await.unwrap(), pattern(7, 40_000));
        });
    });
}
