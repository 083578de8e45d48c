//! All unsafe code of the core: memory of the calling program, and memory that two ranks share.

#[cfg(target_arch = "aarch64")]
#[path = "arch/aarch64.rs"]
mod arch;
#[cfg(target_arch = "x86_64")]
#[path = "arch/x86_64.rs"]
mod arch;
mod memory;
mod ring;
mod segment;
mod vector;

pub(crate) use arch::ticks;
pub(crate) use memory::Staging;
pub use memory::{Base, Element, Memory};
pub use ring::{Body, Consumer, INLINE_BYTES, Producer};
#[cfg(loom)]
pub use ring::{Credit, Line, Slot};
pub use segment::{Header, RANKS_MAX, Segment, bytes_of};
pub(crate) use vector::each;
