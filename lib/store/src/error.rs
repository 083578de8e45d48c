//! What can fail, and what a start found.

use crate::format::{KEY_BYTES_MAX, NAME_BYTES_MAX, TREES_MAX};
use crate::store::{BATCH_BYTES_MAX, VALUE_BYTES_MAX};
use core::fmt;
use glass_api::{BlockError, OutOfMemory, SpawnError};

/// Why a request of the store failed. After an error of [`Store::commit`](crate::Store::commit) the batch is not in the store; if the
/// disk failed it may be there after a restart, unless a later batch was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// The disk failed.
    Disk(BlockError),
    /// A page does not have the contents that were written. What is below it cannot be read; the rest can.
    Damaged {
        /// Its number, in units of 4096 bytes.
        page: u32,
    },
    /// Pages that name others were damaged when the store was opened, so which ones are free is unknown.
    ReadOnly,
    /// There is no space for the batch.
    Full {
        /// Bytes that are free.
        free_bytes: u64,
        /// Bytes that only snapshots keep.
        snapshot_bytes: u64,
    },
    /// A change of the batch refused it: [`Batch::insert`](crate::Batch::insert) found the key, or an update returned an error.
    Refused,
    /// A key is empty or too long.
    Key {
        /// Its length.
        bytes: usize,
    },
    /// A value is too long.
    Value {
        /// Its length.
        bytes: usize,
    },
    /// A batch is too long.
    Batch,
    /// The name of a map or log is empty or too long.
    Name,
    /// The store has as many maps and logs as it can.
    Trees,
    /// The name belongs to a log where a map was requested, or the other way.
    Kind,
    /// No memory for a page or a value.
    Memory(OutOfMemory),
    /// The task that stores batches was cancelled.
    Closed,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            StoreError::Disk(error) => write!(f, "the store's disk failed: {error}"),
            StoreError::Damaged { page } => {
                write!(f, "page {page} of the store is damaged: what it had is lost, the rest can be read")
            }
            StoreError::ReadOnly => {
                write!(
                    f,
                    "the store was damaged when it was opened, so it is read-only: copy what can be read to another disk"
                )
            }
            StoreError::Full { free_bytes, snapshot_bytes } => write!(
                f,
                "the store is full: {free_bytes} bytes are free, {snapshot_bytes} more when the open snapshots end; remove entries or \
                 use a larger disk"
            ),
            StoreError::Refused => write!(f, "the batch was refused by one of its changes"),
            StoreError::Key { bytes } => write!(f, "a key of {bytes} bytes: it must have 1 to {KEY_BYTES_MAX}"),
            StoreError::Value { bytes } => {
                write!(f, "a value of {bytes} bytes: it must have at most {VALUE_BYTES_MAX}")
            }
            StoreError::Batch => write!(f, "a batch of more than {BATCH_BYTES_MAX} bytes: divide it"),
            StoreError::Name => write!(f, "a map or log needs a name of 1 to {NAME_BYTES_MAX} bytes"),
            StoreError::Trees => write!(f, "the store has {TREES_MAX} maps and logs already, which is the limit"),
            StoreError::Kind => write!(f, "the name belongs to a log where a map was requested, or the other way"),
            StoreError::Memory(error) => error.fmt(f),
            StoreError::Closed => write!(f, "the task of the store was cancelled"),
        }
    }
}

impl core::error::Error for StoreError {}

impl From<BlockError> for StoreError {
    fn from(error: BlockError) -> StoreError {
        StoreError::Disk(error)
    }
}

impl From<OutOfMemory> for StoreError {
    fn from(error: OutOfMemory) -> StoreError {
        StoreError::Memory(error)
    }
}

