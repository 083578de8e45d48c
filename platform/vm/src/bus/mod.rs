//! The buses: find devices, and give a driver its registers and its interrupts.

mod mmio;
mod pci;
#[cfg(test)]
mod pci_tests;
mod search;

use crate::interrupts::Source;
use alloc::boxed::Box;
use core::fmt;
use glass_drivers_virtio::Transport;

pub use search::find;

/// A virtio device's registers, whatever bus they are on. A call through the box costs nothing beside the exit that a register costs.
pub type VmTransport = Box<dyn Transport>;

/// A virtio device that is there.
pub struct Found {
    /// Where it is.
    pub place: Place,
    /// Its registers.
    pub transport: VmTransport,
    /// Its interrupts, which go nowhere yet.
    pub interrupts: Box<dyn Source>,
}

/// A device's place, for display.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Address of its window.
    Mmio(u64),
    /// Bus, device and function.
    Pci(pci::Function),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Place::Mmio(address) => write!(f, "at {address:#x}"),
            Place::Pci(function) => write!(f, "at PCI {function}"),
        }
    }
}
