//! The bytes on the disk of the upload queue: superblock, index slots and entries. Pure functions over byte slices, for the service and for what reads
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
mod uploads;
pub use fault::Fault;
pub use uploads::{UploadEntry, UploadName, UploadProgress};

/// The unit of the format, whatever the device's sector size.
pub const BLOCK_BYTES: usize = 4096;
/// Each byte of the first block of a slot that was cleared.
pub const CLEARED: u8 = 0xff;
/// The version of a queue, and of index slots, without uploads that can be resumed.
pub const VERSION_1: u32 = 1;
/// The version of a queue that had such uploads, and of slots that have some.
pub const VERSION_2: u32 = 2;
/// Blocks of an index slot at most: room for 4095 items.
pub const SLOT_BLOCKS_MAX: u32 = 64;
/// One block of this many becomes part of each index slot, up to [`SLOT_BLOCKS_MAX`].
pub const BLOCKS_PER_SLOT_BLOCK: u32 = 256;
/// Pieces that one item may be stored in.
pub const EXTENTS_MAX: usize = 5;

/// The largest sequence and the largest next id of a valid index: no disk survives so many commits, and
/// counting on from here does not overflow.
pub const NUMBER_MAX: u64 = u64::MAX / 2;

const SUPERBLOCK_MAGIC: [u8; 8] = *b"GLSQUEUE";
const SLOT_MAGIC: [u8; 8] = *b"GLSINDEX";
const ENTRY_BYTES: usize = 64;
const HEADER_BYTES: usize = 64;
/// The part of block 0 that is used: a sector of the smallest size, because a
/// power cut leaves it either old or new.
const SUPERBLOCK_BYTES: usize = 512;
const SUPERBLOCK_CHECKSUM: Range<usize> = 32..40;
const SLOT_CHECKSUM: Range<usize> = 56..64;

/// The layout of a device: two numbers in the superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Blocks that the queue uses, from the start of the device on.
    pub total_blocks: u32,
    /// Blocks of each of the two index slots.
    pub slot_blocks: u32,
}

impl Geometry {
    /// The layout for a new queue on a device of `size_bytes`; `None` when it is too small to hold
    /// one block of data. At most 16 TiB are used, because block numbers have 32 bits.
    pub fn for_device(size_bytes: u64) -> Option<Geometry> {
        let total_blocks = u32::try_from(size_bytes / BLOCK_BYTES as u64).unwrap_or(u32::MAX);
        let slot_blocks = (total_blocks / BLOCKS_PER_SLOT_BLOCK).clamp(1, SLOT_BLOCKS_MAX);
        let geometry = Geometry { total_blocks, slot_blocks };
        (geometry.data_start() < total_blocks).then_some(geometry)
    }

    /// This layout with all blocks of a device of `size_bytes`; `None` when it has no more than now. The slots stay, because data begins
    /// behind them: so does the number of items.
    pub fn grown(&self, size_bytes: u64) -> Option<Geometry> {
        let total_blocks = Geometry::for_device(size_bytes)?.total_blocks;
        (total_blocks > self.total_blocks).then_some(Geometry { total_blocks, ..*self })
    }

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

    /// Blocks that hold data.
    pub fn data_blocks(&self) -> u32 {
        self.total_blocks - self.data_start()
    }

    /// Items that an index slot has room for.
    pub fn items_max(&self) -> usize {
        (self.slot_bytes() - HEADER_BYTES) / ENTRY_BYTES
    }
}

/// Whether the device was formatted to the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SuperblockState {
    /// Formatting started; the slots may have any content, and no item was ever accepted.
    Formatting,
    /// The queue is in use.
    Ready,
}

/// The content of block 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superblock {
    /// [`VERSION_1`] until the first index of [`VERSION_2`] is written: programs that do not read that one must not use the other slot.
    pub version: u32,
    /// The layout.
    pub geometry: Geometry,
    /// Whether it may be used.
    pub state: SuperblockState,
}

