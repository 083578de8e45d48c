//! The machine that the image finds itself on, described once at boot and assumed nowhere: processors, memory, interrupt
//! controllers, buses, the power button.
//!
//! The sources are what the VMM hands over (PVH), ACPI's tables, the command line and Xen. Pure: memory is read through a function.

pub mod acpi;
pub mod pvh;

use crate::command_line::MmioDevice;
use acpi::{Override, Tables};
use alloc::vec::Vec;

pub use acpi::{IoApic, PciSegment, PowerButton};
pub use pvh::{Ram, StartInfo};

/// The first I/O APIC where no table has one.
const IO_APIC: IoApic = IoApic { address: 0xfec0_0000, first_interrupt: 0 };
/// QEMU's microvm has its virtio-mmio windows here. They are in no table but its AML.
const MICROVM_WINDOW: u64 = 0xfeb0_0000;
const MICROVM_WINDOW_BYTES: u64 = 512;

/// What there is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// Identifiers of the local APICs of processors that can be used; empty if no table lists them.
    pub processors: Vec<u32>,
    /// All RAM, in the VMM's order: the part that the image lies in included.
    pub ram: Vec<Ram>,
    /// Where pins are, at least one.
    pub io_apics: Vec<IoApic>,
    /// Interrupts of the old PC that have other properties than usual.
    pub overrides: Vec<Override>,
    /// PCI buses.
    pub pci: Vec<PciSegment>,
    /// Windows in which virtio-mmio devices are, or may be.
    pub mmio: MmioWindows,
    /// How the power button is read, if there is one.
    pub power_button: Option<PowerButton>,
    /// What Xen shares with the machine, if that is one of its domains.
    pub domain: Option<Domain>,
}

/// A domain of Xen. Its devices are on no bus that a processor reaches: xenstore lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Domain {
    /// The daemon of consoles.
    pub console: Channel,
    /// The daemon of xenstore.
    pub store: Channel,
}

/// How a daemon in dom0 is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Channel {
    /// Address of the page that is shared with it; 0 for none.
    pub page: u64,
    /// Our end of the event channel.
    pub port: u32,
}

impl Domain {
    /// The pages that must be mapped.
    pub fn pages(&self) -> impl Iterator<Item = u64> {
        [self.console.page, self.store.page].into_iter().filter(|page| *page != 0)
    }
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

impl Machine {
    /// Describes the machine. `read` gives the byte at a physical address, `None` where there is no memory.
    pub fn read(
        info: &StartInfo,
        listed: &[MmioDevice],
        domain: Option<Domain>,
        read: impl Fn(u64) -> Option<u8>,
    ) -> Machine {
        let tables = Tables::read(info.rsdp, read);
        let mmio = match listed.is_empty() && domain.is_none() {
            true => MmioWindows::Probed(windows_of_microvm(&tables, info.rsdp != 0)),
            false => MmioWindows::Listed(listed.to_vec()),
        };
        Machine {
            processors: tables.processors,
            ram: info.ram().to_vec(),
            io_apics: if tables.io_apics.is_empty() { alloc::vec![IO_APIC] } else { tables.io_apics },
            overrides: tables.overrides,
            pci: tables.segments,
            mmio,
            // `xl` requests the end by xenstore.
            power_button: tables.power_button.filter(|_| domain.is_none()),
            domain,
        }
    }
}

/// The windows in which QEMU's microvm puts virtio-mmio devices if its command line does not list them; it fills them from the top. None on
/// a machine that has the hardware of a PC, where PCI devices may lie there.
fn windows_of_microvm(tables: &Tables, has_acpi: bool) -> Vec<MmioDevice> {
    if has_acpi && !tables.is_hardware_reduced {
        return Vec::new();
    }
    // QEMU wires the windows to the second I/O APIC if there is one, to pins 16.. if there is ACPI, else to 5..
    let (count, first_interrupt) = match (tables.io_apics.len(), has_acpi) {
        (2.., _) => (24, 24),
        (_, true) => (8, 16),
        (_, false) => (8, 5),
    };
    let window = |index: u32| MmioDevice {
        address: MICROVM_WINDOW + MICROVM_WINDOW_BYTES * u64::from(index),
        interrupt: first_interrupt + index,
    };
    (0..count).rev().map(window).collect()
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

    fn tables(io_apics: usize, is_hardware_reduced: bool) -> Tables {
        let io_apics = alloc::vec![IO_APIC; io_apics];
        Tables { io_apics, is_hardware_reduced, ..Tables::default() }
    }

    #[test]
    fn windows_are_probed_where_no_pc_is() {
        let first = |tables: &Tables, has_acpi| {
            let windows = windows_of_microvm(tables, has_acpi);
            (windows.len(), windows.first().map(|window| (window.address, window.interrupt)))
        };
        assert_eq!(first(&tables(2, true), true), (24, Some((0xfeb0_2e00, 47))));
        assert_eq!(first(&tables(1, true), true), (8, Some((0xfeb0_0e00, 23))));
        assert_eq!(first(&tables(0, false), false), (8, Some((0xfeb0_0e00, 12))));
        assert_eq!(first(&tables(1, false), true), (0, None), "PCI devices may lie there");
    }
}
