//! The C functions of the MPI 5.0 standard ABI over `glass_lib_mpi`: a host (processes of Linux, cores of a VM) links it and provides [`Host`].
//!
//! Every pointer is the calling program's, and valid as the standard requires: that is the contract of every function here and of every
//! `unsafe` block which reads or writes through an argument. One thread calls at a time (`MPI_THREAD_SERIALIZED`).
#![no_std]
#![allow(non_snake_case)]
#![allow(clippy::missing_safety_doc, clippy::undocumented_unsafe_blocks)] // The contract above is that of all.
#![allow(missing_docs)] // The standard documents its functions.
#![allow(clippy::too_many_arguments)] // The standard chose them.

extern crate alloc;

#[macro_use]
mod macros;
mod attributes;
mod blocking;
mod collectives;
mod communicators;
mod datatypes;
mod errors;
mod global;
mod groups;
mod handles;
mod info;
mod job;
mod memory;
mod nonblocking;
mod numbers;
mod objects;
mod operations;
mod requests;
mod status;
mod unsupported;

pub use global::Host;
