//! Guest memory: physical, in the VMM's memory or files.

mod blocks;
mod layout;
mod ram;

pub use glass_profile::arch::x86_64::paging::{Paging, Translator};
pub use glass_profile::memory::Physical;
pub use ram::Ram;

/// The RAM of a VM as a file.
pub type RamFile = Ram;
