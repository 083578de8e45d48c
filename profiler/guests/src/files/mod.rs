//! The files that a recorder reads: programs, libraries, and the vDSO, which has no file.
//!
//! What a process has mapped is that very file and no other of the same path: it may have been replaced or deleted
//! since, and a process in a container has paths of its own.
//!
//! May use: `sys`, `proc`.

pub mod cache;
pub mod debuginfod;
pub(crate) mod disks;
mod host;
mod mapped;
mod open;
mod opener;
mod perf_map;

pub use host::{HostFile, HostFiles, OpenedFiles};
pub use opener::{FILES, Opener, serve_files};

pub(crate) use host::FILE_BYTES_MAX;
pub(crate) use mapped::VDSO;
