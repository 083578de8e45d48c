//! Files on a block device, in a FAT file system (FAT12, FAT16, FAT32), for services that have no directory of the host.
//!
//! `hadris-fat` parses and changes the file system (decision 29). This crate gives it our block devices, and services the files of
//! [`glass_api::Files`]: the contents of files are read straight into the service's buffers, many at a time, while the tables of the file
//! system belong to one operation at a time.
//!
//! FAT has no links, no owners and no rights. It compares names without case, refuses some characters (`"*/:<>?\|` and control characters),
//! and keeps a time of change in steps of two seconds. A file that is open cannot be removed or replaced ([`FileError::Busy`]).
//!
//! [`FileError::Busy`]: glass_api::FileError::Busy
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod device;
mod error;
mod file;
mod files;

pub use error::MountError;
pub use file::FatFile;
pub use files::Fat;
