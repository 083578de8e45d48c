//! Errors of the store.

use crate::digest::Algorithm;
use crate::format::Fault;
use alloc::vec::Vec;
use core::fmt;
use glasshouse::{BlockError, OutOfMemory};

/// Why a disk cannot be used as a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenError {
    /// The disk could not be read or written.
    Disk(BlockError),
    /// No memory for the index.
    Memory(OutOfMemory),
    /// The disk is read-only.
    ReadOnly,
    /// Fewer blocks than the smallest layout has.
    TooSmall {
        /// Size of the disk in bytes.
        size_bytes: u64,
    },
    /// The disk's sectors are larger than the blocks of the format.
    SectorSize(u32),
    /// The disk is not empty, and its content is not a queue.
    Foreign {
        /// Place of a byte that is not zero.
        offset: u64,
    },
    /// The superblock is ours but cannot be used.
    Superblock(Fault),
    /// The disk is smaller than the queue on it.
    Shrunk {
        /// Bytes that the queue uses.
        queue_bytes: u64,
        /// Size of the disk in bytes.
        size_bytes: u64,
    },
    /// Neither checkpoint, or, before version 3, slot of the index can be used; the reason for each, `None` if it was never written.
    NoIndex([Option<Fault>; 2]),
    /// A part of the index cannot be used.
    Index(Fault),
    /// The index of a queue of before version 3 has to be written anew, and there is no space for it.
    NoSpace {
        /// So many bytes in one piece are needed.
        bytes: u64,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            OpenError::Disk(error) => write!(f, "the disk failed: {error}"),
            OpenError::Memory(error) => write!(f, "{error}"),
            OpenError::ReadOnly => write!(f, "the disk is read-only, and a queue must be written"),
            OpenError::TooSmall { size_bytes } => {
                write!(f, "the disk has {size_bytes} bytes, and a queue needs at least 57344")
            }
            OpenError::SectorSize(bytes) => {
                write!(f, "the disk has sectors of {bytes} bytes, and a queue supports at most 4096")
            }
            OpenError::Foreign { offset } => write!(
                f,
                "the disk holds something that is not a queue (byte {offset} is not zero): give another disk, or --format to erase it"
            ),
            OpenError::Superblock(fault) => {
                write!(f, "the superblock of the queue is damaged: {fault}; --format erases the queue")
            }
            OpenError::Shrunk { queue_bytes, size_bytes } => {
                write!(
                    f,
                    "the queue takes {queue_bytes} bytes, but the disk has only {size_bytes}: give the whole disk"
                )
            }
            OpenError::Index(fault) => write!(
                f,
                "the queue's index is damaged: {fault}; `glass queue export` saves the items that are left, --format erases the queue"
            ),
            OpenError::NoSpace { bytes } => write!(
                f,
                "the queue has the format of before, and no {bytes} free bytes in one piece for the index of today's: make its disk larger and \
                 start it with --grow"
            ),
            OpenError::NoIndex(faults) => {
                write!(f, "the queue's index is lost")?;
                for (slot, fault) in faults.iter().enumerate() {
                    match fault {
                        Some(fault) => write!(f, "; slot {slot}: {fault}")?,
                        None => write!(f, "; slot {slot}: never written")?,
                    }
                }
                write!(f, "; --format erases the queue")
            }
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

/// Why an upload, a download or a removal failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreError {
    /// The item does not fit into the free space, including open uploads.
    DiskFull {
        /// Bytes that were requested.
        wanted_bytes: u64,
        /// Bytes that are free.
        free_bytes: u64,
    },
    /// Every entry of the index is in use, including open uploads.
    IndexFull {
        /// Places there are.
        items_max: usize,
    },
    /// An upload ended before its announced length.
    Short {
        /// Announced length in bytes.
        length: u64,
        /// Bytes received.
        received: u64,
    },
    /// The bytes of an upload do not have a digest that its client sent with them.
    Digest {
        /// The algorithm of the digest.
        algorithm: Algorithm,
    },
    /// The data of an item does not have the checksum that it had when it was uploaded.
    Damaged {
        /// The item.
        id: u64,
        /// Checksum at the upload.
        stored: u64,
        /// Checksum of what the disk returned.
        computed: u64,
    },
    /// A request to the disk failed.
    Disk(BlockError),
    /// The disk failed during the upload, and may have lost data that it had written.
    Lost,
    /// The queue's superblock or index cannot be read back, so nothing is written until they can.
    Unreadable(BlockError),
    /// The queue's superblock or index is not what was written: another program has changed the disk or cut it off. Nothing is written
    /// any more.
    Overwritten,
    /// No memory for a chunk.
    Memory(OutOfMemory),
    /// The upload is complete, or was given up.
    UploadEnded,
    /// What was saved of an upload does not have its checksum any more.
    DamagedUpload,
    /// The engine is away, or did not do what was requested; the text states what to do.
    Away(&'static str),
    /// The engine has no space for more.
    EngineFull,
    /// The engine refused a request.
    Engine {
        /// Its own number of the error.
        code: u64,
    },
    /// So many uploads that can be resumed are in progress that there is no place for another one.
    TooManyUploads {
        /// Places there are.
        count_max: usize,
    },
}

/// Whether the disk does what the queue needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// As far as is known.
    Good,
    /// A request failed, and since then no commit has succeeded. The next one is tried.
    Failing(BlockError),
    /// See [`StoreError::Unreadable`].
    Unreadable(BlockError),
    /// See [`StoreError::Overwritten`].
    Overwritten,
}

