//! The contents of a guest's files, of which its kernel has pages in memory: read one page at a time, while the guest runs.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use super::btf::Btf;
use super::space::{Space, number, word};
use super::structures::{Fields, offset, pointer};
use crate::arch::x86_64::paging::Paging;
use crate::elf::ReadAt;
use crate::memory::Physical;

const PAGE_BYTES: u64 = 4096;
/// What selects five levels of page tables, in [`Paging::cr4`].
const FIVE_LEVELS: u64 = 1 << 12;
/// Where the kernel has its descriptions of pages, if it does not choose that at its start (`__VMEMMAP_BASE_L4` and `_L5`).
const DESCRIPTIONS: u64 = 0xffff_ea00_0000_0000;
const DESCRIPTIONS_FIVE_LEVELS: u64 = 0xffd4_0000_0000_0000;
/// The pages of a folio: at most 1 GiB.
const FOLIO_PAGES_MAX: u64 = 1 << 18;
/// The most physical pages: addresses have 52 bits.
const FRAMES_MAX: u64 = 1 << 40;

/// Slots of a node, by six bits of the index.
const SLOTS: usize = 64;
const SLOT_BITS: u32 = 6;
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
    paging: Paging,
}

impl PageCache {
    /// That of a kernel with these registers; `base` is the address of its symbol `vmemmap_base`. The error is a member that its types
    /// lack, or what cannot be read.
    pub fn of(space: &Space<'_>, btf: &Btf<'_>, paging: Paging, base: Option<u64>) -> Result<PageCache, &'static str> {
        let descriptions = match base {
            Some(base) => space.word(base).and_then(|base| pointer(base, PAGE_BYTES)).ok_or("vmemmap_base")?,
            None if paging.cr4 & FIVE_LEVELS != 0 => DESCRIPTIONS_FIVE_LEVELS,
            None => DESCRIPTIONS,
        };
        let node_slots = offset(btf, "xa_node.slots")?;
        let node_shift = offset(btf, "xa_node.shift")?;
        let is_node = node_shift < node_slots && node_slots <= NODE_BYTES_MAX - 8 * SLOTS as u32;
        // Before 5.16 there were no folios.
        let folio = Fields::of(btf, ["folio.flags", "folio.mapping", "folio.index"])
            .or_else(|_| Fields::of(btf, ["page.flags", "page.mapping", "page.index"]))?;
        Ok(PageCache {
            descriptions,
            description_bytes: btf.bytes_of("page").filter(|bytes| *bytes != 0).ok_or("page")?.into(),
            folio,
            is_read: btf
                .enumerator("pageflags", "PG_uptodate")
                .filter(|bit| *bit < 64)
                .ok_or("pageflags.PG_uptodate")?,
            root: offset(btf, "address_space.i_pages.xa_head")?,
            node_shift,
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
        let bytes = &mut bytes[..cache.node_slots as usize + 8 * SLOTS];
        space.read(at, bytes)?;
        let shift = number(bytes, cache.node_shift, 1)? as u32;
        let is_valid = shift <= SHIFT_MAX && shift.is_multiple_of(SLOT_BITS);
        let mut slots = [0; SLOTS];
        for (slot, at) in slots.iter_mut().zip((cache.node_slots..).step_by(8)) {
            *slot = word(bytes, at)?;
        }
        is_valid.then_some(Node { shift, above: index.checked_shr(shift + SLOT_BITS).unwrap_or(0), slots })
    }

    fn covers(&self, index: u64) -> bool {
        index.checked_shr(self.shift + SLOT_BITS).unwrap_or(0) == self.above
    }

    /// The entry for an index.
    fn entry(&self, index: u64) -> u64 {
        let entry = self.slots[(index >> self.shift) as usize % SLOTS];
        // Another slot of the same folio.
        let sibling = (entry & 3 == 2).then_some(entry >> 2).filter(|slot| *slot < SLOTS as u64);
        sibling.map_or(entry, |slot| self.slots[slot as usize])
    }
}

/// The entry for a page of a file, and the node that has it.
fn walk(space: &Space<'_>, contents: u64, index: u64, cache: &PageCache) -> Option<(u64, Option<Node>)> {
    let root = space.word(contents.checked_add(cache.root.into())?)?;
    let Some(mut at) = node_of(root) else { return (index == 0).then_some((root, None)) };
    let mut shift = SHIFT_MAX + SLOT_BITS;
    loop {
        let node = Node::read(space, at, index, cache)?;
        let is_root = shift > SHIFT_MAX;
        // Each level has its own shift, so this ends.
        if is_root && node.above != 0 || !is_root && node.shift + SLOT_BITS != shift {
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
