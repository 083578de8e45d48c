//! Changes while others read, and changes whose future is dropped.

use crate::disk::{Machine, findings, get, pattern, put};
use core::time::Duration;
use embassy_futures::join::join;
use glass_api::{Buf, Clock, File, Files, Open};
use glass_platform_sim::for_seeds;
use hadris_fat::FatKind;

/// Clusters that one file gives up and another gets are never read as those of the first.
#[test]
fn a_reader_never_sees_the_bytes_of_another_file() {
    for_seeds(0..20, |seed| {
        let mut machine = Machine::new(seed, FatKind::Fat12);
        machine.run(|fat| async move {
            put(&fat, "mine", &[1; 60_000]).await.unwrap();
            let reader = fat.open("mine", Open::Read).await.unwrap();
            let writer = {
                let fat = fat.clone();
                async move {
                    let mine = fat.open("mine", Open::Write).await.unwrap();
                    for round in 0..8 {
                        mine.truncate(4000).await.unwrap();
                        put(&fat, "yours", &[2; 70_000]).await.unwrap();
                        mine.write(4000, Buf::copy_of(&[1; 56_000]).unwrap()).await.0.unwrap();
                        if round % 2 == 0 {
                            fat.remove_file("yours").await.unwrap();
                        }
                    }
                }
            };
            let readers = async move {
                for _ in 0..30 {
                    let (count, buf) = reader.read(0, Buf::zeroed(60_000).unwrap()).await;
                    let count = count.unwrap();
                    assert!(count >= 4000 && buf[..count].iter().all(|byte| *byte == 1), "{count}");
                }
            };
            join(writer, readers).await;
        });
    });
}

/// An operation that is dropped half-way leaves a file system that the next ones use and repair.
#[test]
fn an_operation_may_be_dropped_at_any_moment() {
    for_seeds(0..60, |seed| {
        let mut machine = Machine::new(seed, [FatKind::Fat16, FatKind::Fat32][seed as usize % 2]);
        let clock = machine.node.clone();
        machine.run(move |fat| async move {
            put(&fat, "kept", &pattern(5, 50_000)).await.unwrap();
            for round in 0..12u64 {
                let after = Duration::from_micros((seed * 977 + round * 331) % 6000);
                let own = fat.clone();
                let work = async move {
                    let name = format!("file {}", round % 3);
                    match round % 4 {
                        0 | 1 => put(&own, &name, &pattern(round as u8, 20_000)).await,
                        2 => own.rename(&name, "renamed").await,
                        _ => own.remove_file("renamed").await,
                    }
                };
                let _ = clock.timeout(after, work).await;
            }
            assert_eq!(get(&fat, "kept").await.unwrap(), pattern(5, 50_000));
            put(&fat, "last", b"last").await.unwrap();
            fat.sync().await.unwrap();
            assert_eq!(get(&fat, "last").await.unwrap(), b"last");
        });
        // The number of free clusters is a hint, which nothing relies on.
        let found: Vec<_> =
            findings(machine.disk.image()).into_iter().filter(|what| !what.contains("free count")).collect();
        assert_eq!(found, [] as [String; 0], "seed {seed}");
    });
}
