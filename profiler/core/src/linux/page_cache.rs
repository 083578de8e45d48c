//! The contents of a guest's files, of which its kernel has pages in memory: read one page at a time, while the guest runs.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use super::space::{Space, number, word};
use super::structures::{Fields, Layout, offset, pointer};
use crate::arch::Paging;
use crate::elf::ReadAt;
use crate::memory::Physical;

const PAGE_BYTES: u64 = 4096;
/// What selects five levels of page tables, in CR4.
const FIVE_LEVELS: u64 = 1 << 12;
/// Where the kernel has its descriptions of pages, if it does not choose that at its start (`__VMEMMAP_BASE_L4` and `_L5`).
const DESCRIPTIONS: u64 = 0xffff_ea00_0000_0000;
const DESCRIPTIONS_FIVE_LEVELS: u64 = 0xffd4_0000_0000_0000;
/// The pages of a folio: at most 1 GiB.
const FOLIO_PAGES_MAX: u64 = 1 << 18;
/// The most physical pages: addresses have 52 bits.
const FRAMES_MAX: u64 = 1 << 40;

/// The most slots of a node, which are selected by six bits of the index; in kernels for small machines (`CONFIG_BASE_SMALL`) they are 16.
const SLOTS: usize = 64;
const SLOT_BITS: [u32; 2] = [6, 4];
/// The most bytes of a node: its slots are at its end, or near it.
const NODE_BYTES_MAX: u32 = 1024;
/// The highest shift of a node: an index has 64 bits.
const SHIFT_MAX: u32 = 60;
/// Nodes that are kept of a file, each of 512 bytes: 256 KiB of it.
const NODES_KEPT: usize = 4;

/// Where a kernel has the pages of files.
#[derive(Debug, Clone, Copy)]
pub struct PageCache {
    /// The address of the description of the first physical page.
    descriptions: u64,
    description_bytes: u64,
    /// Flags, file, index.
    folio: Fields<3>,
    /// The bit of the flags that the contents are there.
    is_read: u32,
    root: u32,
    node_shift: u32,
    node_slots: u32,
    /// By how many bits of the index one of a node's slots is selected.
    slot_bits: u32,
    paging: Paging,
}

impl PageCache {
    /// That of a kernel with these registers; `base` is the value of its `vmemmap_base`. The error is a member that its types
    /// lack, or what cannot be read.
    pub fn of(types: &dyn Layout, paging: impl Into<Paging>, base: Option<u64>) -> Result<PageCache, &'static str> {
        let paging = paging.into();
        let descriptions = match (base, paging.x86_64()) {
            (Some(base), _) => pointer(base, PAGE_BYTES).ok_or("vmemmap_base")?,
            (None, Some(paging)) if paging.cr4 & FIVE_LEVELS != 0 => DESCRIPTIONS_FIVE_LEVELS,
            (None, Some(_)) => DESCRIPTIONS,
            (None, None) => return Err("vmemmap_base"),
        };
        let node_slots = offset(types, "xa_node.slots")?;
        let node_shift = offset(types, "xa_node.shift")?;
        // There is not much in a node behind its slots.
        let has_room = |bits: &u32| types.bytes_of("xa_node").is_none_or(|bytes| bytes >= node_slots + (8 << bits));
        let slot_bits = SLOT_BITS.into_iter().find(has_room).ok_or("xa_node")?;
        let is_node = node_shift < node_slots && node_slots <= NODE_BYTES_MAX - 8 * SLOTS as u32;
        // Before 5.16 there were no folios.
        let folio = Fields::of(types, ["folio.flags", "folio.mapping", "folio.index"])
            .or_else(|_| Fields::of(types, ["page.flags", "page.mapping", "page.index"]))?;
        Ok(PageCache {
            descriptions,
            description_bytes: types.bytes_of("page").filter(|bytes| *bytes != 0).ok_or("page")?.into(),
            folio,
            is_read: types
                .enumerator("pageflags", "PG_uptodate")
                .filter(|bit| *bit < 64)
                .ok_or("pageflags.PG_uptodate")?,
            root: offset(types, "address_space.i_pages.xa_head")?,
            node_shift,
            slot_bits,
            node_slots: if is_node { node_slots } else { return Err("xa_node.slots") },
            paging,
        })
    }
}

