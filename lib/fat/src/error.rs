//! What can go wrong, in the terms of our API.

use crate::device::DeviceError;
use core::fmt;
use glass_api::{BlockError, FileError};
use hadris_io::{Error, ErrorKind};

const DAMAGED: &str = "the file system is damaged: repair it with fsck.fat";

/// Why a disk cannot be used as a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MountError {
    /// It contains no FAT file system.
    NotFat,
    /// It contains one whose first sector is not valid, or that is larger than the disk.
    Damaged,
    /// Its sectors are longer than 4096 bytes.
    SectorSize(u32),
    /// The disk failed.
    Block(BlockError),
    /// There is no memory.
    OutOfMemory,
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            MountError::NotFat => f.write_str(
                "the disk has no FAT file system: make one with mkfs.fat on the whole disk, without partitions",
            ),
            MountError::Damaged => write!(f, "{DAMAGED}"),
            MountError::SectorSize(bytes) => write!(f, "the disk has sectors of {bytes} bytes: FAT needs at most 4096"),
            MountError::Block(error) => write!(f, "the disk failed: {error}"),
            MountError::OutOfMemory => f.write_str("no memory for the file system: give the service more memory"),
        }
    }
}

impl core::error::Error for MountError {}

pub(crate) fn mount_error(error: &Error<DeviceError>) -> MountError {
    match (error.device_error(), error.kind()) {
        (Some(DeviceError::Block(error)), _) => MountError::Block(*error),
        (Some(DeviceError::OutOfMemory), _) => MountError::OutOfMemory,
        (None, ErrorKind::NotRecognized) => MountError::NotFat,
        (None, _) => MountError::Damaged,
    }
}

pub(crate) fn file_error(error: Error<DeviceError>) -> FileError {
    match (error.device_error(), error.kind()) {
        (Some(DeviceError::Block(error)), _) => block_error(*error),
        (Some(DeviceError::OutOfMemory), _) => FileError::OutOfMemory,
        (None, ErrorKind::Corrupt) => FileError::Broken(DAMAGED),
        (None, ErrorKind::NotFound) => FileError::NotFound,
        (None, ErrorKind::AlreadyExists) => FileError::Exists,
        (None, ErrorKind::NotADirectory) => FileError::NotADirectory,
        (None, ErrorKind::IsADirectory) => FileError::IsADirectory,
        (None, ErrorKind::DirectoryNotEmpty) => FileError::NotEmpty,
        (None, ErrorKind::NoSpace) => FileError::NoSpace,
        (None, ErrorKind::ReadOnly) => FileError::ReadOnly,
        (None, ErrorKind::InvalidInput | ErrorKind::NameTooLong) => FileError::BadPath,
        (None, ErrorKind::LimitExceeded) => FileError::TooMany,
        (None, ErrorKind::Busy) => FileError::Busy,
        (None, kind) => FileError::Host(kind.errno().linux()),
    }
}

pub(crate) fn block_error(error: BlockError) -> FileError {
    match error {
        BlockError::Shared => FileError::Shared,
        BlockError::ReadOnly => FileError::ReadOnly,
        BlockError::Device(code) => FileError::Host(code),
        BlockError::Broken(why) => FileError::Broken(why),
        // A file that reaches past the end of the disk.
        _ => FileError::Broken(DAMAGED),
    }
}

/// A file whose chain of clusters ends before it does.
pub(crate) const CUT: FileError = FileError::Broken(DAMAGED);
