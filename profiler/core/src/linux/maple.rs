//! The maple tree in which a process has its mappings since Linux 6.1 (`lib/maple_tree.c`).

use super::space::{Space, word};
use super::structures::{Layout, offset, pointer};

/// The levels of a tree; 70,000 mappings take 6.
const DEPTH_MAX: u32 = 16;
/// A node, which is at a multiple of its size: the low byte of a pointer to it has its kind.
const NODE_BYTES: u64 = 256;
const SLOTS_MAX: u32 = 16;
const LEAF: u64 = 1;
const RANGES: u64 = 2;
const RANGES_WITH_GAPS: u64 = 3;

/// Where a node of a kind has its parts.
#[derive(Debug, Clone, Copy)]
struct Kind {
    pivots: u32,
    slots: u32,
    /// There is one pivot less.
    count: u32,
}

impl Kind {
    fn of(pivots: u32, slots: u32) -> Option<Kind> {
        let count = slots.checked_sub(pivots)? / 8 + 1;
        let end = u64::from(slots) + u64::from(count) * 8;
        (pivots >= 8 && count <= SLOTS_MAX && end <= NODE_BYTES).then_some(Kind { pivots, slots, count })
    }
}

/// Where a tree has its parts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Offsets {
    root: u32,
    ranges: Kind,
    ranges_with_gaps: Kind,
}

impl Offsets {
    /// The error is the member that is missing.
    pub(super) fn of(types: &dyn Layout) -> Result<Offsets, &'static str> {
        let kind = |pivots, slots| Kind::of(offset(types, pivots)?, offset(types, slots)?).ok_or(slots);
        Ok(Offsets {
            root: offset(types, "maple_tree.ma_root")?,
            ranges: kind("maple_range_64.pivot", "maple_range_64.slot")?,
            ranges_with_gaps: kind("maple_arange_64.pivot", "maple_arange_64.slot")?,
        })
    }
}

/// What a tree has for a range of keys, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) value: u64,
}

struct Walk<'a, 'm> {
    space: &'a Space<'m>,
    offsets: &'a Offsets,
    /// How many more nodes may be read.
    nodes: usize,
    entries: Vec<Entry>,
    entries_max: usize,
}

/// The pointer to a node in a tagged one, and the node's kind.
fn node_of(tagged: u64) -> Option<(u64, u64)> {
    Some((pointer(tagged & !(NODE_BYTES - 1), NODE_BYTES)?, tagged >> 3 & 15))
}

/// The entries of the tree at an address, sorted. `None` if it is not a tree now: each node is one by its pointer to its parent, which a
/// node that was replaced has no more.
pub(super) fn entries(space: &Space<'_>, tree: u64, offsets: &Offsets, entries_max: usize) -> Option<Vec<Entry>> {
    let root = space.word(tree.checked_add(offsets.root.into())?)?;
    // A node holds at least two entries, of which one may be a gap.
    let mut walk = Walk { space, offsets, nodes: entries_max, entries: Vec::new(), entries_max };
    match root {
        0 => {}
        _ if root & 3 == 2 => walk.node(root, tree, 0..=u64::MAX, 0)?,
        // A single entry, for key 0 alone.
        _ => walk.entries.push(Entry { first: 0, last: 0, value: root }),
    }
    Some(walk.entries)
}

impl Walk<'_, '_> {
    fn node(&mut self, tagged: u64, parent: u64, keys: std::ops::RangeInclusive<u64>, depth: u32) -> Option<()> {
        self.nodes = self.nodes.checked_sub(1)?;
        let (node, kind) = node_of(tagged)?;
        let mut bytes = [0; NODE_BYTES as usize];
        self.space.read(node, &mut bytes)?;
        // A parent's low bits say which slot the node is in; those of the tree itself are 1.
        let upper = word(&bytes, 0)?;
        if upper & !(NODE_BYTES - 1) != parent & !(NODE_BYTES - 1) || depth == 0 && upper != parent | 1 {
            return None;
        }
        let parts = match kind {
            LEAF | RANGES => self.offsets.ranges,
            RANGES_WITH_GAPS => self.offsets.ranges_with_gaps,
            _ => return None,
        };
        let mut first = *keys.start();
        for slot in 0..parts.count {
            let pivot = if slot + 1 < parts.count { word(&bytes, parts.pivots + slot * 8)? } else { *keys.end() };
            // The last one may be left out.
            let last = if slot > 0 && pivot == 0 { *keys.end() } else { pivot.min(*keys.end()) };
            if last < first {
                return None;
            }
            self.slot(word(&bytes, parts.slots + slot * 8)?, node, kind, first..=last, depth)?;
            if last == *keys.end() {
                return Some(());
            }
            first = last + 1;
        }
        Some(())
    }

    fn slot(
        &mut self,
        value: u64,
        node: u64,
        kind: u64,
        keys: std::ops::RangeInclusive<u64>,
        depth: u32,
    ) -> Option<()> {
        if kind != LEAF {
            return if depth < DEPTH_MAX { self.node(value, node, keys, depth + 1) } else { None };
        }
        // 2 in the low bits: an entry that is reserved.
        if value != 0 && value & 3 != 2 {
            if self.entries.len() == self.entries_max {
                return None;
            }
            self.entries.push(Entry { first: *keys.start(), last: *keys.end(), value });
        }
        Some(())
    }
}
