//! Entries of uploads that clients may resume: since version 2.
//!
//! An upload in progress has two entries: its data and its name. In version 2 the name follows the data; in version 3 it has the place of the data. One that became an item has its name only, so that a client whose last
//! answer was lost learns that it is complete.

use super::{ENTRY_BYTES, EXTENTS_MAX, Entry, EntryBytes, Extent, Fault, decode_entry, u32_at, u64_at};
use alloc::vec::Vec;

/// The bits of an entry's length that distinguish its kinds.
const KINDS: u64 = 3 << 62;
const DATA: u64 = 1 << 63;
const NAME: u64 = 1 << 62;
/// The announced length of an upload whose client does not know it yet.
const UNKNOWN: u64 = u64::MAX;

/// The name of an upload: 128 random bits.
pub type UploadName = [u8; 16];

/// An upload as in the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UploadEntry {
    /// Names it in requests.
    pub name: UploadName,
    /// Announced length in bytes; `None` while unknown.
    pub length: Option<u64>,
    /// When it may be forgotten, in seconds since 1970; 0 if no clock had the time of day.
    pub deadline_secs: u64,
    /// What there is of it.
    pub progress: UploadProgress,
}

/// What there is of an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UploadProgress {
    /// Its first bytes.
    Open {
        /// How many, acknowledged to the client.
        offset: u64,
        /// xxh3-64 of them.
        checksum: u64,
        /// Where they are.
        extents: [Extent; EXTENTS_MAX],
    },
    /// All of it: it is an item, or was one.
    Complete {
        /// The item.
        id: u64,
    },
}

impl UploadEntry {
    /// Entries of the index that it fills.
    pub fn entries(&self) -> usize {
        match self.progress {
            UploadProgress::Open { .. } => 2,
            UploadProgress::Complete { .. } => 1,
        }
    }

    /// Writes it to the next places.
    pub(super) fn encode<'a>(&self, places: &mut impl Iterator<Item = &'a mut [u8]>) {
        let mut next = || places.next().expect("the caller counted the entries");
        if let Some(data) = self.data() {
            next().copy_from_slice(&data);
        }
        next().copy_from_slice(&self.named(None));
    }

    /// The entry of its data, while it is in progress.
    pub fn data(&self) -> Option<EntryBytes> {
        let UploadProgress::Open { offset, checksum, extents } = self.progress else { return None };
        Some(Entry { id: 0, length: offset | DATA, checksum, extents }.encoded())
    }

    /// The entry of its name; in version 3 with the place of its data.
    pub fn named(&self, data: Option<u32>) -> EntryBytes {
        let id = match self.progress {
            UploadProgress::Open { .. } => 0,
            UploadProgress::Complete { id } => id,
        };
        let mut place = [0; ENTRY_BYTES];
        place[0..8].copy_from_slice(&id.to_le_bytes());
        place[8..16].copy_from_slice(&NAME.to_le_bytes());
        place[16..32].copy_from_slice(&self.name);
        place[32..40].copy_from_slice(&self.length.unwrap_or(UNKNOWN).to_le_bytes());
        place[40..48].copy_from_slice(&self.deadline_secs.to_le_bytes());
        // Such a large index does not exist.
        place[48..52].copy_from_slice(&data.map_or(0, |data| data + 1).to_le_bytes());
        place
    }
}

/// What a place of an index of version 3 has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Free,
    Item(Entry),
    /// The data of an upload.
    Data(UploadProgress),
    /// The name of an upload, and the place of its data.
    Name,
}

pub(super) fn kind(place: &[u8]) -> Result<Kind, &'static str> {
    let entry = decode_entry(place);
    match entry.length & KINDS {
        0 if entry.id > 0 => Ok(Kind::Item(entry)),
        0 if place.iter().all(|&byte| byte == 0) => Ok(Kind::Free),
        DATA if entry.id == 0 => {
            let Entry { length, checksum, extents, .. } = entry;
            Ok(Kind::Data(UploadProgress::Open { offset: length & !KINDS, checksum, extents }))
        }
        NAME => Ok(Kind::Name),
        _ => Err("it is neither an item nor of an upload"),
    }
}

/// The place of the data of an upload, in the entry of its name.
pub(super) fn data_place(place: &[u8]) -> Option<u32> {
    u32_at(place, 48).checked_sub(1)
}

/// The entry of a name in version 3; `data` is what is at the place that it names.
pub(super) fn decode_named(position: usize, place: &[u8], data: Option<UploadProgress>) -> Result<UploadEntry, Fault> {
    let progress = match (u64_at(place, 0), data) {
        (0, Some(progress)) => progress,
        (id, None) if id > 0 => UploadProgress::Complete { id },
        _ => return Err(Fault::Upload { position, what: "it is neither in progress nor complete" }),
    };
    decode_name(position, place, 52, progress)
}

/// Whether an entry is of an upload, and no item.
pub(super) fn is_of_upload(place: &[u8]) -> bool {
    u64_at(place, 8) & KINDS != 0
}

/// Reads the entries after those of items; the first is number `position` in the index.
pub(super) fn decode<'a>(position: usize, places: impl Iterator<Item = &'a [u8]>) -> Result<Vec<UploadEntry>, Fault> {
    let mut places = places.enumerate().map(|(number, place)| (position + number, place));
    let mut uploads = Vec::new();
    while let Some((position, place)) = places.next() {
        let fault = |what| Err(Fault::Upload { position, what });
        match u64_at(place, 8) & KINDS {
            DATA => {
                let Entry { id, length, checksum, extents } = decode_entry(place);
                if id != 0 {
                    return fault("it has an id");
                }
                let progress = UploadProgress::Open { offset: length & !KINDS, checksum, extents };
                match places.next() {
                    Some((position, name)) if u64_at(name, 8) & KINDS == NAME && u64_at(name, 0) == 0 => {
                        uploads.push(decode_name(position, name, 48, progress)?);
                    }
                    _ => return fault("no name follows it"),
                }
            }
            NAME if u64_at(place, 0) != 0 => {
                uploads.push(decode_name(position, place, 48, UploadProgress::Complete { id: u64_at(place, 0) })?);
            }
            _ => return fault("it is neither of an upload nor complete"),
        }
    }
    Ok(uploads)
}

/// The bytes from `unused` on are zero.
fn decode_name(position: usize, place: &[u8], unused: usize, progress: UploadProgress) -> Result<UploadEntry, Fault> {
    if u64_at(place, 8) != NAME || place[unused..].iter().any(|&byte| byte != 0) {
        return Err(Fault::Upload { position, what: "its unused bytes are not zero" });
    }
    let mut name = UploadName::default();
    name.copy_from_slice(&place[16..32]);
    let length = Some(u64_at(place, 32)).filter(|length| *length != UNKNOWN);
    Ok(UploadEntry { name, length, deadline_secs: u64_at(place, 40), progress })
}
