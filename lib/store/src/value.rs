//! Values with pages of their own.

use crate::error::StoreError;
use crate::format::{LargeValue, PAGE_BYTES, Run, pages_of};
use crate::pages::Pages;
use alloc::vec::Vec;
use glass_api::{Block, Buf, zeroed_bytes};
use xxhash_rust::xxh3::xxh3_64;

/// Bytes of one request.
const REQUEST_BYTES: usize = 128 << 10;

/// Writes a value to these pages. It is not flushed.
pub async fn write<B: Block>(block: &B, runs: Vec<Run>, value: &[u8]) -> Result<LargeValue, StoreError> {
    let mut rest = value;
    for run in &runs {
        let bytes = rest.len().min(run.pages as usize * PAGE_BYTES);
        let (part, after) = rest.split_at(bytes);
        rest = after;
        for (index, piece) in part.chunks(REQUEST_BYTES).enumerate() {
            let mut buf = Buf::zeroed(piece.len().next_multiple_of(PAGE_BYTES))?;
            buf.as_mut().expect("a new buffer has one owner")[..piece.len()].copy_from_slice(piece);
            block.write(run.offset() + (index * REQUEST_BYTES) as u64, buf).await.0?;
        }
    }
    Ok(LargeValue { bytes: value.len() as u64, checksum: xxh3_64(value), runs })
}

/// Reads a value of at most `bytes_max` bytes.
pub async fn read<B: Block>(
    pages: &Pages<B>,
    payload: &[u8],
    leaf: u32,
    bytes_max: usize,
) -> Result<Vec<u8>, StoreError> {
    let large = LargeValue::decode(payload).ok_or(StoreError::Damaged { page: leaf })?;
    let first = large.runs[0].start;
    let bytes = usize::try_from(large.bytes).ok().filter(|bytes| *bytes <= bytes_max);
    let mut value = zeroed_bytes(bytes.ok_or(StoreError::Damaged { page: leaf })?)?;
    let mut done = 0;
    for run in &large.runs {
        let end = value.len().min(done + run.pages as usize * PAGE_BYTES);
        let start = done;
        while done < end {
            let piece = (end - done).min(REQUEST_BYTES);
            let buf = Buf::zeroed(piece.next_multiple_of(PAGE_BYTES))?;
            let (result, buf) = pages.block.read(run.offset() + (done - start) as u64, buf).await;
            result?;
            value[done..done + piece].copy_from_slice(buf.get(..piece).ok_or(StoreError::Damaged { page: run.start })?);
            done += piece;
        }
    }
    // Only the pages that are needed: a hostile length is no reason for more.
    debug_assert_eq!(pages_of(large.bytes), large.runs.iter().map(|run| u64::from(run.pages)).sum::<u64>());
    if xxh3_64(&value) == large.checksum { Ok(value) } else { Err(StoreError::Damaged { page: first }) }
}
