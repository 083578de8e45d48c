//! Copies RAM into a file. Pages of zeros become holes of the file.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::memory::content::{PAGE_BYTES, Piece};

/// How much is read at a time.
const CHUNK_BYTES: u64 = 1 << 20;
/// How much one thread takes at a time.
const SHARE_BYTES: u64 = 32 << 20;
const ZEROS: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];

/// How far a copy is. Of numbers for display and a request to end, so no order of memory is needed.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// RAM that was handled.
    pub(super) done_bytes: AtomicU64,
    /// What was written of it: the rest is zeros.
    pub(super) written_bytes: AtomicU64,
    /// What could not be read, and is zeros in the file.
    pub(super) unread_bytes: AtomicU64,
    /// The copy is to end.
    pub(super) is_cancelled: AtomicBool,
}

/// Copies each piece to its offset in the file, by `threads` threads.
pub(super) fn copy(
    pieces: &[Piece],
    offsets: &[u64],
    file: &File,
    threads: usize,
    progress: &Progress,
) -> io::Result<()> {
    let shares: Vec<(usize, Range<u64>)> =
        pieces.iter().enumerate().flat_map(|(index, piece)| shares(index, piece.bytes())).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut room = vec![0; CHUNK_BYTES as usize];
        while let Some((index, range)) = shares.get(next.fetch_add(1, Ordering::Relaxed)) {
            copy_share(&pieces[*index], range.clone(), (file, offsets[*index]), &mut room, progress)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let own = work();
        let others =
            workers.into_iter().map(|worker| worker.join().unwrap_or_else(|_| Err(io::Error::other("it failed"))));
        others.fold(own, |result, other| result.and(other))
    })
}

fn shares(index: usize, bytes: u64) -> impl Iterator<Item = (usize, Range<u64>)> {
    let starts = (0..bytes.div_ceil(SHARE_BYTES)).map(|share| share * SHARE_BYTES);
    starts.map(move |start| (index, start..bytes.min(start + SHARE_BYTES)))
}

fn copy_share(
    piece: &Piece,
    range: Range<u64>,
    (file, start): (&File, u64),
    room: &mut [u8],
    progress: &Progress,
) -> io::Result<()> {
    let mut at = range.start;
    while at < range.end {
        if progress.is_cancelled.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let data = piece.next(at, range.end).unwrap_or(range.end..range.end);
        let end = data.end.min(data.start + CHUNK_BYTES);
        let chunk = &mut room[..(end - data.start) as usize];
        read(piece, data.start, chunk, progress);
        for run in runs(chunk) {
            file.write_all_at(&chunk[run.clone()], start + data.start + run.start as u64)?;
            progress.written_bytes.fetch_add(run.len() as u64, Ordering::Relaxed);
        }
        progress.done_bytes.fetch_add(end - at, Ordering::Relaxed);
        at = end;
    }
    Ok(())
}

/// Reads a chunk: of one that cannot be read as a whole, the pages that can be.
fn read(piece: &Piece, offset: u64, chunk: &mut [u8], progress: &Progress) {
    if piece.read(offset, chunk) {
        return;
    }
    for (page, bytes) in chunk.chunks_mut(PAGE_BYTES as usize).enumerate() {
        if !piece.read(offset + page as u64 * PAGE_BYTES, bytes) {
            bytes.fill(0);
            progress.unread_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
    }
}

/// The runs of pages that are not all zeros.
fn runs(chunk: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut pages = chunk.chunks(PAGE_BYTES as usize).enumerate();
    std::iter::from_fn(move || {
        let is_zero = |page: &[u8]| *page == ZEROS[..page.len()];
        let (first, page) = pages.find(|(_, page)| !is_zero(page))?;
        let start = first * PAGE_BYTES as usize;
        let mut end = start + page.len();
        for (_, page) in pages.by_ref() {
            if is_zero(page) {
                break;
            }
            end += page.len();
        }
        Some(start..end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_leave_out_pages_of_zeros() {
        let mut chunk = vec![0; 6 * 4096 + 100];
        assert_eq!(runs(&chunk).count(), 0);
        for at in [4095, 8192, 5 * 4096, 6 * 4096 + 99] {
            chunk[at] = 1;
        }
        let found: Vec<_> = runs(&chunk).collect();
        assert_eq!(found, [0..4096, 8192..12288, 5 * 4096..6 * 4096 + 100]);
        chunk[4096] = 1;
        assert_eq!(runs(&chunk).next(), Some(0..12288));
    }

    #[test]
    fn shares_cover_a_piece() {
        for bytes in [1, SHARE_BYTES - 1, SHARE_BYTES, 3 * SHARE_BYTES + 5] {
            let shares: Vec<_> = shares(3, bytes).collect();
            assert!(shares.iter().all(|(index, _)| *index == 3));
            assert_eq!(shares.iter().map(|(_, range)| range.end - range.start).sum::<u64>(), bytes);
            assert_eq!(shares.last().unwrap().1.end, bytes);
        }
    }
}
