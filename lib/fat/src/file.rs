//! An open file.

use crate::error::{CUT, block_error, file_error};
use crate::files::Fat;
use alloc::vec::Vec;
use core::cell::RefCell;
use glass_api::{Block, Buf, File, FileError, Metadata};
use hadris_fs::{Extent, NodeId};

/// Runs of clusters that are kept for an open file.
const RUNS_MAX: usize = 64;
/// Bytes of a read that does not fit the service's buffer, and is copied.
const COPIED_BYTES_MAX: usize = 256 << 10;

/// An open file.
pub struct FatFile<B: Block> {
    fat: Fat<B>,
    node: NodeId,
    is_write: bool,
    place: RefCell<Place>,
}

/// Where a part of a file is on the device.
#[derive(Default)]
struct Place {
    /// The number of the last change when this was read.
    changes: u64,
    /// The file's length.
    bytes: u64,
    /// In order, without gaps.
    runs: Vec<Extent>,
}

/// Bytes that follow each other on the device.
#[derive(Clone, Copy)]
struct Run {
    offset: u64,
    bytes: u64,
}

impl Place {
    /// The run at byte `position` of the file, up to its end; `Err` if it is not known.
    fn at(&self, position: u64) -> Result<Option<Run>, ()> {
        if position >= self.bytes {
            return Ok(None);
        }
        let index = self.runs.partition_point(|run| run.file_offset() <= position);
        let run = index.checked_sub(1).map(|index| &self.runs[index]).ok_or(())?;
        let skipped = position - run.file_offset();
        let bytes = run.len().min(self.bytes - run.file_offset());
        if skipped >= bytes {
            return Err(());
        }
        Ok(Some(Run { offset: run.offset() + skipped, bytes: bytes - skipped }))
    }
}

impl<B: Block> FatFile<B> {
    pub(crate) fn new(fat: Fat<B>, node: NodeId, is_write: bool) -> FatFile<B> {
        // No change has this number.
        let place = Place { changes: u64::MAX, ..Place::default() };
        FatFile { fat, node, is_write, place: RefCell::new(place) }
    }

    /// The run at byte `position`; `None` at the end of the file.
    async fn run(&self, position: u64) -> Result<Option<Run>, FileError> {
        let volume = &self.fat.0;
        let known = {
            let place = self.place.borrow();
            if place.changes == volume.changes() { place.at(position) } else { Err(()) }
        };
        if let Ok(run) = known {
            return Ok(run);
        }
        let mut tables = volume.tables().await;
        let bytes = tables.stat(self.node).await.map_err(file_error)?.len();
        let mut runs = [Extent::new(0, 0); RUNS_MAX];
        let count = tables.extents(self.node, position, &mut runs).await.map_err(file_error)?;
        let place = Place { changes: volume.changes(), bytes, runs: runs[..count].to_vec() };
        let run = place.at(position).map_err(|()| CUT);
        *self.place.borrow_mut() = place;
        run
    }

    /// Reads into `buf`, as [`File::read`] does.
    async fn read_into(&self, offset: u64, mut buf: Buf) -> (Result<usize, FileError>, Buf) {
        let block = &self.fat.0.block;
        let sector = u64::from(block.info().sector_bytes);
        let _reading = self.fat.0.reading().await;
        let mut filled = 0;
        while filled < buf.len() {
            let run = match self.run(offset.saturating_add(filled as u64)).await {
                Ok(Some(run)) => run,
                Ok(None) => break,
                Err(error) => return (Err(error), buf),
            };
            let bytes = run.bytes.min((buf.len() - filled) as u64);
            if bytes == buf.len() as u64 && run.offset.is_multiple_of(sector) && bytes.is_multiple_of(sector) {
                let (result, buf) = block.read(run.offset, buf).await;
                return (result.map(|()| buf.len()).map_err(block_error), buf);
            }
            let bytes = (bytes as usize).min(COPIED_BYTES_MAX);
            let start = run.offset / sector * sector;
            let end = (run.offset + bytes as u64).next_multiple_of(sector);
            let piece = match Buf::zeroed((end - start) as usize) {
                Ok(piece) => piece,
                Err(_) => return (Err(FileError::OutOfMemory), buf),
            };
            let (result, piece) = block.read(start, piece).await;
            let Some(into) = buf.as_mut() else { return (Err(FileError::Shared), buf) };
            if let Err(error) = result {
                return (Err(block_error(error)), buf);
            }
            let skipped = (run.offset - start) as usize;
            into[filled..filled + bytes].copy_from_slice(&piece[skipped..skipped + bytes]);
            filled += bytes;
        }
        (Ok(filled), buf)
    }

    async fn write_all(&self, offset: u64, buf: &[u8]) -> Result<(), FileError> {
        if !self.is_write {
            return Err(FileError::Denied);
        }
        let (mut tables, _all) = self.fat.0.change().await;
        let mut written = 0;
        while written < buf.len() {
            let at = offset.checked_add(written as u64).ok_or(FileError::NoSpace)?;
            self.fat.0.note_change(self.node);
            written += tables.write(self.node, at, &buf[written..]).await.map_err(file_error)?;
        }
        Ok(())
    }
}

impl<B: Block> File for FatFile<B> {
    async fn metadata(&self) -> Result<Metadata, FileError> {
        let metadata = self.fat.0.tables().await.stat(self.node).await;
        Ok(self.fat.0.metadata(self.node, &metadata.map_err(file_error)?))
    }

    async fn read(&self, offset: u64, mut buf: Buf) -> (Result<usize, FileError>, Buf) {
        if buf.as_mut().is_none() {
            return (Err(FileError::Shared), buf);
        }
        self.read_into(offset, buf).await
    }

    async fn write(&self, offset: u64, buf: Buf) -> (Result<(), FileError>, Buf) {
        (self.write_all(offset, &buf).await, buf)
    }

    async fn truncate(&self, bytes: u64) -> Result<(), FileError> {
        if !self.is_write {
            return Err(FileError::Denied);
        }
        let (mut tables, _all) = self.fat.0.change().await;
        self.fat.0.note_change(self.node);
        tables.truncate(self.node, bytes).await.map_err(file_error)
    }

    async fn sync(&self) -> Result<(), FileError> {
        self.fat.0.tables().await.fsync(self.node).await.map_err(file_error)
    }
}

impl<B: Block> Drop for FatFile<B> {
    fn drop(&mut self) {
        self.fat.0.close(self.node);
    }
}
