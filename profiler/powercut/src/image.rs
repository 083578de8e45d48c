//! States as files: a copy of the image from before the log, and what is there of its writes.

use crate::log::{Data, Log, Write};
use crate::state::{Part, State};
use anyhow::{Context, Result, ensure};
use glass_formats::write_log::{BLOCK_BYTES, Fingerprint, SECTOR_BYTES};
use rustix::fs::{SeekFrom, ioctl_ficlone, seek};
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes that are moved at once.
const PIECE_BYTES: u64 = 1 << 20;

/// Makes the images of states. It is quick for states in order of their epochs.
pub struct Builder<'log, D: ?Sized> {
    log: &'log Log,
    data: &'log D,
    base: File,
    /// The image with what is durable in `epoch`.
    durable: File,
    durable_path: PathBuf,
    epoch: usize,
    /// The sectors that it has of writes.
    sectors: HashMap<u64, Sector>,
    hash: u64,
}

#[derive(Clone, Copy)]
struct Sector {
    write: u32,
    /// The hash of what is there, by exclusive or with that of what was in the base: 0 of what is the same.
    change: u64,
}

impl<'log, D: Data + ?Sized> Builder<'log, D> {
    /// `base` is the image from before the log. Files are made in `folder`.
    ///
    /// # Errors
    /// It is another image, or files cannot be made.
    pub fn new(log: &'log Log, data: &'log D, base: &Path, folder: &Path) -> Result<Builder<'log, D>> {
        let cannot = || format!("cannot read {}", base.display());
        let mut file = File::open(base).with_context(cannot)?;
        let bytes = file.seek(io::SeekFrom::End(0)).with_context(cannot)?;
        let disk_bytes = log.header.disk_bytes;
        ensure!(
            bytes / SECTOR_BYTES * SECTOR_BYTES == disk_bytes,
            "{} has {bytes} bytes, and the disk of the log had {disk_bytes}: give the image as it was before the log",
            base.display()
        );
        let mut fingerprint = Fingerprint::new(disk_bytes);
        let mut block = [0; BLOCK_BYTES];
        for offset in Fingerprint::offsets(disk_bytes) {
            file.read_exact_at(&mut block, offset).with_context(cannot)?;
            fingerprint.add(&block);
        }
        ensure!(
            fingerprint.value() == log.header.fingerprint,
            "{} is not the image that the disk of the log had at its start: give a copy that was made before",
            base.display()
        );
        let durable_path = folder.join("durable.img");
        let durable = copy(&file, &durable_path)?;
        let sectors = HashMap::new();
        Ok(Builder { log, data, base: file, durable, durable_path, epoch: 0, sectors, hash: 0 })
    }

    /// The hash of a state's contents: states of one hash are the same.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn hash(&mut self, state: &State) -> Result<u64> {
        self.advance(state.epoch)?;
        let mut over: HashMap<u64, u64> = HashMap::new();
        for (write, part) in &state.kept {
            self.each_piece(*write, part, |first, data, base| {
                for (sector, (data, base)) in (first..).zip(sectors_of(data).zip(sectors_of(base))) {
                    over.insert(sector, change(sector, data, base));
                }
                Ok(())
            })?;
        }
        let durable = |sector: &u64| self.sectors.get(sector).map_or(0, |durable| durable.change);
        Ok(over.iter().fold(self.hash, |hash, (sector, change)| hash ^ change ^ durable(sector)))
    }

    /// Makes the image of a state.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn build(&mut self, state: &State, path: &Path) -> Result<()> {
        self.advance(state.epoch)?;
        let image = copy(&self.durable, path)?;
        for (write, part) in &state.kept {
            self.each_piece(*write, part, |first, data, _| {
                image
                    .write_all_at(data, first * SECTOR_BYTES)
                    .with_context(|| format!("cannot write {}", path.display()))
            })?;
        }
        Ok(())
    }

    /// Makes the image of what is durable that of this epoch.
    fn advance(&mut self, epoch: usize) -> Result<()> {
        if epoch < self.epoch {
            self.durable = copy(&self.base, &self.durable_path)?;
            (self.epoch, self.hash) = (0, 0);
            self.sectors.clear();
        }
        while self.epoch < epoch {
            self.epoch += 1;
            for write in &self.log.epochs[self.epoch].durable {
                let mut found = Vec::new();
                let durable = &self.durable;
                self.each_piece(*write, &Part::Whole, |first, data, base| {
                    durable.write_all_at(data, first * SECTOR_BYTES).context("cannot write the image of a state")?;
                    let pairs = (first..).zip(sectors_of(data).zip(sectors_of(base)));
                    found.extend(pairs.map(|(sector, (data, base))| (sector, change(sector, data, base))));
                    Ok(())
                })?;
                for (sector, change) in found {
                    let before = self.sectors.insert(sector, Sector { write: *write, change });
                    self.hash ^= change ^ before.map_or(0, |before| before.change);
                }
            }
        }
        Ok(())
    }

    /// Calls `each` with the first sector, the data and the base's data of each piece of a write's part, where no later write is durable.
    fn each_piece(&self, write: u32, part: &Part, mut each: impl FnMut(u64, &[u8], &[u8]) -> Result<()>) -> Result<()> {
        let Write { offset, bytes, data: at, .. } = self.log.writes[write as usize];
        let all = 0..bytes / SECTOR_BYTES;
        let ranges: &[Range<u64>] = match part {
            Part::Whole => std::slice::from_ref(&all),
            Part::Sectors(ranges) => ranges,
        };
        let first = offset / SECTOR_BYTES;
        let is_over = |sector: u64| self.sectors.get(&(first + sector)).is_none_or(|durable| durable.write < write);
        let (mut data, mut base) = (Vec::new(), Vec::new());
        for range in ranges {
            let mut start = range.start;
            while start < range.end {
                let limit = range.end.min(start + PIECE_BYTES / SECTOR_BYTES);
                let end = (start..limit).find(|sector| !is_over(*sector)).unwrap_or(limit);
                if end > start {
                    let count = ((end - start) * SECTOR_BYTES) as usize;
                    data.clear();
                    data.resize(count, 0);
                    base.resize(count, 0);
                    if let Some(at) = at {
                        self.data.read(&mut data, at + start * SECTOR_BYTES)?;
                    }
                    self.base
                        .read_exact_at(&mut base, (first + start) * SECTOR_BYTES)
                        .context("cannot read the image")?;
                    each(first + start, &data, &base)?;
                }
                // A sector of a later write is left out.
                start = if end < limit { end + 1 } else { end };
            }
        }
        Ok(())
    }
}

