//! The disks of a Linux guest, from which its programs are read: images, tables of partitions, a file system.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fastrand::Rng;
use glass_profiler_core::disk::{DiskFile, Disks, example};
use glass_profiler_core::elf::ReadAt;

use super::Target;
use crate::mutate;

/// The most reads of a disk that a case may take: a page of a file takes some thirty, through two images.
const READS_MAX: u64 = 200_000;
/// Pages that are read of a file.
const PAGES: u64 = 64;
const PAGE_BYTES: u64 = 4096;
/// Bytes in which a number is changed.
const FIELDS_BYTES: usize = 160;

/// The start of some bytes that are not all zero, if they are found soon: tables of disks of others may be anywhere.
fn used(bytes: &[u8], rng: &mut Rng) -> usize {
    let all = bytes.chunks(FIELDS_BYTES).len().max(1);
    let mut places = (0..16).map(|_| rng.usize(..all) * FIELDS_BYTES);
    let is_used = |start: &usize| bytes.iter().skip(*start).take(FIELDS_BYTES).any(|byte| *byte != 0);
    places.find(is_used).unwrap_or(0)
}

/// Bytes that count how often they are read.
struct Counted {
    bytes: Vec<u8>,
    reads: Arc<AtomicU64>,
}

impl ReadAt for Counted {
    fn bytes(&self) -> u64 {
        self.bytes.bytes()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> bool {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes.read_at(offset, into)
    }
}

/// All of these.
pub struct GuestDisks;

impl Target for GuestDisks {
    fn name(&self) -> &'static str {
        "guest-disks"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        let (_, file_system) = example::ext4();
        let (partitioned, _) = example::gpt(&file_system, 512);
        let (other, _) = example::first_sector(&file_system);
        let images = example::Kind::ALL.map(|kind| example::qcow2(&file_system, kind, None));
        let above = example::qcow2(&file_system[..4096], example::Kind::Plain, Some("base"));
        let empty = example::qcow2(&vec![0; file_system.len()], example::Kind::Empty, Some("/vm/base"));
        [vec![file_system, partitioned, other, above, empty], images.to_vec()].concat()
    }

    fn change(&self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
        // Headers, tables and nodes are small parts of a disk: most changes are to numbers that are there.
        let starts =
            [0, 446, 512, 1024, 1024 + 0x60, 2048, 4096 + 11 * 256, 12 << 10, 13 << 10, 64 << 10, 128 << 10, 1 << 20];
        match rng.u32(..4) {
            0 => mutate::plain(bytes, corpus, rng),
            kind => {
                let start = if kind == 1 { used(bytes, rng) } else { *mutate::pick(rng, &starts) };
                let end = (start + FIELDS_BYTES).min(bytes.len());
                let places: Vec<_> =
                    (start..end).step_by(4).map(|at| (at, *mutate::pick(rng, &[1, 2, 4, 8]))).collect();
                mutate::fields(bytes, &places, rng);
            }
        }
    }

    fn run(&self, input: &[u8]) {
        let reads = Arc::new(AtomicU64::new(0));
        let disk = |path: &str, bytes: Vec<u8>| DiskFile {
            path: path.to_owned(),
            file: Arc::new(Counted { bytes, reads: Arc::clone(&reads) }),
        };
        let disks = Disks::open(&[disk("/vm/top", input.to_vec()), disk("/vm/base", example::ext4().1)]);
        assert!(disks.others().len() <= 512);
        for inode in [example::INODE, 2, 11, 13, u64::from(u32::MAX)] {
            for file in disks.files(None, inode).take(8) {
                let pages = file.bytes().div_ceil(PAGE_BYTES).min(PAGES);
                for at in (0..pages).map(|page| page * PAGE_BYTES).chain([file.bytes() / 2, u64::MAX - 8]) {
                    let count = PAGE_BYTES.min(file.bytes().saturating_sub(at)) as usize;
                    let mut page = vec![0; count];
                    let is_read = file.read_at(at, &mut page);
                    assert!(!is_read || at + count as u64 <= file.bytes());
                }
            }
        }
        let reads = reads.load(Ordering::Relaxed);
        assert!(reads < READS_MAX, "{reads} reads");
    }

    fn cost(&self) -> u64 {
        2
    }

    fn bytes_max(&self) -> usize {
        2 << 20
    }
}
