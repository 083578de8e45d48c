//! Which blocks are free, and who holds the others.

use crate::format::{BLOCK_BYTES, EXTENTS_MAX, Extent};
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;

/// Free blocks and free index entries of a queue. Clones share them.
#[derive(Clone)]
pub(crate) struct Allocator {
    free: Rc<RefCell<Free>>,
}

struct Free {
    /// Start and length of each free run; neighbours are always joined.
    runs: BTreeMap<u32, u32>,
    blocks: u64,
    entries: usize,
}

/// Why space was not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Not enough blocks, or so scattered that an entry cannot name them.
    Blocks,
    /// Every entry of the index is taken.
    Entries,
}

impl Allocator {
    pub(crate) fn new(data: Extent, entries: usize) -> Allocator {
        let runs = BTreeMap::from([(data.start, data.blocks)]);
        Allocator { free: Rc::new(RefCell::new(Free { runs, blocks: u64::from(data.blocks), entries })) }
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        self.free.borrow().blocks * BLOCK_BYTES as u64
    }

    pub(crate) fn free_entries(&self) -> usize {
        self.free.borrow().entries
    }

    /// Takes `blocks` blocks and one index entry: the first run that is long enough, or else the
    /// fewest runs that together are.
    pub(crate) fn take(&self, blocks: u64) -> Result<Space, Refused> {
        let mut free = self.free.borrow_mut();
        if free.entries == 0 {
            return Err(Refused::Entries);
        }
        if free.blocks < blocks {
            return Err(Refused::Blocks);
        }
        let blocks = blocks as u32;
        let mut extents = [Extent::default(); EXTENTS_MAX];
        if blocks > 0 {
            match free.runs.iter().find(|run| *run.1 >= blocks) {
                Some((&start, _)) => extents[0] = Extent { start, blocks },
                None => gather(&free.runs, blocks, &mut extents)?,
            }
        }
        for extent in extents.iter().filter(|extent| extent.blocks > 0) {
            assert!(free.carve(*extent), "{extent:?} was found free");
        }
        free.entries -= 1;
        Ok(Space { extents, allocator: self.clone() })
    }

    /// Takes exactly `extents`, which an index names; `None` when they are not all free.
    pub(crate) fn take_exactly(&self, extents: [Extent; EXTENTS_MAX]) -> Option<Space> {
        let mut free = self.free.borrow_mut();
        if free.entries == 0 {
            return None;
        }
        for (count, extent) in extents.iter().enumerate().filter(|(_, extent)| extent.blocks > 0) {
            if !free.carve(*extent) {
                extents[..count].iter().for_each(|extent| free.join(*extent));
                return None;
            }
        }
        free.entries -= 1;
        Some(Space { extents, allocator: self.clone() })
    }
}

/// The longest runs, until they are enough.
fn gather(runs: &BTreeMap<u32, u32>, mut blocks: u32, extents: &mut [Extent; EXTENTS_MAX]) -> Result<(), Refused> {
    let mut longest: Vec<Extent> = Vec::new();
    for (&start, &blocks) in runs {
        let place = longest.partition_point(|other| other.blocks >= blocks);
        if place < EXTENTS_MAX {
            longest.truncate(EXTENTS_MAX - 1);
            longest.insert(place, Extent { start, blocks });
        }
    }
    for (extent, run) in extents.iter_mut().zip(longest) {
        *extent = Extent { start: run.start, blocks: run.blocks.min(blocks) };
        blocks -= extent.blocks;
        if blocks == 0 {
            return Ok(());
        }
    }
    Err(Refused::Blocks)
}

impl Free {
    /// Takes `extent` out of the run that contains it, if one does.
    fn carve(&mut self, extent: Extent) -> bool {
        let Some((&start, &blocks)) = self.runs.range(..=extent.start).next_back() else { return false };
        let run = Extent { start, blocks };
        if extent.end() > run.end() {
            return false;
        }
        self.runs.remove(&start);
        if extent.start > start {
            self.runs.insert(start, extent.start - start);
        }
        if run.end() > extent.end() {
            self.runs.insert(extent.end() as u32, (run.end() - extent.end()) as u32);
        }
        self.blocks -= u64::from(extent.blocks);
        true
    }

    /// Gives `extent` back.
    fn join(&mut self, extent: Extent) {
        if extent.blocks == 0 {
            return;
        }
        let (mut start, mut end) = (extent.start, extent.end());
        if let Some((&before, &blocks)) = self.runs.range(..=start).next_back() {
            let run_end = Extent { start: before, blocks }.end();
            assert!(run_end <= u64::from(start), "{extent:?} was free already");
            if run_end == u64::from(start) {
                start = before;
            }
        }
        if let Ok(key) = u32::try_from(end)
            && let Some(blocks) = self.runs.remove(&key)
        {
            end += u64::from(blocks);
        }
        self.runs.insert(start, (end - u64::from(start)) as u32);
        self.blocks += u64::from(extent.blocks);
    }
}

/// Blocks and an index entry that somebody holds; they are free again when it is dropped.
///
/// An item, an upload, a reader and a removal that is not durable yet each share one through `Rc`,
/// so space is used again only when the last of them is done with it.
pub(crate) struct Space {
    pub(crate) extents: [Extent; EXTENTS_MAX],
    allocator: Allocator,
}

impl Drop for Space {
    fn drop(&mut self) {
        let mut free = self.allocator.free.borrow_mut();
        self.extents.iter().for_each(|extent| free.join(*extent));
        free.entries += 1;
    }
}

/// Walks over the bytes of an item in pieces that are contiguous on the device.
#[derive(Clone, Copy)]
pub(crate) struct Cursor {
    extents: [Extent; EXTENTS_MAX],
    extent: usize,
    blocks_done: u32,
    /// Bytes of the item that no piece has covered yet.
    pub(crate) bytes_left: u64,
}

