//! The bytes on the disk of the upload queue: superblock, index and entries. Pure functions over byte slices, for the service and for what reads
//! its disk from outside.
//!
//! `docs/formats/upload-queue.md` describes every byte and the rules for writing them.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;
use xxhash_rust::xxh3::Xxh3;

mod fault;
mod log;
mod pages;
mod slots;
mod table;
mod uploads;
pub use fault::Fault;
pub use log::{LOG_ENTRIES, LogBlock, LogEnd, log_blocks, replay};
pub use pages::{
    Checkpoint, CheckpointSlot, LOG_BLOCKS_MIN, Layout, NoCheckpoint, PAGE_ENTRIES, decode_page, newest_checkpoint,
};
pub use slots::{Newest, Slot, decode_slot, encode_slot, newest, slot_used_bytes};
pub use table::{Contents, Places, Table};
pub use uploads::{UploadEntry, UploadName, UploadProgress};

/// The unit of the format, whatever the device's sector size.
pub const BLOCK_BYTES: usize = 4096;
/// Each byte of the first block of a slot that was cleared.
pub const CLEARED: u8 = 0xff;
/// The version of a queue, and of index slots, without uploads that can be resumed.
pub const VERSION_1: u32 = 1;
/// The version of a queue that had such uploads, and of slots that have some.
pub const VERSION_2: u32 = 2;
/// The version of a queue whose index is pages and a log.
pub const VERSION_3: u32 = 3;
/// Blocks of an index slot at most: room for 4095 items.
pub const SLOT_BLOCKS_MAX: u32 = 64;
/// Pieces that one item may be stored in.
pub const EXTENTS_MAX: usize = 5;

/// The largest sequence and the largest next id of a valid index: no disk survives so many commits, and
/// counting on from here does not overflow.
pub const NUMBER_MAX: u64 = u64::MAX / 2;

const SUPERBLOCK_MAGIC: [u8; 8] = *b"GLSQUEUE";
/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 64;
const HEADER_BYTES: usize = 64;
/// The part of block 0 that is used: a sector of the smallest size, because a
/// power cut leaves it either old or new.
const SUPERBLOCK_BYTES: usize = 512;
const SUPERBLOCK_CHECKSUM: Range<usize> = 32..40;

/// The layout of a device of version 1 or 2: two numbers in the superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Blocks that the queue uses, from the start of the device on.
    pub total_blocks: u32,
    /// Blocks of each of the two index slots.
    pub slot_blocks: u32,
}

impl Geometry {
    /// First block of index slot 0 or 1.
    pub fn slot_start(&self, slot: u64) -> u32 {
        1 + (slot % 2) as u32 * self.slot_blocks
    }

    /// Bytes of an index slot.
    pub fn slot_bytes(&self) -> usize {
        self.slot_blocks as usize * BLOCK_BYTES
    }

    /// First block that holds data.
    pub fn data_start(&self) -> u32 {
        1 + 2 * self.slot_blocks
    }

    /// Items that an index slot has room for.
    pub fn items_max(&self) -> usize {
        (self.slot_bytes() - HEADER_BYTES) / ENTRY_BYTES
    }
}

/// Whether the device was formatted to the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SuperblockState {
    /// Formatting started; the index may have any content, and no item was ever accepted.
    Formatting,
    /// The queue is in use.
    Ready,
}

/// Where the index is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexPlace {
    /// Versions 1 and 2.
    Slots {
        /// [`VERSION_1`] until an index of [`VERSION_2`] was written.
        version: u32,
        /// Where they are.
        geometry: Geometry,
    },
    /// Version 3.
    Pages(Layout),
}

impl IndexPlace {
    /// The version of the queue.
    pub fn version(&self) -> u32 {
        match self {
            IndexPlace::Slots { version, .. } => *version,
            IndexPlace::Pages(_) => VERSION_3,
        }
    }

    /// Blocks that the queue uses.
    pub fn total_blocks(&self) -> u32 {
        match self {
            IndexPlace::Slots { geometry, .. } => geometry.total_blocks,
            IndexPlace::Pages(layout) => layout.total_blocks,
        }
    }

