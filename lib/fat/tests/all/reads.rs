//! Contents are read straight from the clusters of a file.

use crate::disk::{Machine, empty, pattern, put};
use embassy_futures::join::join_array;
use glass_api::{Buf, File, FileError, Files, Open};
use glass_platform_sim::{DiskConfig, SimBlock, for_seeds};
use hadris_fat::FatKind;

const FILE_BYTES: usize = 300_000;

/// Two files whose clusters alternate.
async fn make_fragmented(fat: &impl Files) {
    let (one, other) = (fat.open("one", Open::Create).await.unwrap(), fat.open("other", Open::Create).await.unwrap());
    let mut at = 0;
    while at < FILE_BYTES {
        let end = FILE_BYTES.min(at + 5000);
        for (file, name) in [(&one, 1), (&other, 2)] {
            let part = Buf::copy_of(&pattern(name, FILE_BYTES)[at..end]).unwrap();
            file.write(at as u64, part).await.0.unwrap();
        }
        at = end;
    }
}

#[test]
fn any_part_of_a_fragmented_file_is_read_as_it_was_written() {
    for_seeds(0..12, |seed| {
        let kind = [FatKind::Fat12, FatKind::Fat16, FatKind::Fat32][seed as usize % 3];
        let config = DiskConfig { sector_bytes: [512, 4096][seed as usize % 2], ..DiskConfig::default() };
        let mut machine = Machine::with(seed, SimBlock::with_image(seed, config, empty(kind)));
        machine.run(move |fat| async move {
            make_fragmented(&fat).await;
            let expected = pattern(1, FILE_BYTES);
            let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut below = move |bound: usize| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random as usize % bound
            };
            let file = fat.open("one", Open::Read).await.unwrap();
            for _ in 0..20 {
                // Whole sectors and others, several at a time, some past the end.
                let parts: [(usize, usize); 4] = core::array::from_fn(|index| match index % 2 {
                    0 => (below(FILE_BYTES + 10), below(70_000) + 1),
                    _ => (below(FILE_BYTES) / 512 * 512, (below(20) + 1) * 512),
                });
                let reads = parts.map(|(offset, bytes)| file.read(offset as u64, Buf::zeroed(bytes).unwrap()));
                for ((offset, bytes), (count, buf)) in parts.into_iter().zip(join_array(reads).await) {
                    let end = FILE_BYTES.min(offset + bytes).max(offset.min(FILE_BYTES));
                    let wanted = expected.get(offset..end).unwrap_or(&[]);
                    assert_eq!(count, Ok(wanted.len()), "{offset} {bytes}");
                    assert!(buf[..wanted.len()] == *wanted && buf[wanted.len()..].iter().all(|byte| *byte == 0));
                }
            }
        });
    });
}

#[test]
fn a_file_that_is_read_into_its_buffer_takes_one_request() {
    let mut machine = Machine::new(1, FatKind::Fat32);
    machine.run(|fat| async move { put(&fat, "whole", &pattern(3, 64 << 10)).await.unwrap() });
    let reads = {
        let disk = machine.disk.clone();
        move || disk.counters().reads
    };
    let counts = machine.run(move |fat| async move {
        let file = fat.open("whole", Open::Read).await.unwrap();
        let mut counts = Vec::new();
        for _ in 0..2 {
            let before = reads();
            let (count, buf) = file.read(0, Buf::zeroed(64 << 10).unwrap()).await;
            assert_eq!((count, &buf[..]), (Ok(64 << 10), &pattern(3, 64 << 10)[..]));
            counts.push(reads() - before);
        }
        counts
    });
    // The first also reads the chain of clusters.
    assert!(counts[0] <= 3 && counts[1] == 1, "{counts:?}");
}

#[test]
fn a_shared_buffer_and_a_broken_disk_are_errors() {
    let mut machine = Machine::new(1, FatKind::Fat16);
    machine.run(|fat| async move { put(&fat, "a", &pattern(1, 4096)).await.unwrap() });
    machine.disk.set_faults(glass_platform_sim::Faults { read_every: Some(1), ..Default::default() });
    machine.run(|fat| async move {
        let file = fat.open("a", Open::Read).await;
        // Its entry is in memory.
        let file = file.unwrap();
        let buf = Buf::zeroed(4096).unwrap();
        let other = buf.clone();
        assert_eq!(file.read(0, buf).await.0, Err(FileError::Shared));
        drop(other);
        assert_eq!(file.read(0, Buf::zeroed(4096).unwrap()).await.0, Err(FileError::Host(5)));
    });
}
