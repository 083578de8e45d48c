//! Which blocks are free, and which uploads hold the others.
//!
//! An upload reserves room for its whole length when it starts, so that items are in few pieces. Room that it has not filled
//! can be taken back: an upload that needs room takes it from the reservations of others, but leaves each as much as it
//! has filled already, and at least [`AHEAD_BLOCKS`]. So an announcement alone occupies no space. One that has announced its length, has filled
//! [`KEPT_BLOCKS`] and continues fast enough ([`Allocator::pace`]) keeps all: on a full disk each newcomer would otherwise take what an earlier one lacks later.

use crate::format::{BLOCK_BYTES, EXTENTS_MAX, Extent};
use crate::limits::{CHUNK_BYTES, KEPT_BYTES, PACE_TIME, SLOW_BYTES, SLOW_TIME};
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use core::cell::RefCell;
use glasshouse::Instant;

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
    /// The blocks of open uploads, by number.
    reservations: BTreeMap<u64, Reserved>,
    reservations_made: u64,
    /// When [`Allocator::pace`] looked at the reservations last.
    paced: Option<Instant>,
}

/// Blocks of an open upload, in the order in which they are filled.
struct Reserved {
    extents: [Extent; EXTENTS_MAX],
    /// Blocks that were given out to be filled.
    used: u64,
    /// Its length is known, so that it wants no more than it has reserved.
    is_announced: bool,
    pace: Pace,
}

/// How fast a reservation is filled.
#[derive(Clone, Copy)]
enum Pace {
    /// Not known yet.
    New,
    /// Since there were so many used blocks.
    Fast(u64),
    Slow(u64),
}

/// Blocks ahead of its data that an upload always keeps: one chunk.
const AHEAD_BLOCKS: u64 = (CHUNK_BYTES / BLOCK_BYTES) as u64;

/// See [`KEPT_BYTES`].
const KEPT_BLOCKS: u64 = KEPT_BYTES / BLOCK_BYTES as u64;

/// Why a reservation failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Not enough blocks, or so scattered that an entry cannot name them.
    Blocks,
    /// Every entry of the index is taken.
    Entries,
}

impl Allocator {
    /// `free` runs, no two of which touch, and so many free entries.
    pub(crate) fn new(free: impl IntoIterator<Item = Extent>, entries: usize) -> Allocator {
        let runs: BTreeMap<u32, u32> = free.into_iter().map(|run| (run.start, run.blocks)).collect();
        let blocks = runs.values().map(|&blocks| u64::from(blocks)).sum();
        let free = Free { runs, blocks, entries, reservations: BTreeMap::new(), reservations_made: 0, paced: None };
        Allocator { free: Rc::new(RefCell::new(free)) }
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        self.free.borrow().blocks * BLOCK_BYTES as u64
    }

    pub(crate) fn free_entries(&self) -> usize {
        self.free.borrow().entries
    }

    /// Reserves `blocks` blocks and one index entry: the first run that is long enough, or else the fewest runs that
    /// are in total. If too little is free, other uploads give back what they have not filled.
    pub(crate) fn reserve(&self, blocks: u64) -> Result<Reservation, Refused> {
        let mut free = self.free.borrow_mut();
        if free.entries == 0 {
            return Err(Refused::Entries);
        }
        if free.blocks + free.idle_blocks() < blocks {
            return Err(Refused::Blocks);
        }
        let lacking = blocks.saturating_sub(free.blocks);
        free.reclaim(lacking, None);
        let wanted = blocks as u32;
        let extents = match free.find(wanted) {
            Ok(found) => found,
            Err(refused) => {
                // Enough, but too scattered: what others have not filled may join it.
                free.reclaim(u64::MAX, None);
                free.find(wanted).map_err(|_| refused)?
            }
        };
        Ok(self.hold(&mut free, extents, true))
    }

    /// Notes which uploads are being filled as fast as a client has to that keeps its slot while others wait. To be called before room is
    /// reserved; does something once in [`PACE_TIME`] at most.
    pub(crate) fn pace(&self, now: Instant) {
        let mut free = self.free.borrow_mut();
        let elapsed = now - *free.paced.get_or_insert(now);
        if elapsed < PACE_TIME {
            return;
        }
        free.paced = Some(now);
        let bytes = u128::from(SLOW_BYTES) * elapsed.as_millis() / SLOW_TIME.as_millis();
        let blocks = (bytes / BLOCK_BYTES as u128) as u64;
        for reserved in free.reservations.values_mut() {
            let used = reserved.used;
            reserved.pace = match reserved.pace {
                Pace::Fast(before) | Pace::Slow(before) if used.saturating_sub(before) < blocks => Pace::Slow(used),
                _ => Pace::Fast(used),
            };
        }
    }

