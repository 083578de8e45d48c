//! Finding virtio-mmio devices and starting their drivers.

use crate::apic;
use crate::command_line::MmioDevice;
use crate::serial::print_line;
use crate::start::Boot;
use alloc::format;
use alloc::vec::Vec;
use glass_virtio::{Blk, Console, ConsoleConfig, Disk, IdentityDma, MmioTransport, Net, NetConfig, Transport};
use glass_virtio::{TransportError, device};

/// A disk as the service sees it.
pub type VmDisk = Disk<MmioTransport, IdentityDma>;
pub type VmNet = Net<MmioTransport>;
pub type VmConsole = Console<MmioTransport>;

/// QEMU's microvm has its windows here; without a list on the command line they are probed.
const MICROVM_WINDOW: u64 = 0xfeb0_0000;
const WINDOW_BYTES: u64 = 512;
/// One part in so many of the memory holds frames.
const RECEIVE_SHARE: usize = 6;

/// Which driver belongs to an interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// Index into [`Devices::disks`].
    Disk(usize),
    Net,
    Console,
}

impl Owner {
    /// The device's name in the trace.
    fn name(self) -> u32 {
        match self {
            Owner::Disk(index) => glass_trace::intern(&format!("disk {index}")),
            Owner::Net => glass_trace::intern("net"),
            Owner::Console => glass_trace::intern("console"),
        }
    }
}

/// Every device that works.
#[derive(Default)]
pub struct Devices {
    pub disks: Vec<VmDisk>,
    pub net: Option<VmNet>,
    pub console: Option<VmConsole>,
    /// By the device index that [`apic::idle`] reports.
    pub owners: Vec<Owner>,
    /// Their names in the trace, in the same order.
    pub names: Vec<u32>,
}

/// Finds and starts all devices. One that does not work is reported and left out.
pub fn start(boot: &Boot, memory_bytes: usize) -> Devices {
    let mut devices = Devices::default();
    let probing = boot.command_line.devices.is_empty();
    let slots = if probing { probe_list(boot) } else { boot.command_line.devices.clone() };
    for slot in slots {
        // SAFETY: start.rs maps the windows' range as a device, and nobody else uses it; the driver
        // for this slot is the only one, because each slot is listed once.
        match unsafe { MmioTransport::new(slot.address as usize) } {
            Ok(transport) => devices.add(boot, slot, transport, memory_bytes),
            // microvm fills its slots from the top, so the first empty one after a device ends the list.
            Err(TransportError::NoDevice) if probing && !devices.owners.is_empty() => break,
            Err(TransportError::NoDevice) => {}
            Err(error) => print_line(format_args!("virtio device at {:#x}: {error}", slot.address)),
        }
    }
    // Command lines list devices in the order of their slots, which microvm fills from the top.
    devices
}

fn probe_list(boot: &Boot) -> Vec<MmioDevice> {
    // QEMU wires the slots to the second I/O APIC if there is one, to pins 16.. if there is ACPI, else to 5..
    let (count, first_interrupt) = match (boot.io_apics.len(), boot.has_acpi) {
        (2.., _) => (24, 24),
        (_, true) => (8, 16),
        (_, false) => (8, 5),
    };
    let slot = |index: u32| MmioDevice {
        address: MICROVM_WINDOW + WINDOW_BYTES * u64::from(index),
        interrupt: first_interrupt + index,
    };
    (0..count).rev().map(slot).collect()
}

impl Devices {
    /// Gives the driver the name by which the trace knows the device.
    fn name(&mut self, owner: Owner) {
        let name = owner.name();
        self.names.push(name);
        match owner {
            Owner::Disk(index) => self.disks[index].set_trace_name(name),
            Owner::Net => self.net.iter_mut().for_each(|net| net.set_trace_name(name)),
            Owner::Console => self.console.iter_mut().for_each(|console| console.set_trace_name(name)),
        }
    }

    fn add(&mut self, boot: &Boot, slot: MmioDevice, transport: MmioTransport, memory_bytes: usize) {
        let id = transport.device_id();
        let started = match id {
            device::BLK => Blk::new(transport, IdentityDma).map(|blk| {
                self.disks.push(Disk::new(blk));
                Owner::Disk(self.disks.len() - 1)
            }),
            device::NET if self.net.is_none() => {
                let config = NetConfig { memory_bytes: memory_bytes / RECEIVE_SHARE, ..NetConfig::default() };
                Net::new(transport, &IdentityDma, config).map(|net| {
                    self.net = Some(net);
                    Owner::Net
                })
            }
            device::CONSOLE if self.console.is_none() => {
                let config = ConsoleConfig { port: boot.command_line.console_port, ..ConsoleConfig::default() };
                Console::new(transport, &IdentityDma, config).map(|console| {
                    self.console = Some(console);
                    Owner::Console
                })
            }
            _ => {
                print_line(format_args!("virtio device at {:#x} of type {id} is not used", slot.address));
                return;
            }
        };
        match started {
            Ok(owner) => {
                self.name(owner);
                if !apic::route(&boot.io_apics, slot.interrupt, self.owners.len()) {
                    print_line(format_args!("interrupt {} reaches no I/O APIC", slot.interrupt));
                }
                self.owners.push(owner);
            }
            Err(error) => print_line(format_args!("virtio device at {:#x} does not work: {error}", slot.address)),
        }
    }
}
