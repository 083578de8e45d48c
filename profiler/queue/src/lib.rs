//! Reads the disk of an upload queue that does not run: its items, and what is wrong with it.
//!
//! The disk is untrusted input: each number is checked before it is used, and the work is bounded by the length of the disk.
#![forbid(unsafe_code)]

mod check;
mod disk;
mod pages;
mod queue;

pub use check::{Report, check};
pub use disk::{FileDisk, ReadAt};
pub use glass_formats_queue::{BLOCK_BYTES, Entry};
pub use queue::{DataError, OpenError, Queue, Uploads};
