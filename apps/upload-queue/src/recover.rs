//! The index at the start: how it is read, whatever its version, and how it is written anew where it has to be in another place.
//!
//! An index is written anew into blocks that are free, or that only the older of two slots has, and then the superblock names it. So a power cut
//! at any time leaves the index of before, whole, or the new one.

use crate::error::{OpenError, Recovery};
use crate::format::{
    self, BLOCK_BYTES, CLEARED, Checkpoint, Contents, Entry, Extent, Fault, Geometry, IndexPlace, Layout, Newest,
    PAGE_ENTRIES, Places, Superblock, SuperblockState, Table, UploadEntry, UploadProgress, decode_page,
};
use crate::inflight::InFlight;
use crate::journal::Journal;
use crate::limits::{INDEX_READ_BLOCKS, INDEX_WRITES};
use crate::open::{Opened, free_runs, read, write, write_superblock};
use alloc::collections::{BTreeSet, TryReserveError};
use alloc::vec::Vec;
use core::ops::Range;
use glasshouse::future::join;
use glasshouse::{Block, Buf, OutOfMemory};

/// What an index has.
pub(crate) struct Found {
    table: Table,
    contents: Contents,
    sequence: u64,
    next_id: u64,
    /// Where it continues; `None` of an older version.
    journal: Option<Journal>,
}

fn offset(block: u32) -> u64 {
    u64::from(block) * BLOCK_BYTES as u64
}

fn no_memory(_: TryReserveError) -> OpenError {
    OpenError::Memory(OutOfMemory { bytes: BLOCK_BYTES })
}

/// Reads an index of version 1 or 2.
pub(crate) async fn read_slots<B: Block>(block: &B, geometry: Geometry) -> Result<(Found, Recovery), OpenError> {
    let slot = async |number| {
        let bytes = read(block, offset(geometry.slot_start(number)), geometry.slot_bytes()).await?;
        Ok(format::decode_slot(geometry, number, &bytes))
    };
    let (first, second): (Result<_, OpenError>, Result<_, OpenError>) = join(slot(0), slot(1)).await;
    let Newest { index, broken_slot } = format::newest([first?, second?]).map_err(OpenError::NoIndex)?;
    let format::Index { sequence, next_id, entries, uploads } = index;
    let mut table = Table::new();
    let mut contents = Contents::default();
    let mut places = 0u32..;
    let mut next = |table: &mut Table| {
        let place = places.next().expect("a slot has few entries");
        if place % PAGE_ENTRIES == 0 {
            table.grow().map_err(no_memory)?;
        }
        Ok::<u32, OpenError>(place)
    };
    for entry in &entries {
        let place = next(&mut table)?;
        table.set(place, &entry.encoded());
        contents.items.push((entry.id, place));
    }
    for upload in uploads {
        let data = match upload.data() {
            Some(data) => {
                let place = next(&mut table)?;
                table.set(place, &data);
                Some(place)
            }
            None => None,
        };
        let name = next(&mut table)?;
        table.set(name, &upload.named(data));
        contents.uploads.push((upload, Places { name, data }));
    }
    contents.taken = entries.iter().flat_map(|entry: &Entry| entry.extents).filter(|run| run.blocks > 0).collect();
    contents.taken.sort_unstable_by_key(|run| run.start);
    let recovery = recovery(&contents, sequence, broken_slot, false);
    Ok((Found { table, contents, sequence, next_id, journal: None }, recovery))
}

/// Reads an index of version 3, and clears what a commit or a checkpoint that was cut short has left; the caller flushes that.
pub(crate) async fn read_pages<B: Block>(block: &B, layout: Layout) -> Result<(Found, Recovery), OpenError> {
    let checkpoint_bytes = layout.checkpoint_blocks() as usize * BLOCK_BYTES;
    let slot = async |number| {
        let bytes = read(block, offset(layout.checkpoint_start(number)), checkpoint_bytes).await?;
        Ok(Checkpoint::decode(layout, number, &bytes))
    };
    let (first, second): (Result<_, OpenError>, Result<_, OpenError>) = join(slot(0), slot(1)).await;
    let (checkpoint, broken_slot) = format::newest_checkpoint([first?, second?]).map_err(OpenError::NoIndex)?;
    let mut table = Table::new();
    let (sums, newest) = read_table(block, layout, &checkpoint, &mut table).await?;
    let ring = read(block, offset(layout.log_start()), layout.log_blocks as usize * BLOCK_BYTES).await?;
    let replayed = table.replay(layout, &ring, &checkpoint).map_err(no_memory)?;
    drop(ring);
    let (end, dirty) = replayed.map_err(OpenError::Index)?;
    if newest > end.sequence {
        return Err(OpenError::Index(Fault::Log { sequence: end.sequence }));
    }
    let contents = table.contents(layout, end.next_id).map_err(OpenError::Index)?;
    // Parts of these and of what is written there next could be whole together.
    let broken = end.broken.iter().map(|place| layout.log_start() + place);
    for place in broken.chain(broken_slot.map(|(slot, _)| layout.checkpoint_start(slot))) {
        let mut cleared = Buf::zeroed(BLOCK_BYTES)?;
        cleared.as_mut().expect("a new buffer has one owner").fill(CLEARED);
        write(block, offset(place), cleared).await?;
    }
    let recovery = recovery(&contents, end.sequence, broken_slot, !end.broken.is_empty());
    let journal = Journal::new(layout, &checkpoint, sums, end.log_block, dirty);
    let (sequence, next_id) = (end.sequence, end.next_id);
    Ok((Found { table, contents, sequence, next_id, journal: Some(journal) }, recovery))
}