    /// Reserves room for an upload of unknown length: the longest run, `blocks_max` blocks at most. The
    /// reservation grows as it is filled.
    pub(crate) fn reserve_some(&self, blocks_max: u64) -> Result<Reservation, Refused> {
        let mut free = self.free.borrow_mut();
        if free.entries == 0 {
            return Err(Refused::Entries);
        }
        free.share_out(None);
        let mut extents = [Extent::default(); EXTENTS_MAX];
        if let Some(run) = free.longest_run() {
            extents[0] = Extent { start: run.start, blocks: u64::from(run.blocks).min(blocks_max) as u32 };
        }
        Ok(self.hold(&mut free, extents, false))
    }

    fn hold(&self, free: &mut Free, extents: [Extent; EXTENTS_MAX], is_announced: bool) -> Reservation {
        for extent in extents.iter().filter(|extent| extent.blocks > 0) {
            assert!(free.carve(*extent), "{extent:?} was found free");
        }
        free.entries -= 1;
        self.number(free, Reserved { is_announced, ..Reserved::new(extents, 0) })
    }

    fn number(&self, free: &mut Free, reserved: Reserved) -> Reservation {
        free.reservations_made += 1;
        let number = free.reservations_made;
        free.reservations.insert(number, reserved);
        Reservation { allocator: self.clone(), number }
    }

    /// The space of an item, whose blocks and entry are taken.
    pub(crate) fn space_of(&self, extents: [Extent; EXTENTS_MAX]) -> Space {
        Space { extents, allocator: Some(self.clone()) }
    }

    /// Takes exactly `extents`, which an index names, as those of an upload that has filled them and may grow.
    pub(crate) fn reserve_exactly(&self, extents: [Extent; EXTENTS_MAX]) -> Option<Reservation> {
        let mut free = self.free.borrow_mut();
        let used = extents.iter().map(|extent| u64::from(extent.blocks)).sum();
        free.take(&extents).then(|| self.number(&mut free, Reserved::new(extents, used)))
    }

    /// An index entry without blocks; `None` if all are taken.
    pub(crate) fn take_entry(&self) -> Option<IndexEntry> {
        let mut free = self.free.borrow_mut();
        free.entries = free.entries.checked_sub(1)?;
        Some(IndexEntry { allocator: self.clone() })
    }
}

/// An entry of the index without blocks; it is free again when this is dropped.
pub(crate) struct IndexEntry {
    allocator: Allocator,
}

impl Drop for IndexEntry {
    fn drop(&mut self) {
        self.allocator.free.borrow_mut().entries += 1;
    }
}

/// Room for an open upload; all of it is free again when this is dropped.
pub(crate) struct Reservation {
    allocator: Allocator,
    number: u64,
}

impl Reservation {
    /// The next blocks to fill, `blocks_max` at most and in one piece. `blocks_wanted` is the total of missing blocks.
    pub(crate) fn next(&mut self, blocks_max: u32, blocks_wanted: u64) -> Result<Extent, Refused> {
        let mut free = self.allocator.free.borrow_mut();
        let reserved = &free.reservations[&self.number];
        let ahead = reserved.blocks() - reserved.used;
        if ahead == 0 || (reserved.is_announced && ahead < blocks_wanted) {
            free.grow(self.number, blocks_wanted - ahead)?;
        }
        let reserved = free.reservations.get_mut(&self.number).expect("it is there as long as its holder");
        let rest = reserved.rest().ok_or(Refused::Blocks)?;
        let blocks = rest.blocks.min(blocks_max);
        reserved.used += u64::from(blocks);
        Ok(Extent { start: rest.start, blocks })
    }

    /// The first `blocks` of those given out.
    pub(crate) fn first(&self, blocks: u64) -> [Extent; EXTENTS_MAX] {
        let free = self.allocator.free.borrow();
        let Reserved { extents, used, .. } = free.reservations[&self.number];
        assert!(blocks <= used, "{blocks} blocks of {used}");
        let mut first = Reserved::new(extents, used);
        first.cut(blocks);
        first.extents
    }

