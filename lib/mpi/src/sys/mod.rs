//! All unsafe code of the core: memory of the calling program, and memory that two ranks share.

mod memory;
mod ring;
mod segment;
mod vector;

pub(crate) use memory::Staging;
pub use memory::{Base, Element, Memory};
pub use ring::{Body, Consumer, INLINE_BYTES, Producer};
#[cfg(loom)]
pub use ring::{Credit, Line, Slot};
pub use segment::{Header, RANKS_MAX, Segment, bytes_of};
pub(crate) use vector::each;

/// The clock of events: the time stamp counter.
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    // SAFETY: every x86-64 CPU has the instruction, and neither our kernel nor Linux forbids it.
    unsafe { core::arch::x86_64::_rdtsc() }
}
