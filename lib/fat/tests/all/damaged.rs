//! Disks that others wrote: any bytes are an error at worst.

use crate::disk::{LIMIT, Machine, pattern, put};
use glass_api::{Buf, File, FileKind, Files, Open, Platform};
use glass_lib_fat::Fat;
use glass_platform_sim::{DiskConfig, NodeConfig, SimBlock, World, for_seeds};
use hadris_fat::FatKind;

/// Reads everything that can be reached, up to a bound.
async fn visit(fat: &Fat<SimBlock>) {
    let mut open = vec![String::new()];
    let mut seen = 0;
    while let Some(path) = open.pop() {
        for entry in fat.read_dir(&path).await.unwrap_or_default() {
            seen += 1;
            if seen > 200 {
                return;
            }
            let below = if path.is_empty() { entry.name } else { format!("{path}/{}", entry.name) };
            let _ = fat.metadata(&below).await;
            if entry.kind == FileKind::Directory && below.len() < 200 {
                open.push(below);
            } else if let Ok(file) = fat.open(&below, Open::Read).await {
                for offset in [0, 3000, 1 << 20, u64::MAX - 5] {
                    let _ = file.read(offset, Buf::zeroed(10_000).unwrap()).await;
                }
            }
        }
    }
}

#[test]
fn a_damaged_file_system_is_an_error() {
    let mut images = Vec::new();
    for kind in [FatKind::Fat12, FatKind::Fat16, FatKind::Fat32] {
        let mut machine = Machine::new(1, kind);
        machine.run(|fat| async move {
            fat.create_dir("directory").await.unwrap();
            for number in 0..8 {
                put(&fat, &format!("directory/file with number {number}"), &pattern(number, 20_000)).await.unwrap();
            }
            put(&fat, "file", &pattern(1, 70_000)).await.unwrap();
        });
        images.push(machine.disk.image());
    }
    for_seeds(0..150, |seed| {
        let mut random = glass_platform_sim::Chance::new(seed);
        let mut image = images[seed as usize % 3].clone();
        // Only what is not zero has a meaning: the first sector, the tables, the directories, and some contents.
        let used: Vec<usize> = (0..image.len()).filter(|at| image[*at] != 0).collect();
        for _ in 0..1 + random.below(20) {
            let bound = if random.per_million(500_000) { 2000 } else { used.len() as u64 };
            let at = used[random.below(bound.min(used.len() as u64)) as usize];
            image[at] = random.next_u64() as u8;
        }
        let mut world = World::new(seed);
        let disk = SimBlock::with_image(seed, DiskConfig::default(), image);
        let node = world.node("machine", NodeConfig { disks: vec![disk], ..NodeConfig::default() });
        let own = node.clone();
        let task = async move {
            if let Ok(fat) = Fat::mount(own.block(0).unwrap(), own).await {
                visit(&fat).await;
                let _ = put(&fat, "directory/new", &pattern(9, 30_000)).await;
                let _ = fat.rename("file", "directory/moved").await;
                let _ = fat.remove_file("directory/file with number 3").await;
                let _ = fat.sync().await;
                visit(&fat).await;
            }
        };
        world.complete(&node, LIMIT * 100, task).unwrap();
    });
}