    /// The blocks of the index.
    pub fn index(&self) -> Range<u32> {
        match self {
            IndexPlace::Slots { geometry, .. } => 1..geometry.data_start(),
            IndexPlace::Pages(layout) => layout.index(),
        }
    }

    /// Blocks that hold data.
    pub fn data_blocks(&self) -> u32 {
        self.total_blocks() - 1 - self.index().len() as u32
    }

    /// Entries that the index has room for.
    pub fn items_max(&self) -> usize {
        match self {
            IndexPlace::Slots { geometry, .. } => geometry.items_max(),
            IndexPlace::Pages(layout) => layout.entries_max(),
        }
    }
}

/// The content of block 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superblock {
    /// Where the index is, and the version by that.
    pub place: IndexPlace,
    /// Whether it may be used.
    pub state: SuperblockState,
}

/// A superblock, ready to be written to block 0.
pub fn encode_superblock(superblock: &Superblock, block: &mut [u8]) {
    let Superblock { place, state } = superblock;
    block.fill(0);
    let block = &mut block[..SUPERBLOCK_BYTES];
    block[0..8].copy_from_slice(&SUPERBLOCK_MAGIC);
    block[8..12].copy_from_slice(&place.version().to_le_bytes());
    let state: u32 = match state {
        SuperblockState::Formatting => 1,
        SuperblockState::Ready => 2,
    };
    block[12..16].copy_from_slice(&state.to_le_bytes());
    block[16..24].copy_from_slice(&u64::from(place.total_blocks()).to_le_bytes());
    match place {
        IndexPlace::Slots { geometry, .. } => block[24..28].copy_from_slice(&geometry.slot_blocks.to_le_bytes()),
        IndexPlace::Pages(layout) => {
            block[24..28].copy_from_slice(&layout.index_start.to_le_bytes());
            block[28..32].copy_from_slice(&layout.log_blocks.to_le_bytes());
            block[40..44].copy_from_slice(&layout.pages_max.to_le_bytes());
        }
    }
    let checksum = checksum_without(block, SUPERBLOCK_CHECKSUM);
    block[SUPERBLOCK_CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
}

/// Reads block 0. `Ok(None)` when it does not start with our magic.
pub fn decode_superblock(block: &[u8]) -> Result<Option<Superblock>, Fault> {
    let block = &block[..SUPERBLOCK_BYTES];
    if block[0..8] != SUPERBLOCK_MAGIC {
        return Ok(None);
    }
    let version = u32_at(block, 8);
    if !(VERSION_1..=VERSION_3).contains(&version) {
        return Err(Fault::Version(version));
    }
    check_sum(u64_at(block, SUPERBLOCK_CHECKSUM.start), checksum_without(block, SUPERBLOCK_CHECKSUM))?;
    let (blocks, second) = (u64_at(block, 16), u32_at(block, 24));
    let total_blocks = u32::try_from(blocks).unwrap_or(0);
    let place = if version == VERSION_3 {
        let (log_blocks, pages_max) = (u32_at(block, 28), u32_at(block, 40));
        let layout = Layout { total_blocks, index_start: second, log_blocks, pages_max };
        if !layout.is_valid() {
            return Err(Fault::Layout { total_blocks: blocks, index_start: second, log_blocks, pages_max });
        }
        IndexPlace::Pages(layout)
    } else {
        let geometry = Geometry { total_blocks, slot_blocks: second };
        if second == 0 || second > SLOT_BLOCKS_MAX || geometry.data_start() >= total_blocks {
            return Err(Fault::Geometry { total_blocks: blocks, slot_blocks: second });
        }
        IndexPlace::Slots { version, geometry }
    };
    let state = match u32_at(block, 12) {
        1 => SuperblockState::Formatting,
        2 => SuperblockState::Ready,
        state => return Err(Fault::State(state)),
    };
    Ok(Some(Superblock { place, state }))
}

/// A run of blocks on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Extent {
    /// Number of the first block, counted from the start of the device.
    pub start: u32,
    /// Number of blocks; 0 in an unused place.
    pub blocks: u32,
}

impl Extent {
    /// The block after the last one.
    pub fn end(&self) -> u64 {
        u64::from(self.start) + u64::from(self.blocks)
    }
}

