//! The index of versions 1 and 2: two slots, each of which a commit writes whole. Queues of today read it once, and write version 3.

use super::{
    BLOCK_BYTES, CHECKSUM, ENTRY_BYTES, Entry, Fault, Geometry, HEADER_BYTES, Index, IndexPlace, NUMBER_MAX,
    UploadEntry, UploadProgress, VERSION_1, VERSION_2, check_extents, check_sum, checksum_without, decode_entry,
    u32_at, u64_at, uploads,
};
use alloc::vec::Vec;

const SLOT_MAGIC: [u8; 8] = *b"GLSINDEX";

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
        place.copy_from_slice(&entry.encoded());
    }
    for upload in uploads {
        upload.encode(&mut places);
    }
    let checksum = checksum_without(slot, CHECKSUM);
    slot[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
    used
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
    check_sum(u64_at(used, CHECKSUM.start), checksum_without(used, CHECKSUM))?;
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

/// A slot with a right checksum was written by a queue; entries that are nevertheless wrong come
/// from a bug or a forgery, and using them could overwrite data of other items.
fn check_entries(geometry: Geometry, index: &Index) -> Result<(), Fault> {
    let place = IndexPlace::Slots { version: VERSION_2, geometry };
    let mut ids_from = 1;
    let mut runs = Vec::new();
    for (position, entry) in index.entries.iter().enumerate() {
        if entry.id < ids_from || entry.id >= index.next_id {
            return Err(Fault::Entry { position, id: entry.id, what: "its id is out of order" });
        }
        ids_from = entry.id + 1;
        let checked = check_extents(place, entry.length, &entry.extents, |extent| runs.push((extent, position)));
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
                check_extents(place, offset, &extents, |extent| runs.push((extent, position))).or_else(fault)?;
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

fn checked_version(version: u32) -> Result<u32, Fault> {
    if (VERSION_1..=VERSION_2).contains(&version) { Ok(version) } else { Err(Fault::Version(version)) }
}