/// A node of an array (`xa_node`).
#[derive(Clone, Copy)]
struct Node {
    /// How far an index is shifted for the number of the slot.
    shift: u32,
    /// By how many bits a slot is selected.
    bits: u32,
    /// The index of its first slot, shifted beyond the slots.
    above: u64,
    slots: [u64; SLOTS],
}

/// The address of the node that an entry of an array points to.
fn node_of(entry: u64) -> Option<u64> {
    if entry & 3 == 2 { pointer(entry - 2, 8) } else { None }
}

impl Node {
    fn read(space: &Space<'_>, at: u64, index: u64, cache: &PageCache) -> Option<Node> {
        let mut bytes = [0; NODE_BYTES_MAX as usize];
        let bits = cache.slot_bits;
        let bytes = &mut bytes[..cache.node_slots as usize + (8 << bits)];
        space.read(at, bytes)?;
        let shift = number(bytes, cache.node_shift, 1)? as u32;
        let is_valid = shift <= SHIFT_MAX && shift.is_multiple_of(bits);
        let mut slots = [0; SLOTS];
        for (slot, at) in slots.iter_mut().take(1 << bits).zip((cache.node_slots..).step_by(8)) {
            *slot = word(bytes, at)?;
        }
        is_valid.then_some(Node { shift, bits, above: index.checked_shr(shift + bits).unwrap_or(0), slots })
    }

    fn covers(&self, index: u64) -> bool {
        index.checked_shr(self.shift + self.bits).unwrap_or(0) == self.above
    }

    /// The entry for an index.
    fn entry(&self, index: u64) -> u64 {
        let entry = self.slots[(index >> self.shift) as usize % (1 << self.bits)];
        // Another slot of the same folio.
        let sibling = (entry & 3 == 2).then_some(entry >> 2).filter(|slot| *slot < 1 << self.bits);
        sibling.map_or(entry, |slot| self.slots[slot as usize])
    }
}

/// The entry for a page of a file, and the node that has it.
fn walk(space: &Space<'_>, contents: u64, index: u64, cache: &PageCache) -> Option<(u64, Option<Node>)> {
    let root = space.word(contents.checked_add(cache.root.into())?)?;
    let Some(mut at) = node_of(root) else { return (index == 0).then_some((root, None)) };
    let mut shift = SHIFT_MAX + cache.slot_bits;
    loop {
        let node = Node::read(space, at, index, cache)?;
        let is_root = shift > SHIFT_MAX;
        // Each level has its own shift, so this ends.
        if is_root && node.above != 0 || !is_root && node.shift + node.bits != shift {
            return None;
        }
        let entry = node.entry(index);
        match node_of(entry) {
            Some(below) if node.shift > 0 => (at, shift) = (below, node.shift),
            _ => return Some((entry, Some(node))),
        }
    }
}

/// A file of a guest, as far as the guest has it in memory. Each page is checked after it was copied: what it returns was in the file, at
/// the time of the call. A page that is not in memory cannot be read.
pub struct CachedFile<M> {
    memory: M,
    cache: PageCache,
    contents: u64,
    bytes: u64,
    /// Those that were needed last, the newest first. What they say may have changed.
    nodes: Mutex<Vec<Node>>,
}