/// One item of the queue as in the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Ascending in order of completion; never used twice by one queue.
    pub id: u64,
    /// Length of the data in bytes.
    pub length: u64,
    /// xxh3-64 of the data.
    pub checksum: u64,
    /// Where the data is; unused places at the end have no blocks.
    pub extents: [Extent; EXTENTS_MAX],
}

/// The contents of an index slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    /// Counts commits; its lowest bit is the number of its slot.
    pub sequence: u64,
    /// The id that the next item gets.
    pub next_id: u64,
    /// The queue, oldest completion first.
    pub entries: Vec<Entry>,
    /// Uploads that clients may resume, and those that were completed lately.
    pub uploads: Vec<UploadEntry>,
}

/// An entry as on the disk; all zero in a free place.
pub type EntryBytes = [u8; ENTRY_BYTES];

impl Entry {
    /// As on the disk.
    pub fn encoded(&self) -> EntryBytes {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[0..8].copy_from_slice(&self.id.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.length.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.checksum.to_le_bytes());
        for (extent, place) in self.extents.iter().zip(bytes[24..].chunks_exact_mut(8)) {
            place[..4].copy_from_slice(&extent.start.to_le_bytes());
            place[4..].copy_from_slice(&extent.blocks.to_le_bytes());
        }
        bytes
    }
}

fn decode_entry(bytes: &[u8]) -> Entry {
    let mut extents = [Extent::default(); EXTENTS_MAX];
    for (extent, place) in extents.iter_mut().zip(bytes[24..].chunks_exact(8)) {
        *extent = Extent { start: u32_at(place, 0), blocks: u32_at(place, 4) };
    }
    Entry { id: u64_at(bytes, 0), length: u64_at(bytes, 8), checksum: u64_at(bytes, 16), extents }
}

/// Whether `extents` are places for so many bytes; each is given to `each`.
fn check_extents(
    place: IndexPlace,
    bytes: u64,
    extents: &[Extent; EXTENTS_MAX],
    mut each: impl FnMut(Extent),
) -> Result<(), &'static str> {
    let (mut blocks, index) = (0, place.index());
    for (number, extent) in extents.iter().enumerate() {
        if extent.blocks == 0 {
            if extents[number..].iter().any(|extent| *extent != Extent::default()) {
                return Err("it has a gap among its extents");
            }
            break;
        }
        let is_in_index = extent.start < index.end && extent.end() > u64::from(index.start);
        if extent.start == 0 || is_in_index || extent.end() > u64::from(place.total_blocks()) {
            return Err("an extent is outside of the data area");
        }
        blocks += u64::from(extent.blocks);
        each(*extent);
    }
    if blocks == bytes.div_ceil(BLOCK_BYTES as u64) { Ok(()) } else { Err("its extents do not match its length") }
}

fn check_sum(stored: u64, computed: u64) -> Result<(), Fault> {
    if stored == computed { Ok(()) } else { Err(Fault::Checksum { stored, computed }) }
}

/// A new hasher, in memory of its own: it has more than half a KiB, which would be in the frame of each function that moves a transfer.
#[inline(never)]
pub fn hasher() -> Box<Xxh3> {
    Box::new(Xxh3::new())
}

/// Where blocks of an index have their checksum.
const CHECKSUM: Range<usize> = 56..64;

/// Puts the checksum of a block of an index into it, and returns it.
fn seal(block: &mut [u8]) -> u64 {
    let checksum = checksum_without(block, CHECKSUM);
    block[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
    checksum
}

/// Fails unless a block of an index starts with `magic` and has its checksum, which is returned.
fn check_sealed(block: &[u8], magic: [u8; 8]) -> Result<u64, Fault> {
    if block[0..8] != magic {
        return Err(Fault::Magic);
    }
    let stored = u64_at(block, CHECKSUM.start);
    check_sum(stored, checksum_without(block, CHECKSUM))?;
    Ok(stored)
}

/// xxh3-64 of `bytes` as if those in `place` were zero.
fn checksum_without(bytes: &[u8], place: Range<usize>) -> u64 {
    let mut hasher = hasher();
    hasher.update(&bytes[..place.start]);
    hasher.update(&[0; 8][..place.len()]);
    hasher.update(&bytes[place.end..]);
    hasher.digest()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod pages_tests;
#[cfg(test)]
mod tests;
