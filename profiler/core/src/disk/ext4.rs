//! Files of an ext4 file system by the numbers of their inodes (Linux, `Documentation/filesystems/ext4`), while a guest has it mounted.
//!
//! A file is found by its inode, and so without its name, which it may not have any more. Nothing is loaded but what a read needs: five numbers of
//! the superblock, and then for each read a node of the file's tree of extents at each level. That makes what a hostile file system can do as small as
//! what is read of it, and a file system that changes meanwhile no special case.
//!
//! The journal is not replayed: what is only in there is also in the guest's page cache, with which all that is read is compared.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::bytes::{half, read, short};
use super::kinds;
use crate::elf::ReadAt;

/// Where the superblock is, and how much of it is read.
const SUPERBLOCK: u64 = 1024;
const SUPERBLOCK_BYTES: usize = 512;
const MAGIC: u16 = 0xef53;
/// Blocks have 1 to 64 KiB.
const BLOCK_BITS_MAX: u32 = 16;
/// The bytes of an inode that are read, and those of one in file systems of the first revision.
const INODE_BYTES: usize = 128;
/// Features without which a file system is not read as it is meant: blocks with 64 bits, and what changes the place of descriptors.
const WIDE: u32 = 0x80;
const META_GROUPS: u32 = 0x10;
const EXTENTS: u32 = 0x40;
/// What is compatible with reading files: types in directories, a journal that is not replayed, extents, 64 bits, protection against two mounts,
/// flexible groups, values of attributes in inodes, a seed of checksums, large directories, contents in inodes, encrypted files, names in any case.
const KNOWN: u32 = 0x2 | 0x4 | EXTENTS | WIDE | 0x100 | 0x200 | 0x400 | 0x2000 | 0x4000 | 0x8000 | 0x1_0000 | 0x2_0000;
/// Flags of an inode.
const HAS_EXTENTS: u32 = 0x8_0000;
const ENCRYPTED: u32 = 0x800;
/// The kind of an inode in its mode, and an ordinary file.
const KIND: u16 = 0xf000;
const ORDINARY: u16 = 0x8000;
/// The root of a file's tree, in its inode.
const ROOT: Range<usize> = 40..100;
const NODE_MAGIC: u16 = 0xf30a;
const ENTRY_BYTES: usize = 12;
/// The most levels of a tree below its root.
const DEPTH_MAX: u16 = 5;
/// A longer extent is allocated and not written yet, and so many blocks shorter.
const LENGTH_MAX: u16 = 1 << 15;