/// A superblock, ready to be written to block 0.
pub fn encode_superblock(superblock: &Superblock, block: &mut [u8]) {
    let Superblock { version, geometry, state } = superblock;
    block.fill(0);
    let block = &mut block[..SUPERBLOCK_BYTES];
    block[0..8].copy_from_slice(&SUPERBLOCK_MAGIC);
    block[8..12].copy_from_slice(&version.to_le_bytes());
    let state: u32 = match state {
        SuperblockState::Formatting => 1,
        SuperblockState::Ready => 2,
    };
    block[12..16].copy_from_slice(&state.to_le_bytes());
    block[16..24].copy_from_slice(&u64::from(geometry.total_blocks).to_le_bytes());
    block[24..28].copy_from_slice(&geometry.slot_blocks.to_le_bytes());
    let checksum = checksum_without(block, SUPERBLOCK_CHECKSUM);
    block[SUPERBLOCK_CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
}

/// Reads block 0. `Ok(None)` when it does not start with our magic.
pub fn decode_superblock(block: &[u8]) -> Result<Option<Superblock>, Fault> {
    let block = &block[..SUPERBLOCK_BYTES];
    if block[0..8] != SUPERBLOCK_MAGIC {
        return Ok(None);
    }
    let version = checked_version(u32_at(block, 8))?;
    check_sum(u64_at(block, SUPERBLOCK_CHECKSUM.start), checksum_without(block, SUPERBLOCK_CHECKSUM))?;
    let total_blocks = u64_at(block, 16);
    let slot_blocks = u32_at(block, 24);
    let geometry = match u32::try_from(total_blocks) {
        Ok(total_blocks) => Geometry { total_blocks, slot_blocks },
        Err(_) => return Err(Fault::Geometry { total_blocks, slot_blocks }),
    };
    if slot_blocks == 0 || slot_blocks > SLOT_BLOCKS_MAX || geometry.data_start() >= geometry.total_blocks {
        return Err(Fault::Geometry { total_blocks, slot_blocks });
    }
    let state = match u32_at(block, 12) {
        1 => SuperblockState::Formatting,
        2 => SuperblockState::Ready,
        state => return Err(Fault::State(state)),
    };
    Ok(Some(Superblock { version, geometry, state }))
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

/// The content of an index slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Slot {
    /// Never written: the header is all zero.
    Empty,
    /// Whole and consistent.
    Valid(Index),
    /// Not whole: a commit was cut short here, or the blocks are damaged.
    Invalid(Fault),
}

/// What two slots have together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Newest {
    /// The index of the queue.
    pub index: Index,
    /// The slot that cannot be used, and why.
    pub broken_slot: Option<(u64, Fault)>,
}

/// The index of the queue, out of slots 0 and 1. Without a valid one, why each of them is not; `None` if it was never written.
pub fn newest(slots: [Slot; 2]) -> Result<Newest, [Option<Fault>; 2]> {
    let (index, broken_slot) = match slots.into() {
        (Slot::Valid(first), Slot::Valid(second)) if first.sequence > second.sequence => (first, None),
        (Slot::Valid(_), Slot::Valid(second)) => (second, None),
        (Slot::Valid(index), Slot::Invalid(fault)) => (index, Some((1, fault))),
        (Slot::Invalid(fault), Slot::Valid(index)) => (index, Some((0, fault))),
        // A new queue has one slot only; later on, both were written.
        (Slot::Empty, Slot::Valid(index)) if index.sequence == 1 => (index, None),
        (Slot::Empty, Slot::Valid(index)) => (index, Some((0, Fault::Magic))),
        (Slot::Valid(index), Slot::Empty) => (index, Some((1, Fault::Magic))),
        (first, second) => {
            return Err([first, second].map(|slot| match slot {
                Slot::Invalid(fault) => Some(fault),
                _ => None,
            }));
        }
    };
    Ok(Newest { index, broken_slot })
}

/// Blocks that a slot with `count` entries fills; only these are written and checked.
pub fn slot_used_bytes(count: usize) -> usize {
    (HEADER_BYTES + count * ENTRY_BYTES).next_multiple_of(BLOCK_BYTES)
}

