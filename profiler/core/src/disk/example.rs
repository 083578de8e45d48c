//! Small disks for tests: an ext4 file system with one file, tables of partitions around it, and images in which it is.

use std::io::Write;
use std::ops::Range;

use flate2::Compression;
use flate2::write::DeflateEncoder;

const BLOCK: usize = 1024;
/// What identifies the file system.
pub const UUID: [u8; 16] = *b"an example's id.";
/// The number of its file.
pub const INODE: u64 = 12;
/// Blocks of the file system: superblock, descriptors, table of inodes, nodes of the file's tree, contents.
const BLOCKS: usize = 64;
const TABLE: usize = 4;
const NODES: [usize; 2] = [12, 13];
const CONTENTS: usize = 20;
/// Six blocks, the last of which is not full.
const FILE_BYTES: usize = 5 * BLOCK + 100;

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

fn halves(bytes: &mut [u8], all: &[(usize, u32)]) {
    all.iter().for_each(|(at, value)| put(bytes, *at, &value.to_le_bytes()));
}

/// A node of a tree: its depth, and its entries, each as its bytes.
fn node(bytes: &mut [u8], depth: u16, entries: &[[u32; 3]]) {
    let header = [0xf30a, entries.len() as u16, 4, depth, 0, 0];
    header.iter().enumerate().for_each(|(index, value)| put(bytes, index * 2, &value.to_le_bytes()));
    for (index, entry) in entries.iter().enumerate() {
        entry.iter().enumerate().for_each(|(part, value)| put(bytes, 12 + index * 12 + part * 4, &value.to_le_bytes()));
    }
}

/// The file's contents, and a file system with it: blocks of 1 KiB, a tree of two levels, extents that do not follow each other.
pub fn ext4() -> (Vec<u8>, Vec<u8>) {
    let text: Vec<u8> = (0..FILE_BYTES as u32).flat_map(|index| [(index % 251) as u8]).collect();
    let mut disk = vec![0; BLOCKS * BLOCK];
    let superblock = &mut disk[1024..2048];
    let numbers =
        [(0, 16), (4, BLOCKS as u32), (0x14, 1), (0x18, 0), (0x20, 8192), (0x28, 16), (0x4c, 1), (0x60, 0x2c2)];
    halves(superblock, &numbers);
    put(superblock, 56, &0xef53u16.to_le_bytes());
    put(superblock, 0x58, &256u16.to_le_bytes());
    put(superblock, 0xfe, &64u16.to_le_bytes());
    put(superblock, 0x68, &UUID);
    halves(&mut disk[2 * BLOCK..], &[(8, TABLE as u32)]);
    let directory = TABLE * BLOCK + 256;
    put(&mut disk, directory, &0x41edu16.to_le_bytes());
    let inode = TABLE * BLOCK + (INODE as usize - 1) * 256;
    put(&mut disk, inode, &0x81edu16.to_le_bytes());
    halves(&mut disk[inode..], &[(4, FILE_BYTES as u32), (32, 0x8_0000)]);
    node(&mut disk[inode + 40..], 1, &[[0, NODES[0] as u32, 0], [3, NODES[1] as u32, 0]]);
    let extents = [[0, 2, CONTENTS as u32 + 8], [2, 1, CONTENTS as u32]];
    node(&mut disk[NODES[0] * BLOCK..], 0, &extents);
    node(&mut disk[NODES[1] * BLOCK..], 0, &[[3, 3, CONTENTS as u32 + 1]]);
    for (index, block) in text.chunks(BLOCK).enumerate() {
        let place = [CONTENTS + 8, CONTENTS + 9, CONTENTS, CONTENTS + 1, CONTENTS + 2, CONTENTS + 3][index];
        put(&mut disk, place * BLOCK, block);
    }
    (text, disk)
}

/// A disk of sectors of so many bytes with a GPT and one partition; where that is.
pub fn gpt(contents: &[u8], sector: u64) -> (Vec<u8>, Range<u64>) {
    let size = sector as usize;
    let first = (1 << 20) / sector;
    let last = first + (contents.len() as u64).div_ceil(sector) - 1;
    let mut disk = vec![0; (last as usize + 34) * size];
    disk[450] = 0xee;
    put(&mut disk, 510, &[0x55, 0xaa]);
    let copy = disk.len() - size;
    for (header, entries) in [(size, 2 * size), (copy, 2 * size)] {
        put(&mut disk, header, b"EFI PART");
        put(&mut disk, header + 72, &(entries as u64 / sector).to_le_bytes());
        halves(&mut disk, &[(header + 80, 128), (header + 84, 128)]);
    }
    put(&mut disk, 2 * size + 128, &[7; 16]);
    put(&mut disk, 2 * size + 128 + 32, &first.to_le_bytes());
    put(&mut disk, 2 * size + 128 + 40, &last.to_le_bytes());
    put(&mut disk, (first * sector) as usize, contents);
    (disk, first * sector..(last + 1) * sector)
}

