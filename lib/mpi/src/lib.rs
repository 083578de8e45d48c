//! MPI between ranks that share memory, free of any operating system: matching, protocols, collectives, datatypes, operations,
//! communicators and requests, over a [`Fabric`] that cores of a VM, processes of a host or threads of a test provide.
//!
//! Decision 14 (docs/decisions/0014-mpi.md) has the reasons. The C interface is in `lib/mpi-abi`.
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;
#[cfg(any(test, loom))]
extern crate std;

mod basic;
mod collective;
mod communicator;
pub mod datatype;
mod error;
mod events;
mod fabric;
mod group;
mod operation;
mod plan;
mod plans;
mod receive;
mod request;
mod send;
mod slab;
#[allow(unsafe_code)] // Memory of the program and of other ranks.
mod sys;
pub mod trace;
pub mod typed;
mod world;

pub use basic::{Basic, Value};
pub use collective::Parts;
pub use datatype::{Datatype, Part};
pub use error::Error;
pub use fabric::Fabric;
pub use group::{Communicator, Comparison, Group};
pub use operation::{Fold, Operation, Predefined, UserFunction};
pub use plan::Buffer;
pub use receive::{Message, Source};
pub use request::Status;
pub use send::{EAGER_BYTES_MAX, Mode};
pub use slab::{Id, Slab};
pub use sys::{Base, Header, Memory, RANKS_MAX, Segment, bytes_of};
#[cfg(loom)]
pub use sys::{Body, Consumer, Credit, Line, Producer, Slot};
pub use world::World;
