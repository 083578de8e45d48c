//! Version 3 of the index: its layout, its pages, and the checkpoints that name which of them count.

use super::{
    BLOCK_BYTES, ENTRY_BYTES, EntryBytes, Fault, HEADER_BYTES, NUMBER_MAX, check_sealed, seal, u32_at, u64_at,
};
use alloc::vec::Vec;
use core::ops::Range;

/// Entries of a page: a block has its header and these.
pub const PAGE_ENTRIES: u32 = ((BLOCK_BYTES - HEADER_BYTES) / ENTRY_BYTES) as u32;
/// Blocks of a log at least.
pub const LOG_BLOCKS_MIN: u32 = 8;
/// Blocks of a log at most: half a MiB, which a start reads.
const LOG_BLOCKS_MAX: u32 = 128;
/// Blocks of a log for each page, within these bounds.
const LOG_BLOCKS_PER_PAGE: u32 = 2;
/// Blocks of a device for one page.
const BLOCKS_PER_PAGE: u32 = 256;
/// Pages at most: 16.5 million entries, of which a start reads 1 GiB.
const PAGES_MAX: u32 = 1 << 18;

const PAGE_MAGIC: [u8; 8] = *b"GLSQPAGE";
const CHECKPOINT_MAGIC: [u8; 8] = *b"GLSCHECK";

/// Where the parts of an index of version 3 are: two places for a checkpoint, the log, and two areas with a place for each page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Blocks that the queue uses, from the start of the device on.
    pub total_blocks: u32,
    /// First block of the index.
    pub index_start: u32,
    /// Blocks of the log.
    pub log_blocks: u32,
    /// Pages that there is room for.
    pub pages_max: u32,
}

impl Layout {
    /// The layout for a new queue on a device of `size_bytes`; `None` when it is too small to hold one block of data. At most 16 TiB are used,
    /// because block numbers have 32 bits.
    pub fn for_device(size_bytes: u64) -> Option<Layout> {
        let total_blocks = u32::try_from(size_bytes / BLOCK_BYTES as u64).unwrap_or(u32::MAX);
        let layout = Layout::with_pages(total_blocks, 1, (total_blocks / BLOCKS_PER_PAGE).clamp(1, PAGES_MAX));
        layout.is_valid().then_some(layout)
    }

    /// The layout of a queue of so many blocks with room for `pages_max` pages, 1 at least.
    pub fn with_pages(total_blocks: u32, index_start: u32, pages_max: u32) -> Layout {
        let log_blocks = pages_max.saturating_mul(LOG_BLOCKS_PER_PAGE).clamp(LOG_BLOCKS_MIN, LOG_BLOCKS_MAX);
        Layout { total_blocks, index_start, log_blocks, pages_max }
    }

    /// Whether its parts are on the device and at least one block is left for data.
    pub(super) fn is_valid(&self) -> bool {
        let end = u64::from(self.index_start) + self.index_blocks();
        (1..=PAGES_MAX).contains(&self.pages_max)
            && (LOG_BLOCKS_MIN..=LOG_BLOCKS_MAX).contains(&self.log_blocks)
            && self.index_start > 0
            && end <= u64::from(self.total_blocks)
            && 1 + self.index_blocks() < u64::from(self.total_blocks)
    }

    /// Blocks of the whole index.
    pub fn index_blocks(&self) -> u64 {
        2 * u64::from(self.checkpoint_blocks()) + u64::from(self.log_blocks) + 2 * u64::from(self.pages_max)
    }

    /// The blocks of the index.
    pub fn index(&self) -> Range<u32> {
        self.index_start..self.index_start + self.index_blocks() as u32
    }

    /// Entries that there is room for.
    pub fn entries_max(&self) -> usize {
        self.pages_max as usize * PAGE_ENTRIES as usize
    }

    /// Blocks of a checkpoint.
    pub fn checkpoint_blocks(&self) -> u32 {
        checkpoint_used_bytes(self.pages_max).div_ceil(BLOCK_BYTES) as u32
    }

    /// First block of checkpoint `number`: it is in one of two places.
    pub fn checkpoint_start(&self, number: u64) -> u32 {
        self.index_start + (number % 2) as u32 * self.checkpoint_blocks()
    }

    /// First block of the log.
    pub fn log_start(&self) -> u32 {
        self.index_start + 2 * self.checkpoint_blocks()
    }

    /// Where log block `number` is.
    pub fn log_place(&self, number: u64) -> u32 {
        self.log_start() + (number % u64::from(self.log_blocks)) as u32
    }

    /// Where a page is, in the second area or in the first one.
    pub fn page_place(&self, page: u32, is_second: bool) -> u32 {
        self.log_start() + self.log_blocks + u32::from(is_second) * self.pages_max + page
    }
}

/// Which pages an index has, and from where on its log continues them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// Counts checkpoints; its lowest bit is its place.
    pub number: u64,
    /// The pages have the changes of all commits up to this one; those after it are in the log, and perhaps in the pages.
    pub sequence: u64,
    /// Larger than the id of every item of these.
    pub next_id: u64,
    /// The log block of the next commit.
    pub log_block: u64,
    /// The sum of the checksums of all pages, without what overflows.
    pub sum: u64,
    /// For each page whether it is in the second area.
    pub places: Vec<bool>,
}

/// What is in the place of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckpointSlot {
    /// All zero: never written.
    Empty,
    /// Whole.
    Valid(Checkpoint),
    /// It was cut short, or is damaged.
    Invalid(Fault),
}

/// Bytes of a checkpoint of so many pages.
fn checkpoint_used_bytes(pages: u32) -> usize {
    HEADER_BYTES + (pages as usize).div_ceil(8)
}

