//! Opens a disk as a queue: finds or formats it, and reads its index.

use crate::error::{OpenError, Recovery};
use crate::format::{
    self, BLOCK_BYTES, Contents, Extent, IndexPlace, Layout, Superblock, SuperblockState, Table, VERSION_3,
};
use crate::journal::Journal;
use crate::recover;
use core::cell::{Cell, RefCell};
use core::ops::Range;
use glasshouse::future::join_array;
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

/// A queue that can be used.
pub(crate) struct Opened {
    pub(crate) layout: Layout,
    pub(crate) table: Table,
    pub(crate) contents: Contents,
    pub(crate) journal: Journal,
    pub(crate) sequence: u64,
    pub(crate) next_id: u64,
}

/// Finds or formats the queue on `block` and reads its index. With `grow`, a queue that was found takes all blocks of the disk. An index of an
/// older version, or one that the disk has outgrown, is written anew, elsewhere, if there is space.
pub(crate) async fn open<B: Block>(block: &B, erase: bool, grow: bool) -> Result<(Opened, Recovery), OpenError> {
    let info = block.info();
    if info.read_only {
        return Err(OpenError::ReadOnly);
    }
    if info.sector_bytes as usize > BLOCK_BYTES {
        return Err(OpenError::SectorSize(info.sector_bytes));
    }
    let size_bytes = info.size_bytes;
    let bytes_of = |blocks: u32| u64::from(blocks) * BLOCK_BYTES as u64;
    let blocks_max = u32::try_from(size_bytes / BLOCK_BYTES as u64).unwrap_or(u32::MAX);
    let Some(Superblock { place, .. }) = find_queue(block, erase).await? else {
        let layout = Layout::for_device(size_bytes).ok_or(OpenError::TooSmall { size_bytes })?;
        let opened = format_device(block, layout).await?;
        let recovery = Recovery {
            formatted: true,
            sequence: 1,
            unused_bytes: size_bytes - bytes_of(blocks_max),
            ..Recovery::default()
        };
        return Ok((opened, recovery));
    };
    let queue_bytes = bytes_of(place.total_blocks());
    if queue_bytes > size_bytes {
        return Err(OpenError::Shrunk { queue_bytes, size_bytes });
    }
    let total_blocks = if grow { blocks_max } else { place.total_blocks() };
    let (found, mut recovery) = match place {
        IndexPlace::Slots { geometry, .. } => recover::read_slots(block, geometry).await?,
        IndexPlace::Pages(layout) => recover::read_pages(block, layout).await?,
    };
    let opened = recover::settle(block, place, total_blocks, found).await?;
    // A service that was killed leaves writes in the cache of its host. Clients see this data from now on, so a later power cut must not remove
    // it. Nor may one bring back an older superblock, once blocks that it does not know, or those of its index, have data.
    block.flush().await?;
    recovery.upgraded_from = Some(place.version()).filter(|version| *version < VERSION_3);
    recovery.grown_bytes = bytes_of(total_blocks) - queue_bytes;
    recovery.unused_bytes = size_bytes - bytes_of(total_blocks);
    recovery.can_grow = total_blocks < blocks_max;
    Ok((opened, recovery))
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

/// Formats a new queue. A power cut at any time leaves a disk that is empty, or one in the state of formatting; both are formatted at the next
/// start.
async fn format_device<B: Block>(block: &B, layout: Layout) -> Result<Opened, OpenError> {
    let place = IndexPlace::Pages(layout);
    write_superblock(block, &Superblock { place, state: SuperblockState::Formatting }).await?;
    block.flush().await?;
    let (table, contents, sequence, next_id) = (Table::new(), Contents::default(), 1, 1);
    let journal = recover::write_index(block, layout, &table, sequence, next_id).await?;
    block.flush().await?;
    write_superblock(block, &Superblock { place, state: SuperblockState::Ready }).await?;
    block.flush().await?;
    Ok(Opened { layout, table, contents, journal, sequence, next_id })
}

pub(crate) async fn write_superblock<B: Block>(block: &B, superblock: &Superblock) -> Result<(), OpenError> {
    let mut buf = Buf::zeroed(BLOCK_BYTES)?;
    format::encode_superblock(superblock, buf.as_mut().expect("a new buffer has one owner"));
    write(block, 0, buf).await
}

/// The runs of blocks that are neither the superblock, nor the index, nor `taken`, whose runs are in order and do not overlap.
pub(crate) fn free_runs<'a>(
    total_blocks: u32,
    index: Range<u32>,
    taken: impl IntoIterator<Item = &'a Extent> + 'a,
) -> impl Iterator<Item = Extent> + 'a {
    let end = Extent { start: total_blocks, blocks: 0 };
    let mut index = Some(Extent { start: index.start, blocks: index.len() as u32 });
    let mut taken = taken.into_iter().copied().peekable();
    let merged = core::iter::from_fn(move || match taken.peek() {
        Some(next) if index.is_none_or(|index| next.start < index.start) => taken.next(),
        _ => index.take().or_else(|| taken.next()),
    });
    let mut from = 1;
    merged.chain([end]).filter_map(move |run| {
        let free = Extent { start: from, blocks: run.start.saturating_sub(from) };
        from = from.max(run.start + run.blocks);
        (free.blocks > 0).then_some(free)
    })
}

pub(crate) async fn read<B: Block>(block: &B, offset: u64, bytes: usize) -> Result<Buf, OpenError> {
    let (result, buf) = block.read(offset, Buf::zeroed(bytes)?).await;
    result?;
    Ok(buf)
}

pub(crate) async fn write<B: Block>(block: &B, offset: u64, buf: Buf) -> Result<(), OpenError> {
    Ok(block.write(offset, buf).await.0?)
}
