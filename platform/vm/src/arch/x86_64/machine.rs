//! The machine as an x86-64 image finds it: by PVH, ACPI's tables, the command line and Xen.

use crate::arch::apic;
use crate::command_line::MmioDevice;
use crate::devices::{Devices, Settings, power_button};
use crate::drivers::Drivers;
use crate::interrupts::Vectors;
use crate::machine::acpi::{IoApic, Override, PowerButton, Tables};
use crate::machine::{MmioWindows, PciSegment, Ram, pvh};
use crate::xen;
use alloc::vec::Vec;

/// The first I/O APIC where no table has one.
const IO_APIC: IoApic = IoApic { address: 0xfec0_0000, first_interrupt: 0 };
/// QEMU's microvm has its virtio-mmio windows here. They are in no table but its AML.
const MICROVM_WINDOW: u64 = 0xfeb0_0000;
const MICROVM_WINDOW_BYTES: u64 = 512;

/// Where RAM may be that the image uses for other things: page 0 and what is below this stay unmapped.
pub const FIRST_ADDRESS: u64 = 0x1000;

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

/// What was handed over at the start.
pub struct StartInfo {
    pvh: pvh::StartInfo,
    domain: Option<Domain>,
}

impl StartInfo {
    /// Reads the start info at `address`, and makes the console of a domain of Xen work.
    ///
    /// # Safety
    /// As [`pvh::StartInfo::read`]; boot.s's tables are in use.
    pub unsafe fn read(address: u64) -> StartInfo {
        let domain = xen::initialize();
        // SAFETY: the caller vouches for it.
        StartInfo { pvh: unsafe { pvh::StartInfo::read(address) }, domain }
    }

    /// Kernel command line; empty if it is missing or no UTF-8.
    pub fn command_line(&self) -> &'static str {
        self.pvh.command_line
    }

    /// The ranges of RAM, in the VMM's order.
    pub fn ram(&self) -> &[Ram] {
        self.pvh.ram()
    }

    /// All RAM behind the image is zero.
    pub fn is_ram_zero(&self) -> bool {
        self.pvh.is_ram_zero
    }
}

impl Machine {
    /// Describes the machine, while boot.s's tables are in use. `listed` are the windows on the command line.
    pub fn read(info: &StartInfo, listed: &[MmioDevice]) -> Machine {
        let (domain, tables) = (info.domain, Tables::read(info.pvh.rsdp, read_physical));
        let mmio = match listed.is_empty() && domain.is_none() {
            true => MmioWindows::Probed(windows_of_microvm(&tables, info.pvh.rsdp != 0)),
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

    /// Registers that are mapped from the start on: those of the local APIC.
    pub fn registers(&self) -> impl Iterator<Item = Ram> {
        [(apic::LOCAL_APIC, apic::LOCAL_APIC + 4096)].into_iter()
    }

    /// Memory that the machine shares with others and that is not in its list of RAM.
    pub fn shared_pages(&self) -> impl Iterator<Item = u64> {
        self.domain.iter().flat_map(Domain::pages)
    }

    /// Starts the devices that are on no bus: the power button, and those of a domain of Xen.
    pub fn start_own_devices(
        &self,
        settings: &Settings,
        vectors: &mut Vectors,
        drivers: &mut Drivers,
        devices: &mut Devices,
    ) {
        power_button::start(self, vectors, drivers, devices);
        if let Some(domain) = self.domain {
            xen::bus::start(domain, settings, vectors, drivers, devices);
        }
    }
}

/// A byte of physical memory, while boot.s's tables map the first 4 GiB.
fn read_physical(address: u64) -> Option<u8> {
    // SAFETY: every address below 4 GiB is mapped now, and reading one byte has no effect on RAM;
    // ACPI's pointers are the VMM's own, so they do not lead to device registers.
    (FIRST_ADDRESS..1 << 32).contains(&address).then(|| unsafe { (address as *const u8).read_volatile() })
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

#[cfg(test)]
mod tests {
    use super::*;

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
