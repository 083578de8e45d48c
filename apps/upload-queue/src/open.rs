//! Opens a disk as a queue: finds or formats it, and reads its index.

use crate::error::{OpenError, Recovery};
use crate::format::{self, BLOCK_BYTES, Geometry, Index, Slot, SuperblockState};
use alloc::vec::Vec;
use glasshouse::{Block, Buf};

/// A disk that is neither ours nor erased on request must be zero in this many bytes from its start and before its end:
/// file systems, partition tables and RAID members have signatures there. So much from the start also shows the items of
/// a queue whose superblock and index were erased.
const ZERO_HEAD_BYTES: u64 = 16 * 1024 * 1024;
const ZERO_TAIL_BYTES: u64 = 64 * 1024;
/// Blocks in between that must be zero too, at equal distances.
const ZERO_SAMPLES: u64 = 256;

/// Finds or formats the queue on `block` and reads its index.
pub(crate) async fn open<B: Block>(block: &B, erase: bool) -> Result<(Geometry, Index, Recovery), OpenError> {
    let info = block.info();
    if info.read_only {
        return Err(OpenError::ReadOnly);
    }
    if info.sector_bytes as usize > BLOCK_BYTES {
        return Err(OpenError::SectorSize(info.sector_bytes));
    }
    let new = Geometry::for_device(info.size_bytes).ok_or(OpenError::TooSmall { size_bytes: info.size_bytes })?;
    let (geometry, formatted) = match find_queue(block, erase).await? {
        Some(geometry) => (geometry, false),
        None => {
            format_device(block, new).await?;
            (new, true)
        }
    };
    let queue_bytes = u64::from(geometry.total_blocks) * BLOCK_BYTES as u64;
    if queue_bytes > info.size_bytes {
        return Err(OpenError::Shrunk { queue_bytes, size_bytes: info.size_bytes });
    }
    let (index, broken_slot) = recover(block, geometry).await?;
    // A service that was killed leaves writes in the cache of its host. Clients see
    // this data from now on, so a later power cut must not remove it.
    block.flush().await?;
    let recovery = Recovery {
        formatted,
        sequence: index.sequence,
        items: index.entries.len(),
        broken_slot,
        unused_bytes: info.size_bytes - queue_bytes,
    };
    Ok((geometry, index, recovery))
}

/// The layout of the queue on `block`; `None` if it is to be formatted.
async fn find_queue<B: Block>(block: &B, erase: bool) -> Result<Option<Geometry>, OpenError> {
    if erase {
        return Ok(None);
    }
    match format::decode_superblock(&read(block, 0, BLOCK_BYTES).await?).map_err(OpenError::Superblock)? {
        Some((geometry, SuperblockState::Ready)) => Ok(Some(geometry)),
        // A first start was cut short; no item was ever accepted.
        Some((_, SuperblockState::Formatting)) => Ok(None),
        None => {
            let whole = block.info().size_bytes / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
            check_zero(block, 0, ZERO_HEAD_BYTES.min(whole)).await?;
            for sample in 1..ZERO_SAMPLES {
                let from = whole / ZERO_SAMPLES * sample / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
                if from >= ZERO_HEAD_BYTES {
                    check_zero(block, from, (from + BLOCK_BYTES as u64).min(whole)).await?;
                }
            }
            check_zero(block, whole - ZERO_TAIL_BYTES.min(whole), whole).await?;
            Ok(None)
        }
    }
}

async fn check_zero<B: Block>(block: &B, mut from: u64, to: u64) -> Result<(), OpenError> {
    while from < to {
        let bytes = (to - from).min(ZERO_TAIL_BYTES) as usize;
        let buf = read(block, from, bytes).await?;
        if let Some(place) = buf.iter().position(|&byte| byte != 0) {
            return Err(OpenError::Foreign { offset: from + place as u64 });
        }
        from += bytes as u64;
    }
    Ok(())
}

/// Formats a new queue. A power cut at any time leaves a disk that is empty, or one in the state of
/// formatting; both are formatted at the next start.
async fn format_device<B: Block>(block: &B, geometry: Geometry) -> Result<(), OpenError> {
    write_superblock(block, geometry, SuperblockState::Formatting).await?;
    let mut first = Buf::zeroed(BLOCK_BYTES)?;
    format::encode_slot(1, 1, core::iter::empty(), first.as_mut().expect("a new buffer has one owner"));
    write(block, u64::from(geometry.slot_start(1)) * BLOCK_BYTES as u64, first).await?;
    write(block, u64::from(geometry.slot_start(0)) * BLOCK_BYTES as u64, Buf::zeroed(BLOCK_BYTES)?).await?;
    block.flush().await?;
    write_superblock(block, geometry, SuperblockState::Ready).await
}

async fn write_superblock<B: Block>(block: &B, geometry: Geometry, state: SuperblockState) -> Result<(), OpenError> {
    let mut buf = Buf::zeroed(BLOCK_BYTES)?;
    format::encode_superblock(geometry, state, buf.as_mut().expect("a new buffer has one owner"));
    write(block, 0, buf).await?;
    Ok(block.flush().await?)
}

/// The newest valid index, and the broken slot if there is one.
async fn recover<B: Block>(block: &B, geometry: Geometry) -> Result<(Index, Option<(u64, format::Fault)>), OpenError> {
    let mut slots = Vec::new();
    for number in 0..2 {
        let offset = u64::from(geometry.slot_start(number)) * BLOCK_BYTES as u64;
        let bytes = read(block, offset, geometry.slot_bytes()).await?;
        slots.push(format::decode_slot(geometry, number, &bytes));
    }
    let (second, first) = (slots.pop().expect("two slots"), slots.pop().expect("two slots"));
    match (first, second) {
        (Slot::Valid(first), Slot::Valid(second)) if first.sequence > second.sequence => Ok((first, None)),
        (Slot::Valid(_), Slot::Valid(second)) => Ok((second, None)),
        (Slot::Valid(index), Slot::Invalid(fault)) => Ok((index, Some((1, fault)))),
        (Slot::Invalid(fault), Slot::Valid(index)) => Ok((index, Some((0, fault)))),
        // A new queue has one slot only; later on, both were written.
        (Slot::Empty, Slot::Valid(index)) if index.sequence == 1 => Ok((index, None)),
        (Slot::Empty, Slot::Valid(index)) => Ok((index, Some((0, format::Fault::Magic)))),
        (Slot::Valid(index), Slot::Empty) => Ok((index, Some((1, format::Fault::Magic)))),
        (first, second) => Err(OpenError::NoIndex([first, second].map(|slot| match slot {
            Slot::Invalid(fault) => Some(fault),
            _ => None,
        }))),
    }
}

async fn read<B: Block>(block: &B, offset: u64, bytes: usize) -> Result<Buf, OpenError> {
    let (result, buf) = block.read(offset, Buf::zeroed(bytes)?).await;
    result?;
    Ok(buf)
}

async fn write<B: Block>(block: &B, offset: u64, buf: Buf) -> Result<(), OpenError> {
    Ok(block.write(offset, buf).await.0?)
}