/// A disk with a table in its first sector: a partition of four KiB, and an extended one in which there are another and that with the contents.
pub fn first_sector(contents: &[u8]) -> (Vec<u8>, Vec<Range<u64>>) {
    let sectors = |bytes: usize| (bytes / 512) as u32;
    let (small, extended) = (8, 16);
    let second = extended + 1 + 16;
    let start = second as usize + 8;
    let mut disk = vec![0; start * 512 + contents.len().next_multiple_of(512) + 4096];
    let mut entry = |table: u32, index: usize, kind: u8, first: u32, count: u32| {
        let at = table as usize * 512;
        put(&mut disk, at + 510, &[0x55, 0xaa]);
        disk[at + 446 + index * 16 + 4] = kind;
        halves(&mut disk, &[(at + 446 + index * 16 + 8, first), (at + 446 + index * 16 + 12, count)]);
    };
    let size = sectors(contents.len().next_multiple_of(512));
    entry(0, 0, 0x83, small, 8);
    entry(0, 1, 0x0f, extended, 1000);
    entry(extended, 0, 0x83, 1, 8);
    entry(extended, 1, 0x05, second - extended, 100);
    entry(second, 0, 0x83, 8, size);
    put(&mut disk, start * 512, contents);
    let range = |first: u64, count: u64| first * 512..(first + count) * 512;
    let all = vec![range(8, 8), range(u64::from(extended) + 1, 8), range(start as u64, size.into())];
    (disk, all)
}

/// How an image has its clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// As they are, version 2.
    Plain,
    /// Compressed by deflate.
    Deflated,
    /// With subclusters.
    Extended,
    /// None is there.
    Empty,
}

impl Kind {
    /// Those with contents.
    pub const ALL: [Kind; 3] = [Kind::Plain, Kind::Deflated, Kind::Extended];
}

/// An image of a disk, with clusters of 64 KiB; zeros are left out.
pub fn qcow2(disk: &[u8], kind: Kind, backing: Option<&str>) -> Vec<u8> {
    const CLUSTER: usize = 64 << 10;
    let entry_bytes = if kind == Kind::Extended { 16 } else { 8 };
    assert!(disk.len() <= CLUSTER * CLUSTER / entry_bytes, "one second table");
    let mut image = vec![0; 3 * CLUSTER];
    let version: u32 = if kind == Kind::Plain { 2 } else { 3 };
    put(&mut image, 0, b"QFI\xfb");
    for (at, value) in [(4, version), (20, 16), (36, 1), (100, 112)] {
        put(&mut image, at, &value.to_be_bytes());
    }
    put(&mut image, 24, &(disk.len() as u64).to_be_bytes());
    put(&mut image, 40, &(CLUSTER as u64).to_be_bytes());
    if kind == Kind::Extended {
        put(&mut image, 72, &16u64.to_be_bytes());
    }
    if let Some(path) = backing {
        put(&mut image, 8, &512u64.to_be_bytes());
        put(&mut image, 16, &(path.len() as u32).to_be_bytes());
        put(&mut image, 512, path.as_bytes());
    }
    put(&mut image, CLUSTER, &((2 * CLUSTER as u64) | (1 << 63)).to_be_bytes());
    for (index, cluster) in
        disk.chunks(CLUSTER).enumerate().filter(|(_, cluster)| cluster.iter().any(|byte| *byte != 0))
    {
        let at = image.len() as u64;
        let entry = match kind {
            Kind::Deflated => {
                let mut whole = cluster.to_vec();
                whole.resize(CLUSTER, 0);
                let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
                encoder.write_all(&whole).expect("memory");
                let compressed = encoder.finish().expect("memory");
                image.extend_from_slice(&compressed);
                let sectors = (at % 512 + compressed.len() as u64 - 1) / 512;
                1 << 62 | sectors << 54 | at
            }
            Kind::Empty => continue,
            _ => {
                image.resize(image.len().next_multiple_of(CLUSTER), 0);
                let at = image.len() as u64;
                image.extend_from_slice(cluster);
                image.resize(image.len().next_multiple_of(CLUSTER), 0);
                at | 1 << 63
            }
        };
        put(&mut image, 2 * CLUSTER + index * entry_bytes, &entry.to_be_bytes());
        if kind == Kind::Extended {
            let there = cluster.chunks(CLUSTER / 32).enumerate();
            let bitmap = there.fold(0u64, |bitmap, (part, bytes)| {
                bitmap | if bytes.iter().any(|byte| *byte != 0) { 1 << part } else { 1 << (32 + part) }
            });
            put(&mut image, 2 * CLUSTER + index * entry_bytes + 8, &bitmap.to_be_bytes());
        }
    }
    image
}
