//! Opening a disk: finds the newest state that is complete, or makes a new store on an empty disk.

use crate::error::{Dropped, OpenError, Recovery, StoreError};
use crate::format::{FIRST_PAGE, PAGE_BYTES, Roots, SLOT_BYTES, Slot};
use crate::pages::Pages;
use crate::space::{RESERVE_PAGES, Space};
use crate::walk::{Walk, walk};
use alloc::vec::Vec;
use glass_api::{Block, BlockError, Buf};

/// Pages of the smallest store.
const PAGES_MIN: u32 = FIRST_PAGE + RESERVE_PAGES + 30;
/// A disk that is not a store must be zero in so many bytes from its start and in its last piece: file systems, partition
/// tables and RAID members have signatures there.
const ZERO_HEAD_BYTES: u64 = 4 << 20;
/// Bytes of each read meanwhile.
const ZERO_PIECE_BYTES: u64 = 256 << 10;
/// Pages in between that must be zero, too, at equal distances.
const ZERO_SAMPLES: u64 = 16;

/// An opened disk.
pub struct Opened<B> {
    pub pages: Pages<B>,
    pub space: Space,
    pub roots: Roots,
    /// The newest sequence of which a slot may be on the disk.
    pub attempted: u64,
    pub recovery: Recovery,
}

/// Opens `block`.
pub async fn open<B: Block>(block: B, cache_bytes: usize) -> Result<Opened<B>, OpenError> {
    let info = block.info();
    let least_bytes = u64::from(PAGES_MIN) * PAGE_BYTES as u64;
    if info.sector_bytes as usize > PAGE_BYTES {
        return Err(OpenError::SectorSize(info.sector_bytes));
    }
    if info.size_bytes < least_bytes {
        return Err(OpenError::TooSmall { size_bytes: info.size_bytes, least_bytes });
    }
    let slots = [read_slot(&block, 0).await?, read_slot(&block, 1).await?];
    let pages = Pages::new(block, cache_bytes);
    let mut candidates = candidates(&slots)?;
    if candidates.is_empty() {
        return format(pages).await;
    }
    let mut dropped = unread_slot(&slots, candidates[0].sequence);
    let attempted = candidates[0].sequence;
    loop {
        let roots = candidates.remove(0);
        let store_bytes = u64::from(roots.pages) * PAGE_BYTES as u64;
        if store_bytes > info.size_bytes || roots.pages < PAGES_MIN {
            return Err(OpenError::Shrunk { store_bytes, size_bytes: info.size_bytes });
        }
        let mut space = Space::new(roots.pages)?;
        let Walk { torn, damaged } = walk(&pages, &roots, &mut space, !candidates.is_empty()).await.map_err(failed)?;
        if let Some(page) = torn.filter(|_| !candidates.is_empty()) {
            dropped = Some(Dropped::Page { sequence: roots.sequence, page });
            continue;
        }
        if !info.read_only {
            // A service that was killed leaves writes in the cache of its host. They are read from now on, so a later power
            // cut must not remove them.
            pages.block.flush().await?;
        }
        let recovery = Recovery {
            formatted: false,
            sequence: roots.sequence,
            entries: roots.trees.iter().map(|tree| tree.entries).fold(0, u64::saturating_add),
            dropped,
            damaged,
            unused_bytes: info.size_bytes - store_bytes,
        };
        return Ok(Opened { pages, space, roots, attempted, recovery });
    }
}

async fn read_slot<B: Block>(block: &B, page: u32) -> Result<Slot, OpenError> {
    let (result, buf) = block.read(u64::from(page) * PAGE_BYTES as u64, Buf::zeroed(PAGE_BYTES)?).await;
    result?;
    Ok(Slot::decode(page, buf.get(..SLOT_BYTES).unwrap_or(&[])))
}