    /// All blocks but the first `blocks` are to be filled again.
    pub(crate) fn rewind(&mut self, blocks: u64) {
        let mut free = self.allocator.free.borrow_mut();
        let reserved = free.reservations.get_mut(&self.number).expect("it is there as long as its holder");
        assert!(blocks <= reserved.used, "{blocks} blocks of {}", reserved.used);
        reserved.used = blocks;
    }

    /// Ends with the first `blocks` of those given out; the others are free again.
    pub(crate) fn into_space(self, blocks: u64) -> Space {
        let mut free = self.allocator.free.borrow_mut();
        let mut reserved = free.reservations.remove(&self.number).expect("it is there as long as its holder");
        assert!(blocks <= reserved.used, "{blocks} blocks of {}", reserved.used);
        let extents = reserved.cut(blocks);
        extents.into_iter().for_each(|extent| free.join(extent));
        Space { extents: reserved.extents, allocator: Some(self.allocator.clone()) }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut free = self.allocator.free.borrow_mut();
        // The reservation no longer exists when it has become a space.
        if let Some(reserved) = free.reservations.remove(&self.number) {
            reserved.extents.into_iter().for_each(|extent| free.join(extent));
            free.entries += 1;
        }
    }
}

impl Reserved {
    /// One of an upload whose length is not known.
    fn new(extents: [Extent; EXTENTS_MAX], used: u64) -> Reserved {
        Reserved { extents, used, is_announced: false, pace: Pace::New }
    }

    fn blocks(&self) -> u64 {
        self.extents.iter().map(|extent| u64::from(extent.blocks)).sum()
    }

    /// Blocks that others may take.
    fn idle_blocks(&self) -> u64 {
        if self.is_announced && self.used >= KEPT_BLOCKS && !matches!(self.pace, Pace::Slow(_)) {
            return 0;
        }
        self.blocks().saturating_sub(self.used + self.used.max(AHEAD_BLOCKS))
    }

    /// The part that was not given out of the extent of the next block.
    fn rest(&self) -> Option<Extent> {
        let mut before = 0;
        for extent in &self.extents {
            let end = before + u64::from(extent.blocks);
            if self.used < end {
                let done = (self.used - before) as u32;
                return Some(Extent { start: extent.start + done, blocks: extent.blocks - done });
            }
            before = end;
        }
        None
    }

    /// Keeps the first `blocks` and returns the others.
    fn cut(&mut self, blocks: u64) -> [Extent; EXTENTS_MAX] {
        let mut left = blocks;
        let mut cut = [Extent::default(); EXTENTS_MAX];
        for (extent, cut) in self.extents.iter_mut().zip(&mut cut) {
            let keep = left.min(u64::from(extent.blocks)) as u32;
            left -= u64::from(keep);
            if keep < extent.blocks {
                *cut = Extent { start: extent.start + keep, blocks: extent.blocks - keep };
            }
            *extent = if keep == 0 { Extent::default() } else { Extent { start: extent.start, blocks: keep } };
        }
        cut
    }
}