/// Why a disk or partition has no files for us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotRead {
    /// It is something else, that is known by this name.
    Other(&'static str),
    /// It is ext4 with this, which is not written.
    Feature(&'static str),
    /// It is nothing that is recognized.
    Unknown,
}

/// A file system.
#[derive(Clone)]
pub struct Ext4 {
    disk: Arc<dyn ReadAt>,
    start: u64,
    block_bits: u32,
    blocks: u64,
    inodes: u32,
    inodes_per_group: u32,
    inode_bytes: u64,
    descriptors: u64,
    descriptor_bytes: u64,
    /// What identifies it, until it is copied.
    pub uuid: [u8; 16],
}

impl Ext4 {
    /// The file system in a range of a disk.
    pub fn open(disk: Arc<dyn ReadAt>, range: &Range<u64>) -> Result<Ext4, NotRead> {
        let other = || kinds::of(&*disk, range.start).map_or(NotRead::Unknown, NotRead::Other);
        let superblock: Option<[u8; SUPERBLOCK_BYTES]> =
            range.start.checked_add(SUPERBLOCK).and_then(|at| read(&*disk, at));
        let superblock = superblock.filter(|bytes| short(bytes, 56) == Some(MAGIC)).ok_or_else(other)?;
        Ext4::of(Arc::clone(&disk), range, &superblock).ok_or(NotRead::Feature("a damaged superblock"))?
    }

    fn of(disk: Arc<dyn ReadAt>, range: &Range<u64>, superblock: &[u8]) -> Option<Result<Ext4, NotRead>> {
        let number = |at| half(superblock, at);
        let features = number(0x60)?;
        if features & META_GROUPS != 0 {
            return Some(Err(NotRead::Feature("meta block groups (meta_bg)")));
        }
        if features & !KNOWN != 0 {
            return Some(Err(NotRead::Feature("features of a newer Linux")));
        }
        let is_wide = features & WIDE != 0;
        let block_bits = number(0x18)?.checked_add(10).filter(|bits| *bits <= BLOCK_BITS_MAX)?;
        let high = if is_wide { number(0x150)? } else { 0 };
        let has_first_revision = number(0x4c)? == 0;
        let inode_bytes = if has_first_revision { INODE_BYTES as u64 } else { short(superblock, 0x58)?.into() };
        let descriptor_bytes = if is_wide { short(superblock, 0xfe)?.into() } else { 32 };
        let first_block: u64 = number(0x14)?.into();
        let is_valid = inode_bytes.is_power_of_two()
            && (INODE_BYTES as u64..=1 << block_bits).contains(&inode_bytes)
            && (32..=1024).contains(&descriptor_bytes)
            && (!is_wide || descriptor_bytes >= 64);
        is_valid.then_some(())?;
        Some(Ok(Ext4 {
            disk,
            start: range.start,
            block_bits,
            // No block is behind the end of its partition.
            blocks: (u64::from(high) << 32 | u64::from(number(4)?)).min((range.end - range.start) >> block_bits),
            inodes: number(0)?,
            inodes_per_group: number(0x28).filter(|count| *count > 0)?,
            inode_bytes,
            descriptors: first_block.checked_add(1)?.checked_mul(1 << block_bits)?,
            descriptor_bytes,
            uuid: superblock[0x68..0x78].try_into().ok()?,
        }))
    }

    /// Copies a part of a block.
    fn block(&self, block: u64, inside: u64, into: &mut [u8]) -> Option<()> {
        let end = inside.checked_add(into.len() as u64)?;
        let is_valid = block > 0 && block < self.blocks && end <= 1 << self.block_bits;
        (is_valid && self.disk.read_at(self.start.checked_add(block << self.block_bits)?.checked_add(inside)?, into))
            .then_some(())
    }

    /// The inode with a number.
    fn inode(&self, number: u64) -> Option<[u8; INODE_BYTES]> {
        let index = u32::try_from(number).ok().filter(|number| *number <= self.inodes)?.checked_sub(1)?;
        let (group, inside) = (u64::from(index / self.inodes_per_group), u64::from(index % self.inodes_per_group));
        let at = self.start.checked_add(self.descriptors)?.checked_add(group * self.descriptor_bytes)?;
        let descriptor: [u8; 32] = read(&*self.disk, at)?;
        let high: u32 = match self.descriptor_bytes {
            64.. => u32::from_le_bytes(read(&*self.disk, at.checked_add(0x28)?)?),
            _ => 0,
        };
        let table = u64::from(high) << 32 | u64::from(half(&descriptor, 8)?);
        let inside = inside * self.inode_bytes;
        let block = table.checked_add(inside >> self.block_bits)?;
        let mut inode = [0; INODE_BYTES];
        self.block(block, inside & ((1 << self.block_bits) - 1), &mut inode)?;
        Some(inode)
    }

    /// The file with an inode number, as it is now; `None` if there is none, or one of a kind that is not read: with the maps of blocks of ext2 and
    /// ext3, in its inode, or encrypted.
    pub fn file(&self, number: u64) -> Option<Ext4File> {
        let inode = self.inode(number)?;
        let flags = half(&inode, 32)?;
        let is_read = short(&inode, 0)? & KIND == ORDINARY && flags & HAS_EXTENTS != 0 && flags & ENCRYPTED == 0;
        let bytes = u64::from(half(&inode, 108)?) << 32 | u64::from(half(&inode, 4)?);
        is_read.then(|| Ext4File { of: self.clone(), number, bytes, last: Mutex::default() })
    }
}

/// Blocks of a file that follow each other on the disk.
#[derive(Debug, Clone, Copy)]
struct Extent {
    first: u64,
    count: u64,
    block: u64,
}

/// What a node of a tree has for a block of the file.
enum Step {
    Extent(Extent),
    /// The block of the node below.
    Below(u64),
    /// Nothing: it is a block of zeros.
    Hole,
}

/// The step for a block, in a node at so many levels above the leaves; `None` if the node is no such node, or the block is allocated and not written.
fn step(node: &[u8], depth: Option<u16>, block: u64) -> Option<(u16, Step)> {
    let (count, own_depth) = (short(node, 2)?, short(node, 6)?);
    let is_valid =
        short(node, 0)? == NODE_MAGIC && own_depth <= DEPTH_MAX && depth.is_none_or(|depth| depth == own_depth);
    is_valid.then_some(())?;
    let entries = node.get(ENTRY_BYTES..)?.chunks_exact(ENTRY_BYTES).take(count.into());
    // They are sorted by their first blocks.
    let before = entries.take_while(|entry| half(entry, 0).is_some_and(|first| u64::from(first) <= block));
    let Some(entry) = before.last() else { return Some((own_depth, Step::Hole)) };
    let first = u64::from(half(entry, 0)?);
    if own_depth > 0 {
        let below = u64::from(short(entry, 8)?) << 32 | u64::from(half(entry, 4)?);
        return Some((own_depth, Step::Below(below)));
    }
    let count = short(entry, 4)?;
    let extent =
        Extent { first, count: count.into(), block: u64::from(short(entry, 6)?) << 32 | u64::from(half(entry, 8)?) };
    let is_written = count <= LENGTH_MAX;
    match block - first < if is_written { extent.count } else { extent.count - u64::from(LENGTH_MAX) } {
        true => is_written.then_some((0, Step::Extent(extent))),
        false => Some((0, Step::Hole)),
    }
}

/// A file. What is allocated and not written cannot be read: the guest may have written it, and not noted that on the disk yet.
pub struct Ext4File {
    of: Ext4,
    number: u64,
    bytes: u64,
    /// Where the last read ended.
    last: Mutex<Option<Extent>>,
}

impl Ext4File {
    /// Where a block is; `Some(None)` of a hole.
    fn extent(&self, block: u64) -> Option<Option<Extent>> {
        let inode = self.of.inode(self.number)?;
        let (mut depth, mut step) = self::step(&inode[ROOT], None, block)?;
        let mut node = vec![0; 1 << self.of.block_bits];
        // Each level has its own depth, so this ends.
        loop {
            match step {
                Step::Extent(extent) => return Some(Some(extent)),
                Step::Hole => return Some(None),
                Step::Below(at) => {
                    self.of.block(at, 0, &mut node)?;
                    (depth, step) = self::step(&node, Some(depth.checked_sub(1)?), block)?;
                }
            }
        }
    }

    /// Copies a part of a block of the file.
    fn copy(&self, block: u64, inside: u64, into: &mut [u8]) -> Option<()> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let covers = |extent: &Extent| block.checked_sub(extent.first).is_some_and(|further| further < extent.count);
        let extent = match last.filter(covers) {
            Some(extent) => extent,
            None => match self.extent(block)? {
                Some(extent) => extent,
                None => {
                    into.fill(0);
                    return Some(());
                }
            },
        };
        *last = Some(extent);
        self.of.block(extent.block.checked_add(block - extent.first)?, inside, into)
    }
}

impl ReadAt for Ext4File {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn has_holes(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> bool {
        if offset.checked_add(into.len() as u64).is_none_or(|end| end > self.bytes) {
            return false;
        }
        let (mut done, block_bytes) = (0, 1 << self.of.block_bits);
        while done < into.len() {
            let at = offset + done as u64;
            let inside = at % block_bytes;
            let count = usize::try_from(block_bytes - inside).unwrap_or(usize::MAX).min(into.len() - done);
            if self.copy(at / block_bytes, inside, &mut into[done..done + count]).is_none() {
                return false;
            }
            done += count;
        }
        true
    }
}
