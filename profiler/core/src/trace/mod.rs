//! The trace of a guest: tasks, waits, requests, counters and calls.
//!
//! [`raw::RawTrace`] is the copy of a guest's rings in a recording, byte for byte;
//! [`model::Trace`] is its interpretation. Nothing is interpreted while a guest is recorded.

mod build;
pub mod example;
pub mod filter;
pub mod model;
pub mod path;
pub mod raw;
mod reason;
pub mod sleds;

pub use build::build;
