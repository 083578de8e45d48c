//! What a guest tells of itself: its tasks, waits, requests, counters and calls.
//!
//! [`raw::RawTrace`] is what was copied out of a guest's rings and lies in a recording, byte for byte;
//! [`model::Trace`] is what it means. Nothing is interpreted while a guest is watched.

mod build;
pub mod example;
pub mod filter;
pub mod model;
pub mod path;
pub mod raw;
mod reason;
pub mod sleds;

pub use build::build;
