//! Opens a disk as a queue: finds or formats it, and reads its index.

use crate::error::{OpenError, Recovery};
use crate::format::{
    self, BLOCK_BYTES, Geometry, Index, Newest, Superblock, SuperblockState, UploadProgress, VERSION_1,
};
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use glasshouse::future::{join, join_array};
use glasshouse::{Block, Buf};

/// A disk that is neither ours nor erased on request must be zero in this many bytes from its start, and before
/// its end: file systems, partition tables and RAID members have signatures there. So much from the start also shows the
/// items of a queue of which the first MiB was erased.
const ZERO_HEAD_BYTES: u64 = 1280 * 1024;
const ZERO_TAIL_BYTES: u64 = 256 * 1024;
/// Bytes of each read. A VM gets each page of their buffers from its host, which takes more time than a further read.
const ZERO_PIECE_BYTES: u64 = 64 * 1024;
/// Blocks in between that must be zero too, at equal distances.
const ZERO_SAMPLES: u64 = 16;
/// Reads in flight meanwhile.
const ZERO_READERS: usize = 4;

/// Finds or formats the queue on `block` and reads its index. With `grow`, a queue that was found takes all blocks of the disk.
pub(crate) async fn open<B: Block>(
    block: &B,
    erase: bool,
    grow: bool,
) -> Result<(Superblock, Index, Recovery), OpenError> {
    let info = block.info();
    if info.read_only {
        return Err(OpenError::ReadOnly);
    }
    if info.sector_bytes as usize > BLOCK_BYTES {
        return Err(OpenError::SectorSize(info.sector_bytes));
    }
    let new = Geometry::for_device(info.size_bytes).ok_or(OpenError::TooSmall { size_bytes: info.size_bytes })?;
    let found = find_queue(block, erase).await?;
    let mut superblock =
        found.unwrap_or(Superblock { version: VERSION_1, geometry: new, state: SuperblockState::Ready });
    let geometry = superblock.geometry;
    let bytes_of = |geometry: Geometry| u64::from(geometry.total_blocks) * BLOCK_BYTES as u64;
    let queue_bytes = bytes_of(geometry);
    if queue_bytes > info.size_bytes {
        return Err(OpenError::Shrunk { queue_bytes, size_bytes: info.size_bytes });
    }
    let Newest { index, broken_slot } = match found {
        Some(_) => {
            let recovered = recover(block, geometry).await?;
            if grow && let Some(grown) = geometry.grown(info.size_bytes) {
                superblock.geometry = grown;
                write_superblock(block, &superblock).await?;
            }
            // A service that was killed leaves writes in the cache of its host. Clients see
            // this data from now on, so a later power cut must not remove it. Nor may one bring back an older superblock, once
            // an index names blocks behind its end.
            block.flush().await?;
            recovered
        }
        None => Newest { index: format_device(block, geometry).await?, broken_slot: None },
    };
    let recovery = Recovery {
        formatted: found.is_none(),
        sequence: index.sequence,
        items: index.entries.len(),
        uploads: index.uploads.iter().filter(|upload| matches!(upload.progress, UploadProgress::Open { .. })).count(),
        broken_slot,
        grown_bytes: bytes_of(superblock.geometry) - queue_bytes,
        unused_bytes: info.size_bytes - bytes_of(superblock.geometry),
        can_grow: superblock.geometry.grown(info.size_bytes).is_some(),
    };
    Ok((superblock, index, recovery))
}

/// The superblock of the queue on `block`; `None` if it is to be formatted.
async fn find_queue<B: Block>(block: &B, erase: bool) -> Result<Option<Superblock>, OpenError> {
    if erase {
        return Ok(None);
    }
    match format::decode_superblock(&read(block, 0, BLOCK_BYTES).await?).map_err(OpenError::Superblock)? {
        Some(found) if found.state == SuperblockState::Ready => Ok(Some(found)),
        // A first start was cut short; no item was ever accepted.
        Some(_) => Ok(None),
        None => {
            check_empty(block, block.info().size_bytes / BLOCK_BYTES as u64 * BLOCK_BYTES as u64).await?;
            Ok(None)
        }
    }
}

/// Refuses a disk of which these bytes are not zero: all at the start and before the end, and samples in between.
async fn check_empty<B: Block>(block: &B, whole: u64) -> Result<(), OpenError> {
    let piece = ZERO_PIECE_BYTES.min(whole);
    let head = ZERO_HEAD_BYTES.min(whole);
    let pieces = |from: u64, to: u64| (from..to).step_by(piece as usize).map(move |from| from.min(to - piece));
    let tail = whole.saturating_sub(ZERO_TAIL_BYTES);
    check_zero(block, piece, pieces(0, head).chain(pieces(tail, whole))).await?;
    let sample_of = |number| whole / ZERO_SAMPLES * number / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
    let samples = (1..ZERO_SAMPLES).map(sample_of).filter(|from| *from >= head);
    check_zero(block, BLOCK_BYTES as u64, samples).await
}