/// A piece of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// First byte on the device.
    pub(crate) offset: u64,
    /// Bytes of data; the last piece of an item may end inside a block.
    pub(crate) bytes: usize,
}

impl Piece {
    /// Bytes to transfer: whole blocks.
    pub(crate) fn padded_bytes(&self) -> usize {
        self.bytes.next_multiple_of(BLOCK_BYTES)
    }
}

impl Cursor {
    /// At the start of an item of `length` bytes, for which `extents` have room.
    pub(crate) fn new(extents: [Extent; EXTENTS_MAX], length: u64) -> Cursor {
        Cursor { extents, extent: 0, blocks_done: 0, bytes_left: length }
    }

    /// The next piece of at most `bytes_max`, a multiple of the block size.
    pub(crate) fn next(&mut self, bytes_max: usize) -> Option<Piece> {
        if self.bytes_left == 0 {
            return None;
        }
        let extent = self.extents[self.extent];
        let offset = (u64::from(extent.start) + u64::from(self.blocks_done)) * BLOCK_BYTES as u64;
        let blocks = (extent.blocks - self.blocks_done).min((bytes_max / BLOCK_BYTES) as u32);
        let bytes = self.bytes_left.min(u64::from(blocks) * BLOCK_BYTES as u64);
        self.bytes_left -= bytes;
        self.blocks_done += blocks;
        if self.blocks_done == extent.blocks {
            self.extent += 1;
            self.blocks_done = 0;
        }
        Some(Piece { offset, bytes: bytes as usize })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn allocator(blocks: u32) -> Allocator {
        Allocator::new(Extent { start: 3, blocks }, 4)
    }

    #[test]
    fn first_fit_then_the_longest_pieces() {
        let allocator = allocator(10);
        let a = allocator.take(2).unwrap();
        let b = allocator.take(3).unwrap();
        let c = allocator.take(2).unwrap();
        assert_eq!(c.extents[0], Extent { start: 8, blocks: 2 });
        drop(b);
        let scattered = allocator.take(5).unwrap();
        assert_eq!(scattered.extents[..2], [Extent { start: 5, blocks: 3 }, Extent { start: 10, blocks: 2 }]);
        assert_eq!(allocator.take(2).err(), Some(Refused::Blocks));
        drop((a, c, scattered));
        assert_eq!(allocator.take(10).unwrap().extents[0], Extent { start: 3, blocks: 10 });
        let empty: Vec<Space> = (0..4).map(|_| allocator.take(0).unwrap()).collect();
        assert_eq!(allocator.take(0).err(), Some(Refused::Entries));
        drop(empty);
        assert_eq!(allocator.take(u64::MAX).err(), Some(Refused::Blocks));
    }

    #[test]
    fn the_last_block_of_the_largest_device_is_usable() {
        let allocator = Allocator::new(Extent { start: u32::MAX - 4, blocks: 4 }, 4);
        let all = allocator.take(4).unwrap();
        drop(all);
        assert_eq!(allocator.free_bytes(), 4 * 4096);
        assert!(allocator.take(4).is_ok());
    }

    #[test]
    fn more_pieces_than_an_entry_names_are_refused() {
        let allocator = Allocator::new(Extent { start: 0, blocks: 12 }, 20);
        let mut all: Vec<Option<Space>> = (0..12).map(|_| allocator.take(1).ok()).collect();
        all.iter_mut().step_by(2).for_each(|space| *space = None);
        assert_eq!(allocator.take(6).err(), Some(Refused::Blocks));
        assert!(allocator.take(5).is_ok());
    }

    #[test]
    fn pieces_cover_an_item_and_never_cross_an_extent() {
        let mut extents = [Extent::default(); EXTENTS_MAX];
        extents[0] = Extent { start: 10, blocks: 3 };
        extents[1] = Extent { start: 1, blocks: 2 };
        let mut cursor = Cursor::new(extents, 4 * 4096 + 5);
        let pieces: Vec<Piece> = core::iter::from_fn(|| cursor.next(8192)).collect();
        assert_eq!(
            pieces,
            [
                Piece { offset: 10 * 4096, bytes: 8192 },
                Piece { offset: 12 * 4096, bytes: 4096 },
                Piece { offset: 4096, bytes: 4101 },
            ]
        );
        assert_eq!(pieces[2].padded_bytes(), 8192);
    }

    proptest! {
        #[test]
        fn held_blocks_are_disjoint_and_come_back(sizes in prop::collection::vec((0u64..40, 0usize..8), 1..80)) {
            let allocator = Allocator::new(Extent { start: 7, blocks: 100 }, 16);
            let mut held: Vec<Space> = Vec::new();
            for (blocks, victim) in sizes {
                match allocator.take(blocks) {
                    Ok(space) => {
                        prop_assert_eq!(space.extents.iter().map(|extent| u64::from(extent.blocks)).sum::<u64>(), blocks);
                        held.push(space);
                    }
                    Err(_) if held.is_empty() => prop_assert!(blocks > 100),
                    Err(_) => drop(held.swap_remove(victim % held.len())),
                }
                let mut taken = [false; 107];
                for extent in held.iter().flat_map(|space| space.extents) {
                    for block in &mut taken[extent.start as usize..extent.end() as usize] {
                        prop_assert!(!core::mem::replace(block, true));
                    }
                }
                let used = taken.iter().filter(|taken| **taken).count() as u64;
                prop_assert_eq!(allocator.free_bytes(), (100 - used) * 4096);
            }
            drop(held);
            prop_assert_eq!(allocator.take(100).unwrap().extents[0], Extent { start: 7, blocks: 100 });
            prop_assert_eq!(allocator.free_entries(), 16);
        }
    }
}