/// Writes the header and `entries` to the start of `slot` and returns how many bytes of it to
/// write to the device.
///
/// # Panics
/// When `slot` has no room for the entries: the caller counts them before it accepts items and uploads.
pub fn encode_slot(
    sequence: u64,
    next_id: u64,
    entries: impl Iterator<Item = Entry> + Clone,
    uploads: &[UploadEntry],
    slot: &mut [u8],
) -> usize {
    let item_count = entries.clone().count();
    let count = item_count + uploads.iter().map(UploadEntry::entries).sum::<usize>();
    let version = if uploads.is_empty() { VERSION_1 } else { VERSION_2 };
    let used = slot_used_bytes(count);
    let slot = &mut slot[..used];
    slot.fill(0);
    slot[0..8].copy_from_slice(&SLOT_MAGIC);
    slot[8..12].copy_from_slice(&version.to_le_bytes());
    slot[12..16].copy_from_slice(&(count as u32).to_le_bytes());
    slot[16..24].copy_from_slice(&sequence.to_le_bytes());
    slot[24..32].copy_from_slice(&next_id.to_le_bytes());
    let mut places = slot[HEADER_BYTES..].chunks_exact_mut(ENTRY_BYTES);
    for (entry, place) in entries.zip(&mut places) {
        encode_entry(&entry, place);
    }
    for upload in uploads {
        upload.encode(&mut places);
    }
    let checksum = checksum_without(slot, SLOT_CHECKSUM);
    slot[SLOT_CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
    used
}

fn encode_entry(entry: &Entry, bytes: &mut [u8]) {
    bytes[0..8].copy_from_slice(&entry.id.to_le_bytes());
    bytes[8..16].copy_from_slice(&entry.length.to_le_bytes());
    bytes[16..24].copy_from_slice(&entry.checksum.to_le_bytes());
    for (extent, place) in entry.extents.iter().zip(bytes[24..].chunks_exact_mut(8)) {
        place[..4].copy_from_slice(&extent.start.to_le_bytes());
        place[4..].copy_from_slice(&extent.blocks.to_le_bytes());
    }
}

/// Reads index slot `number` (0 or 1), whose bytes are `slot`.
pub fn decode_slot(geometry: Geometry, number: u64, slot: &[u8]) -> Slot {
    if slot[..HEADER_BYTES].iter().all(|&byte| byte == 0) {
        return Slot::Empty;
    }
    match decode_written_slot(geometry, number, slot) {
        Ok(index) => Slot::Valid(index),
        Err(fault) => Slot::Invalid(fault),
    }
}

fn decode_written_slot(geometry: Geometry, number: u64, slot: &[u8]) -> Result<Index, Fault> {
    if slot[0..8] != SLOT_MAGIC {
        return Err(Fault::Magic);
    }
    let version = checked_version(u32_at(slot, 8))?;
    let (count, count_max) = (u32_at(slot, 12), geometry.items_max() as u32);
    if count > count_max {
        return Err(Fault::Count { count, count_max });
    }
    let used = &slot[..slot_used_bytes(count as usize)];
    check_sum(u64_at(used, SLOT_CHECKSUM.start), checksum_without(used, SLOT_CHECKSUM))?;
    let places = || used[HEADER_BYTES..].chunks_exact(ENTRY_BYTES).take(count as usize);
    // In version 1 all entries are items.
    let item_count = places().take_while(|place| version == VERSION_1 || !uploads::is_of_upload(place)).count();
    let index = Index {
        sequence: u64_at(used, 16),
        next_id: u64_at(used, 24),
        entries: places().take(item_count).map(decode_entry).collect(),
        uploads: uploads::decode(item_count, places().skip(item_count))?,
    };
    if index.sequence.max(index.next_id) > NUMBER_MAX {
        return Err(Fault::Number(index.sequence.max(index.next_id)));
    }
    if index.sequence % 2 != number % 2 {
        return Err(Fault::Sequence(index.sequence));
    }
    check_entries(geometry, &index)?;
    Ok(index)
}

fn decode_entry(bytes: &[u8]) -> Entry {
    let mut extents = [Extent::default(); EXTENTS_MAX];
    for (extent, place) in extents.iter_mut().zip(bytes[24..].chunks_exact(8)) {
        *extent = Extent { start: u32_at(place, 0), blocks: u32_at(place, 4) };
    }
    Entry { id: u64_at(bytes, 0), length: u64_at(bytes, 8), checksum: u64_at(bytes, 16), extents }
}

/// A slot with a right checksum was written by a queue; entries that are nevertheless wrong come
/// from a bug or a forgery, and using them could overwrite data of other items.
fn check_entries(geometry: Geometry, index: &Index) -> Result<(), Fault> {
    let mut ids_from = 0;
    let mut runs = Vec::new();
    for (position, entry) in index.entries.iter().enumerate() {
        if entry.id < ids_from || entry.id >= index.next_id {
            return Err(Fault::Entry { position, id: entry.id, what: "its id is out of order" });
        }
        ids_from = entry.id + 1;
        let checked = check_extents(geometry, entry.length, &entry.extents, |extent| runs.push((extent, position)));
        checked.map_err(|what| Fault::Entry { position, id: entry.id, what })?;
    }
    let mut position = index.entries.len();
    for (number, upload) in index.uploads.iter().enumerate() {
        let fault = |what| Err(Fault::Upload { position, what });
        if index.uploads[..number].iter().any(|other| other.name == upload.name) {
            return fault("another upload has its name");
        }
        match upload.progress {
            UploadProgress::Complete { id } if id >= index.next_id => return fault("no item had its id"),
            UploadProgress::Open { offset, .. } if upload.length.is_some_and(|length| length < offset) => {
                return fault("it has more bytes than its length");
            }
            UploadProgress::Open { offset, extents, .. } => {
                check_extents(geometry, offset, &extents, |extent| runs.push((extent, position))).or_else(fault)?;
            }
            UploadProgress::Complete { .. } => {}
        }
        position += upload.entries();
    }
    runs.sort_by_key(|(extent, _)| extent.start);
    for pair in runs.windows(2) {
        if pair[0].0.end() > u64::from(pair[1].0.start) {
            let (position, what) = (pair[0].1.max(pair[1].1), "it overlaps another item");
            return Err(match index.entries.get(position) {
                Some(entry) => Fault::Entry { position, id: entry.id, what },
                None => Fault::Upload { position, what },
            });
        }
    }
    Ok(())
}

/// Whether `extents` are places for so many bytes; each is given to `place`.
fn check_extents(
    geometry: Geometry,
    bytes: u64,
    extents: &[Extent; EXTENTS_MAX],
    mut place: impl FnMut(Extent),
) -> Result<(), &'static str> {
    let mut blocks = 0;
    for (number, extent) in extents.iter().enumerate() {
        if extent.blocks == 0 {
            if extents[number..].iter().any(|extent| *extent != Extent::default()) {
                return Err("it has a gap among its extents");
            }
            break;
        }
        if extent.start < geometry.data_start() || extent.end() > u64::from(geometry.total_blocks) {
            return Err("an extent is outside of the data area");
        }
        blocks += u64::from(extent.blocks);
        place(*extent);
    }
    if blocks == bytes.div_ceil(BLOCK_BYTES as u64) { Ok(()) } else { Err("its extents do not match its length") }
}

fn checked_version(version: u32) -> Result<u32, Fault> {
    if (VERSION_1..=VERSION_2).contains(&version) { Ok(version) } else { Err(Fault::Version(version)) }
}

fn check_sum(stored: u64, computed: u64) -> Result<(), Fault> {
    if stored == computed { Ok(()) } else { Err(Fault::Checksum { stored, computed }) }
}

/// A new hasher, in memory of its own: it has more than half a KiB, which would be in the frame of each function that moves a transfer.
#[inline(never)]
pub fn hasher() -> Box<Xxh3> {
    Box::new(Xxh3::new())
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
mod tests;