impl Checkpoint {
    /// Writes it to the start of `bytes`, and returns how many bytes of that are written to the device.
    ///
    /// # Panics
    /// When there is no room for it.
    pub fn encode(&self, bytes: &mut [u8]) -> usize {
        let used = checkpoint_used_bytes(self.places.len() as u32).next_multiple_of(BLOCK_BYTES);
        let bytes = &mut bytes[..used];
        bytes.fill(0);
        bytes[0..8].copy_from_slice(&CHECKPOINT_MAGIC);
        for (at, word) in (8..).step_by(8).zip([self.number, self.sequence, self.next_id, self.log_block]) {
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        bytes[40..44].copy_from_slice(&(self.places.len() as u32).to_le_bytes());
        bytes[48..56].copy_from_slice(&self.sum.to_le_bytes());
        for (page, is_second) in self.places.iter().enumerate() {
            bytes[HEADER_BYTES + page / 8] |= u8::from(*is_second) << (page % 8);
        }
        seal(bytes);
        used
    }

    /// Reads what is in place `place` (0 or 1).
    pub fn decode(layout: Layout, place: u64, bytes: &[u8]) -> CheckpointSlot {
        if bytes[..HEADER_BYTES].iter().all(|&byte| byte == 0) {
            return CheckpointSlot::Empty;
        }
        match Checkpoint::decode_written(layout, place, bytes) {
            Ok(checkpoint) => CheckpointSlot::Valid(checkpoint),
            Err(fault) => CheckpointSlot::Invalid(fault),
        }
    }

    fn decode_written(layout: Layout, place: u64, bytes: &[u8]) -> Result<Checkpoint, Fault> {
        let pages = u32_at(bytes, 40).min(layout.pages_max);
        let used = &bytes[..checkpoint_used_bytes(pages).next_multiple_of(BLOCK_BYTES)];
        check_sealed(used, CHECKPOINT_MAGIC)?;
        if u32_at(bytes, 40) > layout.pages_max {
            return Err(Fault::Count { count: u32_at(bytes, 40), count_max: layout.pages_max });
        }
        let [number, sequence, next_id, log_block] = [8, 16, 24, 32].map(|at| u64_at(used, at));
        let largest = number.max(sequence).max(next_id).max(log_block);
        if largest > NUMBER_MAX {
            return Err(Fault::Number(largest));
        }
        if number % 2 != place % 2 {
            return Err(Fault::Sequence(number));
        }
        let places = (0..pages as usize).map(|page| used[HEADER_BYTES + page / 8] >> (page % 8) & 1 == 1).collect();
        Ok(Checkpoint { number, sequence, next_id, log_block, sum: u64_at(used, 48), places })
    }
}

/// Why the two places have no checkpoint; `None` of one that was never written.
pub type NoCheckpoint = [Option<Fault>; 2];

/// The newest checkpoint out of places 0 and 1, and the place that cannot be used if there is one. Without a valid one, why each is not;
/// `None` if it was never written.
pub fn newest_checkpoint(slots: [CheckpointSlot; 2]) -> Result<(Checkpoint, Option<(u64, Fault)>), NoCheckpoint> {
    use CheckpointSlot::{Empty, Invalid, Valid};
    Ok(match slots.into() {
        (Valid(first), Valid(second)) if first.number > second.number => (first, None),
        (Valid(_), Valid(second)) => (second, None),
        (Valid(checkpoint), Invalid(fault)) => (checkpoint, Some((1, fault))),
        (Invalid(fault), Valid(checkpoint)) => (checkpoint, Some((0, fault))),
        // A new index has one checkpoint; later on, both places were written.
        (Empty, Valid(checkpoint)) if checkpoint.number == 1 => (checkpoint, None),
        (Empty, Valid(checkpoint)) => (checkpoint, Some((0, Fault::Magic))),
        (Valid(checkpoint), Empty) => (checkpoint, Some((1, Fault::Magic))),
        (first, second) => {
            return Err([first, second].map(|slot| match slot {
                Invalid(fault) => Some(fault),
                _ => None,
            }));
        }
    })
}

/// Writes the header of a page around the entries that `bytes` has, and returns its checksum. `sequence` is the newest commit of which the page
/// has changes.
pub(super) fn seal_page(page: u32, sequence: u64, bytes: &mut [u8]) -> u64 {
    bytes[..HEADER_BYTES].fill(0);
    bytes[0..8].copy_from_slice(&PAGE_MAGIC);
    bytes[8..12].copy_from_slice(&page.to_le_bytes());
    bytes[16..24].copy_from_slice(&sequence.to_le_bytes());
    seal(bytes)
}

/// Checks the header of a page, and returns its checksum and its sequence.
pub fn decode_page(page: u32, bytes: &[u8]) -> Result<(u64, u64), Fault> {
    let fault = |what| Fault::Page { page, what };
    let checksum = check_sealed(bytes, PAGE_MAGIC).map_err(|error| match error {
        Fault::Magic => fault("it does not start with the magic bytes"),
        _ => fault("its checksum is not that of its bytes"),
    })?;
    if u32_at(bytes, 8) != page {
        return Err(fault("it has the number of another page"));
    }
    Ok((checksum, u64_at(bytes, 16)))
}

/// The entries of a page.
pub(super) fn page_entries(bytes: &[u8]) -> &[EntryBytes] {
    bytes[HEADER_BYTES..].as_chunks::<ENTRY_BYTES>().0
}

/// As [`page_entries`].
pub(super) fn page_entries_mut(bytes: &mut [u8]) -> &mut [EntryBytes] {
    bytes[HEADER_BYTES..].as_chunks_mut::<ENTRY_BYTES>().0
}
