//! Disks that are refused, and what a start reports.

use crate::common::{OPTIONS, open, run};
use glass_lib_store::{OpenError, Recovery, Store};
use glass_platform_sim::{DiskConfig, SimBlock};

fn recovery(disk: SimBlock) -> Result<Recovery, OpenError> {
    run(async move |tasks| Store::open(disk, &tasks, OPTIONS).await.map(|(_, recovery)| recovery))
}

fn new_disk(size_bytes: u64) -> SimBlock {
    SimBlock::new(1, DiskConfig { size_bytes, ..DiskConfig::default() })
}

/// Refused with this error, and not a byte was written.
fn assert_refused(image: Vec<u8>, expected: OpenError) {
    let disk = SimBlock::with_image(1, DiskConfig::default(), image.clone());
    assert_eq!(recovery(disk.clone()), Err(expected));
    assert_eq!(disk.counters().writes, 0);
    assert!(disk.image() == image);
    assert_eq!(expected.to_string().lines().count(), 1);
}

#[test]
fn a_new_store_is_made_on_an_empty_disk_and_found_again() {
    let disk = new_disk(1 << 20);
    let first = recovery(disk.clone()).unwrap();
    assert!(first.formatted && first.to_string().contains("new store"));
    let used = disk.clone();
    run(async move |tasks| open(&tasks, used).await.map.put(b"a", b"b").await.unwrap());
    let flushes = disk.counters().flushes;
    let second = recovery(disk.clone()).unwrap();
    // What a killed service wrote may be in a cache of its host; from now on it is read.
    assert_eq!(disk.counters().flushes, flushes + 1);
    assert_eq!((second.formatted, second.entries, second.dropped, second.damaged), (false, 1, None, None));
    assert_eq!(second.to_string(), "the store has 1 entries after 2 commits");
}

#[test]
fn other_disks_are_refused_and_not_touched() {
    assert_refused(vec![0; 4096], OpenError::TooSmall { size_bytes: 4096, least_bytes: 64 * 4096 });
    for offset in [0, 4096, 510, (5 << 20) + 7, (8 << 20) - 1, 4 << 20] {
        let mut image = vec![0; 8 << 20];
        image[offset] = 0x55;
        // Samples are all that is read in between.
        let is_sampled = offset <= 4 << 20 || offset > (8 << 20) - (256 << 10);
        if is_sampled {
            assert_refused(image, OpenError::Foreign { offset: if offset == 510 { 0 } else { offset as u64 } });
        }
    }
}

#[test]
fn a_newer_version_and_a_smaller_disk_are_refused() {
    let disk = new_disk(1 << 20);
    let used = disk.clone();
    run(async move |tasks| open(&tasks, used).await.map.put(b"a", b"b").await.unwrap());
    let image = disk.image();
    let mut newer = image.clone();
    newer[8] = 9;
    newer[56..64].fill(0);
    let checksum = xxhash_rust::xxh3::xxh3_64(&newer[..512]);
    newer[56..64].copy_from_slice(&checksum.to_le_bytes());
    assert_refused(newer, OpenError::Version(9));
    assert_refused(image[..512 << 10].to_vec(), OpenError::Shrunk { store_bytes: 1 << 20, size_bytes: 512 << 10 });
    let mut damaged = image;
    damaged[20] ^= 1;
    damaged[4096 + 20] ^= 1;
    assert_refused(damaged, OpenError::Damaged);
}
