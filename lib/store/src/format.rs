//! The fixed parts of the format on the disk (`docs/formats/store.md`): the slots that name the roots of all trees.

use alloc::vec::Vec;
use xxhash_rust::xxh3::xxh3_64;

/// The unit of space on the disk, whatever its sector size.
pub const PAGE_BYTES: usize = 4096;
/// The part of a slot's page that has contents: the unit that a power cut leaves whole.
pub const SLOT_BYTES: usize = 512;
/// Pages before the first one of a tree: the two slots.
pub const FIRST_PAGE: u32 = 2;
/// Maps and logs in a store.
pub const TREES_MAX: usize = 7;
/// Bytes of the name of a map or a log.
pub const NAME_BYTES_MAX: usize = 24;
/// Bytes of a key. At least three entries fit into a page.
pub const KEY_BYTES_MAX: usize = 512;
/// Larger values have pages of their own.
pub const INLINE_BYTES_MAX: usize = 512;
/// Levels of a tree: with at least two entries in each page, more than a disk of 2^32 pages can have.
pub const LEVELS_MAX: u8 = 32;

const MAGIC: [u8; 8] = *b"GLSSTORE";
const VERSION: u32 = 1;
const TREE_BYTES: usize = 64;
const CHECKSUM_AT: usize = 56;

/// Where a page is, and what it contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pointer {
    /// Its number on the disk; 0 for no page.
    pub page: u32,
    /// The low half of the sequence of the commit that wrote it.
    pub sequence: u32,
    /// xxh3-64 of the page.
    pub checksum: u64,
}

impl Pointer {
    pub const BYTES: usize = 16;

    pub fn encode(self) -> [u8; Pointer::BYTES] {
        let mut bytes = [0; Pointer::BYTES];
        bytes[..4].copy_from_slice(&self.page.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[8..].copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Option<Pointer> {
        Some(Pointer { page: u32_at(bytes, 0)?, sequence: u32_at(bytes, 4)?, checksum: u64_at(bytes, 8)? })
    }
}

/// What a tree contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Map = 1,
    Log = 2,
}

/// A name, filled with zeros.
pub type Name = [u8; NAME_BYTES_MAX];

/// A map or a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    pub name: Name,
    pub kind: Kind,
    /// Of its root; 0 is a leaf.
    pub level: u8,
    /// Page 0 if it is empty.
    pub root: Pointer,
    pub entries: u64,
    /// Of a log: the index of the next record.
    pub next_index: u64,
}

/// The contents of a slot: one state of the store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Roots {
    pub sequence: u64,
    pub pages: u32,
    pub trees: Vec<Tree>,
}

/// What a slot contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Slot {
    /// All zero: not written yet.
    Empty,
    Valid(Roots),
    /// Of a store, and of a version that this program does not read.
    OtherVersion(u32),
    /// Of a store, and not as it was written.
    Damaged,
    /// Other data.
    Foreign,
}

impl Roots {
    /// The page of the slot with this sequence.
    pub fn page(&self) -> u32 {
        (self.sequence % 2) as u32
    }

    pub fn tree(&self, name: &Name) -> Option<&Tree> {
        self.trees.iter().find(|tree| tree.name == *name)
    }

    /// The first bytes of the slot's page; the rest is zero.
    pub fn encode(&self) -> [u8; SLOT_BYTES] {
        let mut bytes = [0; SLOT_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&(self.trees.len() as u32).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.pages.to_le_bytes());
        for (tree, place) in self.trees.iter().zip(bytes[64..].chunks_exact_mut(TREE_BYTES)) {
            place[..24].copy_from_slice(&tree.name);
            place[24] = tree.kind as u8;
            place[25] = tree.level;
            place[32..48].copy_from_slice(&tree.root.encode());
            place[48..56].copy_from_slice(&tree.entries.to_le_bytes());
            place[56..64].copy_from_slice(&tree.next_index.to_le_bytes());
        }
        let checksum = xxh3_64(&bytes);
        bytes[CHECKSUM_AT..64].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }
}

impl Slot {
    /// Reads slot `page`, 0 or 1, from its first [`SLOT_BYTES`].
    pub fn decode(page: u32, bytes: &[u8]) -> Slot {
        let Some(bytes) = bytes.first_chunk::<SLOT_BYTES>() else { return Slot::Foreign };
        if bytes.iter().all(|byte| *byte == 0) {
            return Slot::Empty;
        }
        if bytes[..8] != MAGIC {
            return Slot::Foreign;
        }
        let mut unsummed = *bytes;
        unsummed[CHECKSUM_AT..64].fill(0);
        if u64_at(bytes, CHECKSUM_AT) != Some(xxh3_64(&unsummed)) {
            return Slot::Damaged;
        }
        match u32_at(bytes, 8) {
            Some(VERSION) => decode_roots(page, bytes).map_or(Slot::Damaged, Slot::Valid),
            Some(version) => Slot::OtherVersion(version),
            None => Slot::Damaged,
        }
    }
}

