//! Guest memory: physical, in the VMM's memory or files, and address spaces over it.
//!
//! May use: `sys`, `proc`. Not: what stops a guest, and what runs in it.

mod blocks;
pub(crate) mod content;
mod evidence;
mod layout;
mod live;
mod ram;
mod slots;

pub use glass_profiler_core::arch::x86_64::paging::{Paging, Translator};
pub use glass_profiler_core::memory::Physical;
pub use live::{LiveSpace, ProcessSpace};
pub use ram::{MemorySource, Ram};

pub(crate) use evidence::InUse;

use crate::error::GuestError;

/// The RAM of a VM as a file.
pub type RamFile = Ram;

/// The memory of a guest as a core of it sees it.
pub trait AddressSpace {
    /// Copies from a virtual address of the guest; returns how much there was.
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<usize, GuestError>;
}