impl<M> fmt::Debug for CachedFile<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedFile")
            .field("contents", &self.contents)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl<M: Physical> CachedFile<M> {
    /// The file with `bytes` bytes whose `address_space` is at an address ([`File`](super::files::File)).
    pub fn new(memory: M, cache: PageCache, contents: u64, bytes: u64) -> CachedFile<M> {
        CachedFile { memory, cache, contents, bytes, nodes: Mutex::default() }
    }

    /// Copies a part of a page; `None` if it is not in memory.
    fn page(&self, space: &Space<'_>, index: u64, inside: u64, into: &mut [u8]) -> Option<()> {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let known = nodes.iter().find(|node| node.covers(index)).map(|node| node.entry(index));
        if let Some(()) = known.and_then(|entry| self.copy(space, entry, (index, false), inside, into)) {
            return Some(());
        }
        let (entry, node) = walk(space, self.contents, index, &self.cache)?;
        if let Some(node) = node {
            nodes.retain(|known| !known.covers(index));
            nodes.truncate(NODES_KEPT - 1);
            nodes.insert(0, node);
        }
        self.copy(space, entry, (index, true), inside, into)
    }

    /// Copies a part of the page with an index that an entry is for, if it is the file's before and after that. An entry that was kept is
    /// not proof for more than its first page: a large folio may have been split meanwhile.
    fn copy(
        &self,
        space: &Space<'_>,
        entry: u64,
        (index, is_new): (u64, bool),
        inside: u64,
        into: &mut [u8],
    ) -> Option<()> {
        let cache = &self.cache;
        let folio = pointer(entry, 8)?;
        let first = || {
            let [flags, contents, first] = cache.folio.read(space, folio)?;
            (contents == self.contents && flags >> cache.is_read & 1 != 0).then_some(first)
        };
        let before = first()?;
        let further = index.checked_sub(before).filter(|further| *further < FOLIO_PAGES_MAX)?;
        let place =
            folio.checked_sub(cache.descriptions).filter(|place| place.is_multiple_of(cache.description_bytes))?;
        let frame = (place / cache.description_bytes).checked_add(further).filter(|frame| *frame < FRAMES_MAX)?;
        let is_proof = is_new || further == 0;
        (is_proof && self.memory.read(frame * PAGE_BYTES + inside, into) && first()? == before).then_some(())
    }
}

