//! All unsafe code of the core: memory of the calling program, and memory that two ranks share.

mod memory;
mod ring;
mod segment;

pub(crate) use memory::Staging;
pub use memory::{Base, Element, Memory};
pub use ring::{Body, Consumer, INLINE_BYTES, Producer};
#[cfg(loom)]
pub use ring::{Credit, Slot};
pub use segment::{Header, RANKS_MAX, Segment, bytes_of};