fn recovery(contents: &Contents, sequence: u64, broken_slot: Option<(u64, Fault)>, is_log_broken: bool) -> Recovery {
    let is_open = |(upload, _): &&(UploadEntry, Places)| matches!(upload.progress, UploadProgress::Open { .. });
    let uploads = contents.uploads.iter().filter(is_open).count();
    Recovery { sequence, items: contents.items.len(), uploads, broken_slot, is_log_broken, ..Recovery::default() }
}

/// Reads the pages of a checkpoint into `table`, those beside each other at once. Returns their checksums and the newest commit of which one
/// has changes.
async fn read_table<B: Block>(
    block: &B,
    layout: Layout,
    checkpoint: &Checkpoint,
    table: &mut Table,
) -> Result<(Vec<u64>, u64), OpenError> {
    let (mut sums, mut newest, mut reads) = (Vec::new(), 0, InFlight::new());
    let mut wanted = 0;
    loop {
        while reads.len() < INDEX_WRITES && wanted < checkpoint.places.len() {
            let rest = &checkpoint.places[wanted..];
            let count = rest.iter().take(INDEX_READ_BLOCKS as usize).take_while(|place| **place == rest[0]).count();
            let place = layout.page_place(wanted as u32, rest[0]);
            wanted += count;
            let (block, buf) = (block.clone(), Buf::zeroed(count * BLOCK_BYTES)?);
            reads.push(async move { block.read(offset(place), buf).await }).await;
        }
        let Some((result, buf)) = reads.pop().await else { break };
        result?;
        for bytes in buf.chunks_exact(BLOCK_BYTES) {
            let (sum, sequence) = decode_page(sums.len() as u32, bytes).map_err(OpenError::Index)?;
            table.add_page(bytes).map_err(no_memory)?;
            sums.push(sum);
            newest = newest.max(sequence);
        }
    }
    match sums.iter().copied().fold(0, u64::wrapping_add) == checkpoint.sum {
        true => Ok((sums, newest)),
        false => Err(OpenError::Index(Fault::Pages)),
    }
}

/// The index that the queue uses from now on, with `total_blocks` for it: the one that was found, or if that is too small for so many blocks or
/// of an older version, a new one where there is space for it.
pub(crate) async fn settle<B: Block>(
    block: &B,
    place: IndexPlace,
    total_blocks: u32,
    found: Found,
) -> Result<Opened, OpenError> {
    let Found { table, contents, sequence, next_id, journal } = found;
    let size_bytes = offset(total_blocks);
    let wanted = Layout::for_device(size_bytes).ok_or(OpenError::TooSmall { size_bytes })?.pages_max;
    let new = match place {
        IndexPlace::Pages(layout) if layout.pages_max >= wanted => None,
        IndexPlace::Pages(layout) => place_for(&contents, layout.index(), total_blocks, wanted, wanted),
        IndexPlace::Slots { geometry, .. } => {
            let uploads = contents.uploads.iter().map(|(upload, _)| upload.entries()).sum::<usize>();
            // For what there is, and one more.
            let least = ((contents.items.len() + uploads) as u32 + 1).div_ceil(PAGE_ENTRIES);
            let current = geometry.slot_start(sequence);
            // The other slot has no use any more, if there is no space elsewhere.
            let kept = [1..geometry.data_start(), current..current + geometry.slot_blocks];
            let find = |kept| place_for(&contents, kept, total_blocks, wanted.max(least), least);
            let bytes = Layout::with_pages(total_blocks, 1, least).index_blocks() * BLOCK_BYTES as u64;
            Some(kept.into_iter().find_map(find).ok_or(OpenError::NoSpace { bytes })?)
        }
    };
    let (layout, journal) = match (new, place, journal) {
        (None, IndexPlace::Pages(old), Some(journal)) => {
            let layout = Layout { total_blocks, ..old };
            (layout, journal.with_layout(layout))
        }
        (Some(layout), ..) => {
            let journal = write_index(block, layout, &table, sequence, next_id).await?;
            block.flush().await?;
            (layout, journal)
        }
        _ => unreachable!("an index of version 3 has a journal, and an older one is written anew"),
    };
    if place != IndexPlace::Pages(layout) {
        write_superblock(block, &Superblock { place: IndexPlace::Pages(layout), state: SuperblockState::Ready })
            .await?;
    }
    Ok(Opened { layout, table, contents, journal, sequence, next_id })
}