/// Reads the pieces that start at `offsets`, a few at a time, because a disk takes most of its time per request. The
/// offsets ascend, so the first byte that is not zero is reported although the answers are not in order.
async fn check_zero<B: Block>(
    block: &B,
    piece_bytes: u64,
    offsets: impl Iterator<Item = u64>,
) -> Result<(), OpenError> {
    let offsets = RefCell::new(offsets);
    let found = Cell::new(None);
    let reader = async || {
        let mut buf = Buf::zeroed(piece_bytes as usize)?;
        while found.get().is_none() {
            let Some(offset) = offsets.borrow_mut().next() else { break };
            let (result, read) = block.read(offset, buf).await;
            result?;
            buf = read;
            if let Some(place) = first_not_zero(&buf) {
                let place = offset + place as u64;
                found.set(Some(found.get().map_or(place, |other: u64| other.min(place))));
            }
        }
        Ok(())
    };
    let ended: [Result<(), OpenError>; ZERO_READERS] = join_array(core::array::from_fn(|_| reader())).await;
    ended.into_iter().collect::<Result<(), OpenError>>()?;
    found.get().map_or(Ok(()), |offset| Err(OpenError::Foreign { offset }))
}

fn first_not_zero(bytes: &[u8]) -> Option<usize> {
    const LINE_BYTES: usize = 64;
    // A line at a time, with one branch: emulators take longer for a branch than for a load. The device's pieces are multiples of a block.
    let (lines, _) = bytes.as_chunks::<LINE_BYTES>();
    let is_zero = |line: &[u8; LINE_BYTES]| {
        let (words, _) = line.as_chunks::<8>();
        words.iter().fold(0, |all, word| all | u64::from_ne_bytes(*word)) == 0
    };
    let (index, line) = lines.iter().enumerate().find(|(_, line)| !is_zero(line))?;
    Some(index * LINE_BYTES + line.iter().position(|&byte| byte != 0)?)
}

/// Formats a new queue and returns its index. A power cut at any time leaves a disk that is empty, or one in the state of formatting; both
/// are formatted at the next start.
async fn format_device<B: Block>(block: &B, geometry: Geometry) -> Result<Index, OpenError> {
    let empty = Index { sequence: 1, next_id: 1, entries: Vec::new(), uploads: Vec::new() };
    write_superblock(block, &Superblock { version: VERSION_1, geometry, state: SuperblockState::Formatting }).await?;
    block.flush().await?;
    let mut first = Buf::zeroed(BLOCK_BYTES)?;
    format::encode_slot(
        empty.sequence,
        empty.next_id,
        core::iter::empty(),
        &[],
        first.as_mut().expect("a new buffer has one owner"),
    );
    let at = |slot| u64::from(geometry.slot_start(slot)) * BLOCK_BYTES as u64;
    let (one, zero) = join(write(block, at(1), first), write(block, at(0), Buf::zeroed(BLOCK_BYTES)?)).await;
    one?;
    zero?;
    block.flush().await?;
    write_superblock(block, &Superblock { version: VERSION_1, geometry, state: SuperblockState::Ready }).await?;
    block.flush().await?;
    Ok(empty)
}

async fn write_superblock<B: Block>(block: &B, superblock: &Superblock) -> Result<(), OpenError> {
    let mut buf = Buf::zeroed(BLOCK_BYTES)?;
    format::encode_superblock(superblock, buf.as_mut().expect("a new buffer has one owner"));
    write(block, 0, buf).await
}

/// The newest valid index, and the broken slot if there is one.
async fn recover<B: Block>(block: &B, geometry: Geometry) -> Result<Newest, OpenError> {
    let slot = async |number| {
        let offset = u64::from(geometry.slot_start(number)) * BLOCK_BYTES as u64;
        Ok(format::decode_slot(geometry, number, &read(block, offset, geometry.slot_bytes()).await?))
    };
    let (first, second): (Result<_, OpenError>, Result<_, OpenError>) = join(slot(0), slot(1)).await;
    format::newest([first?, second?]).map_err(OpenError::NoIndex)
}

async fn read<B: Block>(block: &B, offset: u64, bytes: usize) -> Result<Buf, OpenError> {
    let (result, buf) = block.read(offset, Buf::zeroed(bytes)?).await;
    result?;
    Ok(buf)
}

async fn write<B: Block>(block: &B, offset: u64, buf: Buf) -> Result<(), OpenError> {
    Ok(block.write(offset, buf).await.0?)
}