/// The longest runs, until they are enough.
fn gather(runs: &BTreeMap<u32, u32>, mut blocks: u32, extents: &mut [Extent; EXTENTS_MAX]) -> Result<(), Refused> {
    let mut longest = [Extent::default(); EXTENTS_MAX];
    for (&start, &blocks) in runs {
        let place = longest.partition_point(|other| other.blocks >= blocks);
        let shorter = &mut longest[place..];
        if let Some(shortest) = shorter.last_mut() {
            *shortest = Extent { start, blocks };
            shorter.rotate_right(1);
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
    /// Free runs that are `blocks` long in total.
    fn find(&self, blocks: u32) -> Result<[Extent; EXTENTS_MAX], Refused> {
        let mut extents = [Extent::default(); EXTENTS_MAX];
        match self.runs.iter().find(|run| *run.1 >= blocks) {
            Some((&start, _)) => extents[0] = Extent { start, blocks },
            None => gather(&self.runs, blocks, &mut extents)?,
        }
        Ok(extents)
    }

    fn longest_run(&self) -> Option<Extent> {
        let longest = self.runs.iter().max_by_key(|run| *run.1);
        longest.map(|(&start, &blocks)| Extent { start, blocks })
    }

    /// Blocks that uploads hold and others may take.
    fn idle_blocks(&self) -> u64 {
        self.reservations.values().map(Reserved::idle_blocks).sum()
    }

    /// Takes blocks back that uploads have not filled, until `blocks` more are free: from the largest first.
    fn reclaim(&mut self, mut blocks: u64, but: Option<u64>) {
        loop {
            let others = self.reservations.iter_mut().filter(|(number, _)| Some(**number) != but);
            let Some((_, largest)) = others.max_by_key(|(_, reserved)| reserved.idle_blocks()) else { return };
            let taken = largest.idle_blocks().min(blocks);
            if taken == 0 {
                return;
            }
            let kept = largest.blocks() - taken;
            let extents = largest.cut(kept);
            extents.into_iter().for_each(|extent| self.join(extent));
            blocks -= taken;
        }
    }

    /// Frees half of the largest part that an upload has not filled, unless as much is free in one piece. So
    /// both uploads have room to grow.
    fn share_out(&mut self, but: Option<u64>) {
        let others = self.reservations.iter().filter(|(number, _)| Some(**number) != but);
        let half = others.map(|(_, reserved)| reserved.idle_blocks()).max().unwrap_or(0) / 2;
        if self.longest_run().is_none_or(|run| u64::from(run.blocks) < half) {
            self.reclaim(half, but);
        }
    }

    /// Gives a full reservation more room, `blocks_wanted` at most: after its end if that is free, otherwise in the
    /// longest run.
    fn grow(&mut self, number: u64, blocks_wanted: u64) -> Result<(), Refused> {
        if self.reservations[&number].is_announced {
            return self.grow_whole(number, blocks_wanted);
        }
        let lacking = blocks_wanted.min(AHEAD_BLOCKS).saturating_sub(self.blocks);
        self.share_out(Some(number));
        self.reclaim(lacking, Some(number));
        self.extend(number, blocks_wanted).map(drop)
    }

    /// Gives a reservation all that was taken from it: with a part alone its upload would fail later, after more was sent.
    fn grow_whole(&mut self, number: u64, blocks_wanted: u64) -> Result<(), Refused> {
        let others = self.reservations.iter().filter(|(other, _)| **other != number);
        if self.blocks + others.map(|(_, other)| other.idle_blocks()).sum::<u64>() < blocks_wanted {
            return Err(Refused::Blocks);
        }
        self.reclaim(blocks_wanted.saturating_sub(self.blocks), Some(number));
        let mut left = blocks_wanted;
        while left > 0 {
            left -= self.extend(number, left)?;
        }
        Ok(())
    }

    /// Adds blocks at the end of a reservation, at most so many: after its end if that is free, otherwise in the longest run. Returns how many.
    fn extend(&mut self, number: u64, blocks_max: u64) -> Result<u64, Refused> {
        let reserved = &self.reservations[&number];
        let count = reserved.extents.iter().take_while(|extent| extent.blocks > 0).count();
        let end = count.checked_sub(1).map(|last| reserved.extents[last].end());
        let behind = end
            .and_then(|end| u32::try_from(end).ok())
            .and_then(|start| self.runs.get(&start).map(|&blocks| Extent { start, blocks }));
        let run = behind.or_else(|| if count < EXTENTS_MAX { self.longest_run() } else { None });
        let run = run.ok_or(Refused::Blocks)?;
        let taken = Extent { start: run.start, blocks: u64::from(run.blocks).min(blocks_max) as u32 };
        assert!(self.carve(taken), "{taken:?} was found free");
        let reserved = self.reservations.get_mut(&number).expect("it was there above");
        match behind {
            Some(_) => reserved.extents[count - 1].blocks += taken.blocks,
            None => reserved.extents[count] = taken,
        }
        Ok(u64::from(taken.blocks))
    }

    /// Takes an entry and exactly these blocks; false when they are not all free.
    fn take(&mut self, extents: &[Extent; EXTENTS_MAX]) -> bool {
        if self.entries == 0 {
            return false;
        }
        for (count, extent) in extents.iter().enumerate().filter(|(_, extent)| extent.blocks > 0) {
            if !self.carve(*extent) {
                extents[..count].iter().for_each(|extent| self.join(*extent));
                return false;
            }
        }
        self.entries -= 1;
        true
    }

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

/// Blocks and an index entry in use; they are free again when this is dropped.
///
/// One of an item in the index exists only while the item is added, and from its removal until its last reader has ended.
pub(crate) struct Space {
    pub(crate) extents: [Extent; EXTENTS_MAX],
    /// `None` once it is kept.
    allocator: Option<Allocator>,
}

impl Space {
    /// It belongs to an item in the index, until [`Allocator::space_of`].
    pub(crate) fn keep(mut self) {
        self.allocator = None;
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let Some(allocator) = &self.allocator else { return };
        let mut free = allocator.free.borrow_mut();
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
#[path = "allocator_tests.rs"]
mod tests;