/// A layout whose index is in free blocks: with room for `pages_wanted` pages, or else as many as there is space for, and at least `pages_least`.
/// Blocks that are `kept` are not free.
fn place_for(
    contents: &Contents,
    kept: Range<u32>,
    total_blocks: u32,
    pages_wanted: u32,
    pages_least: u32,
) -> Option<Layout> {
    let mut taken = contents.taken.clone();
    let uploads = contents.uploads.iter().filter_map(|(upload, _)| match upload.progress {
        UploadProgress::Open { extents, .. } => Some(extents),
        UploadProgress::Complete { .. } => None,
    });
    taken.extend(uploads.flatten().filter(|run| run.blocks > 0));
    taken.sort_unstable_by_key(|run| run.start);
    let runs: Vec<Extent> = free_runs(total_blocks, kept, &taken).collect();
    let mut pages = pages_wanted;
    loop {
        let blocks = Layout::with_pages(total_blocks, 1, pages).index_blocks();
        let run = runs.iter().find(|run| u64::from(run.blocks) >= blocks);
        if let Some(run) = run {
            return Some(Layout::with_pages(total_blocks, run.start, pages));
        }
        if pages == pages_least {
            return None;
        }
        pages = (pages / 2).max(pages_least);
    }
}

/// Writes an index with the entries of `table` to the blocks that `layout` has for it; the caller flushes.
pub(crate) async fn write_index<B: Block>(
    block: &B,
    layout: Layout,
    table: &Table,
    sequence: u64,
    next_id: u64,
) -> Result<Journal, OpenError> {
    const FIRST: u64 = 1;
    // What was there may look like a log.
    let zeroes = async |place: u32, blocks: u32| -> Result<(), OpenError> {
        let buf = Buf::zeroed(INDEX_READ_BLOCKS.min(blocks) as usize * BLOCK_BYTES)?;
        for first in (0..blocks).step_by(INDEX_READ_BLOCKS as usize) {
            let count = INDEX_READ_BLOCKS.min(blocks - first) as usize;
            write(block, offset(place + first), buf.slice(0..count * BLOCK_BYTES)).await?;
        }
        Ok(())
    };
    zeroes(layout.log_start(), layout.log_blocks).await?;
    zeroes(layout.checkpoint_start(FIRST + 1), 1).await?;
    let (pages, mut sums) = (table.used_pages(), Vec::new());
    for first in (0..pages).step_by(INDEX_READ_BLOCKS as usize) {
        let count = INDEX_READ_BLOCKS.min(pages - first);
        let mut buf = Buf::zeroed(count as usize * BLOCK_BYTES)?;
        let bytes = buf.as_mut().expect("a new buffer has one owner").chunks_exact_mut(BLOCK_BYTES);
        sums.extend((first..).zip(bytes).map(|(page, bytes)| table.encode_page(page, sequence, bytes)));
        write(block, offset(layout.page_place(first, false)), buf).await?;
    }
    let sum = sums.iter().copied().fold(0, u64::wrapping_add);
    let places = core::iter::repeat_n(false, pages as usize).collect();
    let checkpoint = Checkpoint { number: FIRST, sequence, next_id, log_block: 0, sum, places };
    let mut buf = Buf::zeroed(layout.checkpoint_blocks() as usize * BLOCK_BYTES)?;
    let used = checkpoint.encode(buf.as_mut().expect("a new buffer has one owner"));
    write(block, offset(layout.checkpoint_start(FIRST)), buf.slice(0..used)).await?;
    Ok(Journal::new(layout, &checkpoint, sums, 0, BTreeSet::new()))
}
