//! The machine that the image finds itself on, described once at boot and assumed nowhere: processors, memory, interrupt
//! controllers, buses, the power button.
//!
//! The sources are what the VMM hands over (PVH, a device tree), ACPI's tables, the command line and Xen. The parsers are here, and pure: memory is
//! read through a function. What an architecture makes of them is its `machine.rs`.

#[cfg(any(test, target_arch = "x86_64"))]
pub mod acpi;
#[cfg(any(test, target_arch = "aarch64"))]
pub mod device_tree;
#[cfg(target_arch = "x86_64")]
pub mod pvh;

use crate::command_line::MmioDevice;
use alloc::vec::Vec;

pub use crate::arch::machine::Machine;
#[cfg(not(test))]
pub use crate::arch::machine::{FIRST_ADDRESS, StartInfo};

/// A range of RAM: first byte, and the byte after the last.
pub type Ram = (u64, u64);

/// Buses of a PCI segment, and where their functions' configuration spaces are in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PciSegment {
    /// Address of bus 0's configuration spaces, 1 MiB for each bus.
    pub address: u64,
    /// First bus.
    pub first_bus: u8,
    /// Last bus.
    pub last_bus: u8,
    /// Where registers can be placed, if that is known.
    pub window: Option<Ram>,
}

/// Where to look for virtio-mmio devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MmioWindows {
    /// The command line lists them.
    Listed(Vec<MmioDevice>),
    /// Possible windows, to be looked at in this order. The VMM fills them one after the other, so the first empty one after a device ends the
    /// search.
    Probed(Vec<MmioDevice>),
}

/// The parts of `ram` behind the image and within `limits`.
pub fn usable(ram: &[Ram], image_end: u64, limits: Ram) -> impl Iterator<Item = Ram> + Clone {
    let start_min = limits.0.max(image_end);
    ram.iter().map(move |&(start, end)| (start.max(start_min), end.min(limits.1))).filter(|(start, end)| start < end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ram_is_used_behind_the_image_below_and_above_4_gib() {
        const GIB: u64 = 1 << 30;
        let ram = [(0, 0xa_0000), (0x10_0000, 3 * GIB), (4 * GIB, 7 * GIB)];
        assert!(usable(&ram, 0x28_0000, (0, 4 * GIB)).eq([(0x28_0000, 3 * GIB)]));
        assert!(usable(&ram, 0x28_0000, (4 * GIB, u64::MAX)).eq([(4 * GIB, 7 * GIB)]));
        // A range that reaches over the limit is used on both sides of it.
        let ram = [(0x10_0000, 8 * GIB)];
        assert!(usable(&ram, 0x28_0000, (0, 4 * GIB)).eq([(0x28_0000, 4 * GIB)]));
        assert!(usable(&ram, 0x28_0000, (4 * GIB, u64::MAX)).eq([(4 * GIB, 8 * GIB)]));
    }
}