impl Health {
    /// Fails while nothing may be written.
    pub(crate) fn writable(self) -> Result<(), StoreError> {
        match self {
            Health::Good | Health::Failing(_) => Ok(()),
            Health::Unreadable(error) => Err(StoreError::Unreadable(error)),
            Health::Overwritten => Err(StoreError::Overwritten),
        }
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Health::Good => write!(f, "ready"),
            Health::Failing(error) => write!(f, "{}", StoreError::Disk(*error)),
            Health::Unreadable(error) => write!(f, "{}", StoreError::Unreadable(*error)),
            Health::Overwritten => write!(f, "{}", StoreError::Overwritten),
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            StoreError::DiskFull { wanted_bytes, free_bytes } => {
                write!(f, "the disk is full: {wanted_bytes} bytes requested, {free_bytes} free")
            }
            StoreError::IndexFull { items_max } => write!(f, "the index is full: it has room for {items_max} items"),
            StoreError::Short { length, received } => {
                write!(f, "the upload ended after {received} of {length} bytes")
            }
            StoreError::Digest { algorithm } => write!(
                f,
                "what was received does not have the {} that was sent with it, and is not stored: send it again",
                algorithm.key()
            ),
            StoreError::Damaged { id, stored, computed } => write!(
                f,
                "item {id} is damaged: its checksum was {stored:016x} when it was uploaded and is {computed:016x} now"
            ),
            StoreError::Disk(error) => write!(f, "the disk failed: {error}"),
            StoreError::Lost => {
                write!(f, "the disk failed during the upload and may have lost a part of it: send it again")
            }
            StoreError::Unreadable(error) => {
                write!(
                    f,
                    "the queue's index cannot be read from the disk any more ({error}), so nothing is written until it can"
                )
            }
            StoreError::Overwritten => write!(
                f,
                "another program has overwritten or cut off the queue's disk, so nothing is written any more: restart the queue with a whole disk"
            ),
            StoreError::Memory(error) => write!(f, "{error}"),
            StoreError::UploadEnded => write!(f, "the upload is complete or was given up"),
            StoreError::DamagedUpload => {
                write!(f, "what was stored of the upload is damaged on the disk: start it again from its first byte")
            }
            StoreError::Away(text) => f.write_str(text),
            StoreError::EngineFull => write!(f, "the engine has no space for more"),
            StoreError::Engine { code } => write!(f, "the engine refused a request with its error {code}"),
            StoreError::TooManyUploads { count_max } => {
                write!(
                    f,
                    "{count_max} uploads that can be resumed are in progress, and there may be no more: try again later"
                )
            }
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

/// The state of the disk at the start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recovery {
    /// The disk was empty (or erased on request) and has been formatted.
    pub formatted: bool,
    /// Sequence of the index in use.
    pub sequence: u64,
    /// Items in the queue.
    pub items: usize,
    /// Uploads that can be resumed.
    pub uploads: usize,
    /// The checkpoint, or, before version 3, index slot that could not be used, and why. After a power cut while it was written this is
    /// normal and nothing that was answered is lost; otherwise the disk is damaged.
    pub broken_slot: Option<(u64, Fault)>,
    /// The log ends with parts of a commit. After a power cut during a commit this is normal and nothing that was answered is lost;
    /// otherwise the disk is damaged.
    pub is_log_broken: bool,
    /// The version that the queue had before this start, if that was an older one.
    pub upgraded_from: Option<u32>,
    /// Bytes that the queue has more than before this start.
    pub grown_bytes: u64,
    /// Bytes of the disk past the end of the queue.
    pub unused_bytes: u64,
    /// Some of these are whole blocks that the queue can grow by.
    pub can_grow: bool,
}

/// Messages for the operator of the service, one line each.
impl Recovery {
    /// The lines, without those that report the normal case.
    pub fn remarks(&self) -> Vec<alloc::string::String> {
        let mut lines = Vec::new();
        if self.formatted {
            lines.push(alloc::string::String::from("the disk was empty and is a new queue now"));
        }
        if let Some((slot, fault)) = self.broken_slot {
            lines.push(alloc::format!(
                "slot {slot} of the index cannot be used: {fault}; a write was cut short there, or the disk is damaged; \
                 continuing with commit {} by the other slot",
                self.sequence
            ));
        }
        if self.is_log_broken {
            lines.push(alloc::format!(
                "the log of the index ends in parts of a commit; it was cut short there, or the disk is damaged; continuing with commit {}",
                self.sequence
            ));
        }
        if let Some(version) = self.upgraded_from {
            lines.push(alloc::format!("the queue had version {version} of its format and has version 3 now"));
        }
        if self.grown_bytes > 0 {
            lines.push(alloc::format!("the queue has grown by {} bytes", self.grown_bytes));
        }
        if self.unused_bytes > 0 {
            let advice = if self.can_grow { ": --grow takes them" } else { "" };
            lines.push(alloc::format!("the disk has {} bytes more than the queue uses{advice}", self.unused_bytes));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_normal_start_needs_no_remark_and_anything_else_has_its_own() {
        let normal = Recovery {
            formatted: false,
            sequence: 7,
            items: 3,
            uploads: 0,
            broken_slot: None,
            is_log_broken: false,
            upgraded_from: None,
            grown_bytes: 0,
            unused_bytes: 0,
            can_grow: false,
        };
        let remark = |recovery: Recovery| match &recovery.remarks()[..] {
            [remark] => remark.clone(),
            other => panic!("{other:?}"),
        };
        assert!(normal.remarks().is_empty());
        assert!(remark(Recovery { formatted: true, ..normal.clone() }).contains("new queue"));
        assert!(remark(Recovery { broken_slot: Some((1, Fault::State(9))), ..normal.clone() }).contains("slot 1"));
        assert!(remark(Recovery { is_log_broken: true, ..normal.clone() }).contains("continuing with commit 7"));
        assert!(remark(Recovery { upgraded_from: Some(2), ..normal.clone() }).contains("had version 2"));
        assert!(remark(Recovery { grown_bytes: 4096, ..normal.clone() }).contains("grown by 4096 bytes"));
        assert!(remark(Recovery { unused_bytes: 1, ..normal.clone() }).ends_with("1 bytes more than the queue uses"));
        let larger = Recovery { unused_bytes: 5000, can_grow: true, ..normal };
        assert!(remark(larger).ends_with("5000 bytes more than the queue uses: --grow takes them"));
    }
}