fn decode_roots(page: u32, bytes: &[u8; SLOT_BYTES]) -> Option<Roots> {
    let (count, sequence, pages) = (u32_at(bytes, 12)? as usize, u64_at(bytes, 16)?, u32_at(bytes, 24)?);
    // Half of the numbers, so that the next ones never overflow.
    if count > TREES_MAX || sequence == 0 || sequence > u64::MAX / 2 || sequence % 2 != u64::from(page) {
        return None;
    }
    let mut roots = Roots { sequence, pages, trees: Vec::with_capacity(count) };
    for place in bytes[64..].chunks_exact(TREE_BYTES).take(count) {
        let name: Name = place[..24].try_into().ok()?;
        let tree = Tree {
            name,
            kind: match place[24] {
                1 => Kind::Map,
                2 => Kind::Log,
                _ => return None,
            },
            level: place[25],
            root: Pointer::decode(&place[32..48])?,
            entries: u64_at(place, 48)?,
            next_index: u64_at(place, 56)?,
        };
        let is_sound = tree.level < LEVELS_MAX && tree.next_index <= u64::MAX / 2 && is_name(&name);
        if !is_sound || roots.tree(&name).is_some() {
            return None;
        }
        roots.trees.push(tree);
    }
    Some(roots)
}

/// Whether these are UTF-8 bytes that are not empty, and zeros.
fn is_name(name: &Name) -> bool {
    let length = name.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES_MAX);
    length > 0 && name[length..].iter().all(|byte| *byte == 0) && core::str::from_utf8(&name[..length]).is_ok()
}

/// The name as a slot has it; `None` if it is empty, too long, or has a zero.
pub fn name_of(text: &str) -> Option<Name> {
    let mut name = [0; NAME_BYTES_MAX];
    name.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
    (is_name(&name) && !text.contains('\0')).then_some(name)
}

pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_le_bytes)
}

pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

/// Pages of `bytes` bytes.
pub fn pages_of(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE_BYTES as u64)
}

/// Pages one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    pub start: u32,
    pub pages: u32,
}

impl Run {
    pub fn one(page: u32) -> Run {
        Run { start: page, pages: 1 }
    }

    pub fn offset(self) -> u64 {
        u64::from(self.start) * PAGE_BYTES as u64
    }
}

/// Where a value with pages of its own is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LargeValue {
    pub bytes: u64,
    /// xxh3-64 of the value.
    pub checksum: u64,
    pub runs: Vec<Run>,
}

impl LargeValue {
    /// Runs of a value.
    pub const RUNS_MAX: usize = 8;

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(16 + 8 * self.runs.len());
        bytes.extend_from_slice(&self.bytes.to_le_bytes());
        bytes.extend_from_slice(&self.checksum.to_le_bytes());
        for run in &self.runs {
            bytes.extend_from_slice(&run.start.to_le_bytes());
            bytes.extend_from_slice(&run.pages.to_le_bytes());
        }
        bytes
    }

    /// `None` unless the runs have exactly the pages of the value.
    pub fn decode(payload: &[u8]) -> Option<LargeValue> {
        let (bytes, checksum) = (u64_at(payload, 0)?, u64_at(payload, 8)?);
        let (runs, rest) = payload[16..].as_chunks::<8>();
        if !rest.is_empty() || runs.is_empty() || runs.len() > LargeValue::RUNS_MAX {
            return None;
        }
        let runs = runs.iter().map(|run| Some(Run { start: u32_at(run, 0)?, pages: u32_at(run, 4)? }));
        let runs = runs.collect::<Option<Vec<Run>>>()?;
        let pages: u64 = runs.iter().map(|run| u64::from(run.pages)).sum();
        let is_sound = runs.iter().all(|run| run.pages > 0 && run.start.checked_add(run.pages).is_some());
        (is_sound && pages == pages_of(bytes)).then_some(LargeValue { bytes, checksum, runs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_read_as_it_was_written_and_every_flipped_bit_is_found() {
        let tree = Tree {
            name: name_of("links").unwrap(),
            kind: Kind::Map,
            level: 2,
            root: Pointer { page: 9, sequence: 7, checksum: 5 },
            entries: 3,
            next_index: 0,
        };
        let roots = Roots { sequence: 7, pages: 100, trees: Vec::from([tree]) };
        let bytes = roots.encode();
        assert_eq!(Slot::decode(1, &bytes), Slot::Valid(roots));
        assert_eq!(Slot::decode(0, &bytes), Slot::Damaged);
        for bit in 0..SLOT_BYTES * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(Slot::decode(1, &flipped), Slot::Damaged | Slot::Foreign), "bit {bit}");
        }
        assert_eq!(Slot::decode(1, &[0; SLOT_BYTES]), Slot::Empty);
    }

    #[test]
    fn another_version_is_named() {
        let mut bytes = Roots { sequence: 1, pages: 100, trees: Vec::new() }.encode();
        bytes[8] = 2;
        bytes[CHECKSUM_AT..64].fill(0);
        let checksum = xxh3_64(&bytes);
        bytes[CHECKSUM_AT..64].copy_from_slice(&checksum.to_le_bytes());
        assert_eq!(Slot::decode(1, &bytes), Slot::OtherVersion(2));
    }

    #[test]
    fn names_have_a_length_and_no_zero() {
        assert!(name_of("").is_none() && name_of("a\0").is_none() && name_of("twenty-five-bytes-are-long").is_none());
        assert!(name_of("exactly-24-bytes-of-name").is_some());
    }
}
