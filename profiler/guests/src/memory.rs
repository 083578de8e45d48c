//! Guest memory: physical, in whatever holds a VMM's RAM, and virtual, through the guest's own page tables.

mod blocks;
mod layout;
mod ram;
mod walk;

pub use ram::Ram;
pub use walk::{Paging, Translator};

/// The RAM of a VM as a file.
pub type RamFile = Ram;

/// Physical memory that can be read.
pub trait Physical {
    /// Copies from a guest-physical address; false if not all of it is RAM, or not now.
    fn read(&self, address: u64, into: &mut [u8]) -> bool;
}