impl<D: ?Sized> Drop for Builder<'_, D> {
    fn drop(&mut self) {
        // Its folder is removed as well, or is the user's.
        let _ = fs::remove_file(&self.durable_path);
    }
}

fn sectors_of(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.chunks_exact(SECTOR_BYTES as usize)
}

fn change(sector: u64, data: &[u8], base: &[u8]) -> u64 {
    xxh3_64_with_seed(data, sector) ^ xxh3_64_with_seed(base, sector)
}

/// A new file with the contents of a file: blocks that both share where the file system has that, and else its data without the holes.
fn copy(from: &File, path: &Path) -> Result<File> {
    let cannot = || format!("cannot make {}: is there room for it? --folder puts it elsewhere", path.display());
    // A process that has the one before open keeps that one.
    let _ = fs::remove_file(path);
    let to = File::options().read(true).write(true).create_new(true).open(path).with_context(cannot)?;
    if ioctl_ficlone(&to, from).is_err() {
        copy_data(from, &to).with_context(cannot)?;
    }
    Ok(to)
}

fn copy_data(mut from: &File, mut to: &File) -> io::Result<()> {
    let bytes = from.seek(io::SeekFrom::End(0))?;
    to.set_len(bytes)?;
    let mut at = 0;
    while at < bytes {
        let (start, end) = match seek(from, SeekFrom::Data(at)) {
            Ok(start) => (start, seek(from, SeekFrom::Hole(start))?.min(bytes)),
            // There is nothing but a hole.
            Err(Errno::NXIO) => break,
            // It has no holes.
            Err(_) => (at, bytes),
        };
        from.seek(io::SeekFrom::Start(start))?;
        to.seek(io::SeekFrom::Start(start))?;
        io::copy(&mut from.take(end - start), &mut to)?;
        at = end;
    }
    to.flush()
}