/// Why a disk cannot be opened as a store. The disk is as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenError {
    /// It is too small for a store.
    TooSmall {
        /// Its size.
        size_bytes: u64,
        /// The smallest size.
        least_bytes: u64,
    },
    /// Its sectors are larger than a page.
    SectorSize(u32),
    /// It is smaller than when the store was made.
    Shrunk {
        /// Size of the store.
        store_bytes: u64,
        /// Size of the disk.
        size_bytes: u64,
    },
    /// It has other data.
    Foreign {
        /// Where.
        offset: u64,
    },
    /// A newer version of Glasshouse wrote it.
    Version(u32),
    /// It is a store, and neither of its slots can be read.
    Damaged,
    /// The disk failed.
    Disk(BlockError),
    /// No memory for the cache or for the bits of its pages.
    Memory(OutOfMemory),
    /// The store's task cannot be started.
    Spawn(SpawnError),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            OpenError::TooSmall { size_bytes, least_bytes } => {
                write!(f, "a disk of {size_bytes} bytes is too small for a store: it needs at least {least_bytes}")
            }
            OpenError::SectorSize(bytes) => {
                write!(f, "the disk has sectors of {bytes} bytes: a store needs 4096 or fewer")
            }
            OpenError::Shrunk { store_bytes, size_bytes } => write!(
                f,
                "the store has {store_bytes} bytes and the disk {size_bytes}: a part of it is missing, so use the whole disk"
            ),
            OpenError::Foreign { offset } => {
                write!(f, "the disk has other data at byte {offset}: use an empty disk, or erase this one first")
            }
            OpenError::Version(version) => {
                write!(f, "the store has format version {version}, which a newer Glasshouse wrote: use that one")
            }
            OpenError::Damaged => {
                write!(
                    f,
                    "the disk has a store whose two slots are both damaged: use a backup, or erase it for a new store"
                )
            }
            OpenError::Disk(error) => write!(f, "the store's disk failed: {error}"),
            OpenError::Memory(error) => error.fmt(f),
            OpenError::Spawn(error) => write!(f, "the store's task cannot start: {error}"),
        }
    }
}

impl core::error::Error for OpenError {}

impl From<BlockError> for OpenError {
    fn from(error: BlockError) -> OpenError {
        OpenError::Disk(error)
    }
}

impl From<OutOfMemory> for OpenError {
    fn from(error: OutOfMemory) -> OpenError {
        OpenError::Memory(error)
    }
}

/// What a start found. Prints as one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovery {
    /// The disk was empty and has a new store.
    pub formatted: bool,
    /// Commits since the store was made.
    pub sequence: u64,
    /// Entries of all maps and logs.
    pub entries: u64,
    /// The last commit was dropped.
    pub dropped: Option<Dropped>,
    /// How many damaged pages were found among those that name others, and the first of them. What is below them cannot be read,
    /// and nothing can be written. Pages of entries are checked when they are read.
    pub damaged: Option<(usize, u32)>,
    /// Bytes at the end of the disk that the store does not use.
    pub unused_bytes: u64,
}

/// Why the last commit was dropped. It was in progress at a power cut, or, without one, the disk is damaged and what it changed is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dropped {
    /// A page that this commit wrote is not on the disk.
    Page {
        /// The commit.
        sequence: u64,
        /// The page.
        page: u32,
    },
    /// This slot cannot be read.
    Slot(u32),
}

impl fmt::Display for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        if self.formatted {
            return write!(f, "a new store was made on the empty disk");
        }
        write!(f, "the store has {} entries after {} commits", self.entries, self.sequence)?;
        match self.dropped {
            Some(Dropped::Page { sequence, page }) => {
                write!(f, "; commit {sequence} was not complete (page {page}) and was dropped")?;
            }
            Some(Dropped::Slot(slot)) => {
                write!(f, "; slot {slot} cannot be read, so a last commit may have been dropped")?
            }
            None => {}
        }
        if self.dropped.is_some() {
            write!(
                f,
                ": after a power cut that is normal and nothing that was answered is lost, otherwise the disk is damaged"
            )?;
        }
        if let Some((count, first)) = self.damaged {
            write!(f, "; {count} pages are damaged, first {first}: a part cannot be read, and nothing can be written")?;
        }
        Ok(())
    }
}
