//! Ranks as processes of one host: they share a file of memory that `glass run --ranks` made, or a process is the only rank.
//!
//! Built as `libmpi_abi.so.1`, this is the library that programs of the MPI 5.0 standard ABI load. `glass build --c` links it into
//! programs instead, without the standard library (`--cfg glass_static`); then the same file runs as a process and as a rank in a VM,
//! whose kernel answers the same system calls.
#![cfg_attr(glass_static, no_std)]
#![deny(unsafe_code)]

extern crate alloc;

mod fabric;
mod host;
mod job;
#[allow(unsafe_code)] // System calls, and the function by which the C interface finds this crate.
mod sys;

pub use fabric::ProcessFabric;
pub use job::join;