impl<M: Physical + Send + Sync> ReadAt for CachedFile<M> {
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
        let space = Space::new(&self.memory, self.cache.paging);
        let mut done = 0;
        while done < into.len() {
            let at = offset + done as u64;
            let (index, inside) = (at / PAGE_BYTES, at % PAGE_BYTES);
            let count = (PAGE_BYTES - inside).min((into.len() - done) as u64) as usize;
            if self.page(&space, index, inside, &mut into[done..done + count]).is_none() {
                return false;
            }
            done += count;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::btf::Btf;
    use super::super::testing::{DIRECT, Memory, PAGING, offsets};
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    const CONTENTS: u64 = DIRECT + 0x8000;
    const OTHER: u64 = DIRECT + 0x8100;
    const HEAD: u64 = CONTENTS + 16;
    const ROOT: u64 = DIRECT + 0x9000;
    const LEAF: u64 = DIRECT + 0x9400;
    const HUGE: u64 = 1 << 6;
    /// The frame of the page with index 0, of which the description is at 0x4000.
    const FIRST: u64 = 0x100;
    const READ: u64 = 1 << 3;

    fn description(frame: u64) -> u64 {
        DESCRIPTIONS + frame * 64
    }

    /// A page of a file: its description, and in each of its words its number.
    fn page(memory: &Memory, frame: u64, contents: u64, index: u64) {
        let at = DIRECT + frame * 64;
        memory.words(at, &[READ, 0, 0, contents, index]);
        memory.words(DIRECT + frame * PAGE_BYTES, &[frame; 512]);
    }

    fn node(memory: &Memory, at: u64, shift: u8, slots: &[(u64, u64)]) {
        memory.bytes(at, &[shift]);
        for (slot, entry) in slots {
            memory.set(at + 40 + slot * 8, *entry);
        }
    }

    /// A file of 200 pages: those with index 0, 2 and 63 are there, and a folio of four in front of 8, of which each has its page; then a
    /// folio for 64..128.
    fn example() -> Arc<Memory> {
        let memory = Arc::new(Memory::new());
        let mut slots = vec![(1, 0), (3, 0x1235), (5, 258 << 2 | 2)];
        for (index, frame) in [(0, FIRST), (2, FIRST + 2), (63, FIRST + 1), (4, FIRST + 4)] {
            page(&memory, frame, CONTENTS, index);
            slots.push((index, description(frame)));
        }
        for further in 1..4 {
            memory.words(DIRECT + (FIRST + 4 + further) * PAGE_BYTES, &[FIRST + 4 + further; 512]);
            slots.push((4 + further, 4 << 2 | 2));
        }
        node(&memory, LEAF, 0, &slots);
        page(&memory, FIRST + 0x40, CONTENTS, HUGE);
        memory.words(DIRECT + (FIRST + 0x40 + 9) * PAGE_BYTES, &[9; 512]);
        node(&memory, ROOT, 6, &[(0, LEAF | 2), (1, description(FIRST + 0x40))]);
        memory.set(HEAD, ROOT | 2);
        memory
    }

    fn open(memory: &Arc<Memory>) -> CachedFile<Arc<Memory>> {
        let cache = offsets(false, |btf| PageCache::of(btf, PAGING, None));
        CachedFile::new(memory.clone(), cache, CONTENTS, 200 * PAGE_BYTES)
    }

    /// The first word of the page with an index.
    fn word_of(file: &CachedFile<Arc<Memory>>, index: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        file.read_at(index * PAGE_BYTES, &mut bytes).then(|| u64::from_le_bytes(bytes))
    }

    #[test]
    fn pages_that_are_there_and_pages_that_are_not() {
        let memory = example();
        let file = open(&memory);
        let found: Vec<_> = (0..200).filter_map(|index| Some((index, word_of(&file, index)?))).collect();
        let mut expected = vec![(0, FIRST), (2, FIRST + 2)];
        expected.extend((0..4).map(|further| (4 + further, FIRST + 4 + further)));
        expected.push((63, FIRST + 1));
        expected.extend((0..64).map(|further| (64 + further, [0, 9][usize::from(further == 9)])));
        expected[7].1 = FIRST + 0x40;
        assert_eq!(found, expected);
        // Across pages, up to the end, and not beyond.
        let mut bytes = vec![0; 3 * PAGE_BYTES as usize];
        assert!(file.read_at(4 * PAGE_BYTES + 100, &mut bytes[..2 * PAGE_BYTES as usize]));
        assert!(!file.read_at(2 * PAGE_BYTES + 100, &mut bytes), "the third page is swapped");
        assert!(!file.read_at(200 * PAGE_BYTES - 4, &mut bytes[..8]) && !file.read_at(u64::MAX, &mut bytes[..8]));
        let reads = memory.reads.load(Ordering::Relaxed);
        assert_eq!(word_of(&file, 63), Some(FIRST + 1));
        assert!(memory.reads.load(Ordering::Relaxed) - reads <= 9, "the node is kept");
    }

    #[test]
    fn a_file_of_one_page_needs_no_node() {
        let memory = example();
        memory.set(HEAD, description(FIRST));
        let file = open(&memory);
        assert_eq!((word_of(&file, 0), word_of(&file, 1)), (Some(FIRST), None));
        memory.set(HEAD, 0);
        assert_eq!(word_of(&file, 0), None);
    }

    #[test]
    fn pages_that_go_and_come() {
        let memory = example();
        let file = open(&memory);
        assert_eq!((word_of(&file, 2), word_of(&file, 6)), (Some(FIRST + 2), Some(FIRST + 6)));
        // It is the page of another file now, and this file's is elsewhere: the node that was kept is of no use.
        page(&memory, FIRST + 2, OTHER, 2);
        assert_eq!(word_of(&file, 2), None);
        page(&memory, FIRST + 0x30, CONTENTS, 2);
        memory.set(LEAF + 40 + 16, description(FIRST + 0x30));
        assert_eq!(word_of(&file, 2), Some(FIRST + 0x30));
        // A folio was split, its first page is where it was.
        page(&memory, FIRST + 0x31, CONTENTS, 6);
        memory.set(LEAF + 40 + 6 * 8, description(FIRST + 0x31));
        assert_eq!((word_of(&file, 6), word_of(&file, 4)), (Some(FIRST + 0x31), Some(FIRST + 4)));
        // It is being read from the disk; and it goes while it is copied.
        memory.set(DIRECT + (FIRST + 0x31) * 64, 0);
        assert_eq!(word_of(&file, 6), None);
        for later in 0..10 {
            let memory = example();
            let file = open(&memory);
            memory.set_later(later, DIRECT + FIRST * 64 + 24, OTHER);
            memory.words(DIRECT + FIRST * PAGE_BYTES, &[FIRST]);
            let found = word_of(&file, 0);
            let is_gone = memory.space().word(DIRECT + FIRST * 64 + 24) == Some(OTHER);
            assert!(found == Some(FIRST) && !is_gone || found.is_none(), "{later}");
        }
    }

    #[test]
    fn nodes_that_violate_their_format() {
        for (at, value, index) in [
            (ROOT, 7, 2),
            (ROOT, 0, 2),
            (ROOT, 12, 2),
            (LEAF, 6, 2),
            (ROOT + 40, ROOT | 2, 2),
            (ROOT + 40, u64::MAX - 1, 2),
            (LEAF + 56, description(FIRST + 2) + 8, 2),
            (LEAF + 56, DESCRIPTIONS - 64, 2),
            (LEAF + 56, 64, 2),
            (DIRECT + (FIRST + 2) * 64 + 32, 3, 2),
            (DIRECT + (FIRST + 0x40) * 64 + 32, u64::MAX, 64),
        ] {
            let memory = example();
            assert!(word_of(&open(&memory), index).is_some());
            memory.set(at, value);
            assert_eq!(word_of(&open(&memory), index), None, "{at:x} {value:x}");
        }
    }

    #[test]
    fn where_descriptions_are() {
        let of = |paging, base| offsets(false, |btf| PageCache::of(btf, paging, base)).descriptions;
        let five = crate::arch::x86_64::paging::Paging { cr4: PAGING.cr4 | FIVE_LEVELS, ..PAGING };
        assert_eq!((of(PAGING, None), of(five, None)), (DESCRIPTIONS, DESCRIPTIONS_FIVE_LEVELS));
        assert_eq!(of(PAGING, Some(DIRECT + 0x4000)), DIRECT + 0x4000);
        for wrong in [0, DIRECT + 0x4001] {
            let types = super::super::testing::types(false);
            let btf = Btf::parse(&types, None).unwrap();
            let found = PageCache::of(&btf, PAGING, Some(wrong));
            assert_eq!(found.err(), Some("vmemmap_base"));
        }
    }

    proptest! {
        #[test]
        fn any_memory_is_survived(
            random in proptest::collection::vec(any::<u64>(), 1..40),
            indexes in proptest::collection::vec(0u64..200, 1..20),
        ) {
            let memory = example();
            memory.fill(DIRECT..DIRECT + 0x8000, &random);
            memory.fill(LEAF + 40..LEAF + 40 + 512, &random);
            for (slot, random) in random.iter().enumerate().take(60) {
                let entry = [ROOT | 2, LEAF | 2, DIRECT | 2, random | 2, random % 0x100][(random % 5) as usize];
                memory.set(if random & 8 == 0 { ROOT } else { LEAF } + 40 + slot as u64 * 8, entry);
            }
            let file = open(&memory);
            for index in indexes {
                let before = memory.reads.load(Ordering::Relaxed);
                let _ = word_of(&file, index);
                prop_assert!(memory.reads.load(Ordering::Relaxed) - before < 120);
            }
            prop_assert!(file.nodes.lock().unwrap().len() <= NODES_KEPT);
        }
    }
}