/// The states in the slots, the newest first; none if both were never written.
fn candidates(slots: &[Slot; 2]) -> Result<Vec<Roots>, OpenError> {
    let mut candidates = Vec::new();
    for slot in slots {
        match slot {
            Slot::OtherVersion(version) => return Err(OpenError::Version(*version)),
            Slot::Valid(roots) => candidates.push(roots.clone()),
            _ => {}
        }
    }
    if candidates.is_empty() {
        if slots.contains(&Slot::Damaged) {
            return Err(OpenError::Damaged);
        }
        if let Some(page) = slots.iter().position(|slot| *slot == Slot::Foreign) {
            return Err(OpenError::Foreign { offset: (page * PAGE_BYTES) as u64 });
        }
    }
    candidates.sort_by_key(|roots| core::cmp::Reverse(roots.sequence));
    Ok(candidates)
}

/// The slot that has no state although a commit wrote one. A new store has one slot.
fn unread_slot(slots: &[Slot; 2], newest: u64) -> Option<Dropped> {
    let page = slots.iter().position(|slot| !matches!(slot, Slot::Valid(_)))?;
    (newest > 1 || slots[page] != Slot::Empty).then_some(Dropped::Slot(page as u32))
}

/// Of the errors of a walk only those of the disk and of memory can occur.
fn failed(error: StoreError) -> OpenError {
    match error {
        StoreError::Memory(error) => OpenError::Memory(error),
        StoreError::Disk(error) => OpenError::Disk(error),
        _ => OpenError::Damaged,
    }
}

/// Makes a new store on a disk that is empty. A power cut leaves it empty or complete: a slot fits into a unit that does not tear.
async fn format<B: Block>(pages: Pages<B>) -> Result<Opened<B>, OpenError> {
    let info = pages.block.info();
    if info.read_only {
        return Err(OpenError::Disk(BlockError::ReadOnly));
    }
    check_empty(&pages.block).await?;
    let count = u32::try_from(info.size_bytes / PAGE_BYTES as u64).unwrap_or(u32::MAX);
    let roots = Roots { sequence: 1, pages: count, trees: Vec::new() };
    let space = Space::new(count)?;
    write_slot(&pages.block, &roots).await.map_err(failed)?;
    let unused_bytes = info.size_bytes - u64::from(count) * PAGE_BYTES as u64;
    let recovery = Recovery { formatted: true, sequence: 1, entries: 0, dropped: None, damaged: None, unused_bytes };
    Ok(Opened { pages, space, roots, attempted: 1, recovery })
}

/// Writes a state to its slot and flushes it, with the pages that were written before.
pub async fn write_slot<B: Block>(block: &B, roots: &Roots) -> Result<(), StoreError> {
    let mut buf = Buf::zeroed(SLOT_BYTES.max(block.info().sector_bytes as usize))?;
    buf.as_mut().expect("a new buffer has one owner")[..SLOT_BYTES].copy_from_slice(&roots.encode());
    block.write(u64::from(roots.page()) * PAGE_BYTES as u64, buf).await.0?;
    Ok(block.flush().await?)
}

async fn check_empty<B: Block>(block: &B) -> Result<(), OpenError> {
    let sector_bytes = u64::from(block.info().sector_bytes);
    let size = block.info().size_bytes;
    let (piece, head) = (ZERO_PIECE_BYTES.min(size), ZERO_HEAD_BYTES.min(size));
    let sample_of = |number| size / ZERO_SAMPLES * number / sector_bytes * sector_bytes;
    let pieces = (0..head).step_by(piece as usize).map(|from| from.min(head - piece)).chain([size - piece]);
    let samples = (1..ZERO_SAMPLES).map(sample_of).filter(|from| *from >= head);
    let mut buf = Buf::zeroed(piece as usize)?;
    for offset in pieces {
        buf = check_zero(block, offset, buf).await?;
    }
    let mut buf = Buf::zeroed(PAGE_BYTES)?;
    for offset in samples {
        buf = check_zero(block, offset, buf).await?;
    }
    Ok(())
}

async fn check_zero<B: Block>(block: &B, offset: u64, buf: Buf) -> Result<Buf, OpenError> {
    let (result, buf) = block.read(offset, buf).await;
    result?;
    match buf.iter().position(|byte| *byte != 0) {
        Some(place) => Err(OpenError::Foreign { offset: offset + place as u64 }),
        None => Ok(buf),
    }
}
