//! The trace of a guest, read while it runs or from a dump.
//!
//! [`open`] finds the control pages of a running guest (`glass_formats::trace`) and returns a [`Live`], which is a
//! [`Source`](crate::Source) of `Event::Trace` pieces: it switches groups on, drains the rings, follows the guest's
//! clock, and restores the guest's groups. [`open_dump`] does the same for a file. [`TraceReader`] is the part below both:
//! it copies whole events from rings that are being written, and checks all data of the guest.

mod clock;
mod dump;
mod exits;
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
