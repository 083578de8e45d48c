//! The trace that a guest keeps of itself, read while it runs or from what it left behind.
//!
//! [`open`] finds the control pages of a running guest (`glass_formats::trace`) and gives a [`Live`], which is a
//! [`Source`](crate::Source) of `Event::Trace` pieces: it switches groups on, drains the rings, follows the guest's
//! clock, and leaves the guest as it was. [`open_dump`] does the same for a file. [`TraceReader`] is the part below both:
//! it copies what is whole out of rings that are being written, and believes nothing that it has not checked.

mod clock;
mod dump;
mod find;
mod live;
mod memory;
mod pages;
mod reader;
mod switch;
#[cfg(test)]
mod tests;

pub use dump::{DumpedTrace, open_dump};
pub use find::{Guest, check_program, open, open_process, open_vm};
pub use live::{Live, LiveCounts, LiveSettings, switch};
pub use memory::TraceMemory;
pub use reader::{Drained, ReadCounts, Start, TraceReader};
