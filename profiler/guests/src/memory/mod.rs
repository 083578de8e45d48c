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

use glass_profiler_core::arch::Architecture;
pub use glass_profiler_core::arch::Paging;
pub use glass_profiler_core::arch::paging::Translator;
pub use glass_profiler_core::memory::Physical;
pub use live::{LiveSpace, ProcessSpace};
pub use ram::{MemorySource, Ram};

pub(crate) use evidence::InUse;

use std::sync::Arc;

use crate::error::GuestError;

/// The RAM of a VM as a file.
pub type RamFile = Ram;

/// The physical memory of a guest, from which it is known where there is any.
pub trait Machine: Physical + Send + Sync {
    /// The ranges of physical addresses that may have been written to, by address, none on another.
    fn ranges(&self) -> Vec<std::ops::Range<u64>>;

    /// Gives up what this process has of it for having read it. It can be read as before.
    fn release(&self) {}
}

impl Machine for Ram {
    fn ranges(&self) -> Vec<std::ops::Range<u64>> {
        Ram::ranges(self)
    }

    fn release(&self) {
        Ram::release(self);
    }
}

/// What may be the RAM of a VMM's guest, the most probable first, to be read from now on without rights over the VMM; none if they are missing.
pub(crate) fn memories_of(pid: u32, architecture: Architecture) -> Vec<Arc<dyn Machine>> {
    let Ok(mut candidates) = Ram::candidates(pid, architecture) else { return Vec::new() };
    if candidates.iter_mut().any(|ram| ram.open_for_reading().is_err()) {
        return Vec::new();
    }
    candidates.into_iter().map(|ram| Arc::new(ram) as Arc<dyn Machine>).collect()
}

/// The memory of a guest as a core of it sees it.
pub trait AddressSpace {
    /// Copies from a virtual address of the guest; returns how much there was.
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<usize, GuestError>;
}
