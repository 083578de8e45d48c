//! The search for devices on the machine that the image runs on: what touches its registers.

use super::{Found, Place, VmTransport, mmio, pci};
use crate::arch::pins::pin_of;
use crate::command_line::MmioDevice;
use crate::interrupts::{Messages, Source, Trigger};
use crate::machine::{Machine, MmioWindows, PciSegment};
use crate::memory::{map_device, registers};
use crate::serial::print_line;
use alloc::boxed::Box;
use alloc::vec::Vec;
use glass_drivers_virtio::{MmioTransport, PciTransport, TransportError, WINDOW_BYTES};

/// Every virtio device that a driver could use, in the VMM's order. One that cannot be used is reported and left out.
pub fn find(machine: &Machine) -> Vec<Found> {
    let mut found = Vec::new();
    for segment in &machine.pci {
        find_on_pci(machine, segment, &mut found);
    }
    match &machine.mmio {
        MmioWindows::Listed(windows) => find_on_mmio(machine, windows, false, &mut found),
        // Each look costs an exit; a VMM that has put its devices on PCI has none here.
        MmioWindows::Probed(windows) if found.is_empty() => find_on_mmio(machine, windows, true, &mut found),
        MmioWindows::Probed(_) => {}
    }
    found
}

fn find_on_mmio(machine: &Machine, windows: &[MmioDevice], is_probing: bool, found: &mut Vec<Found>) {
    let open = |window: &MmioDevice| {
        map_device(window.address, window.address + WINDOW_BYTES as u64).map_err(|_| TransportError::NoDevice)?;
        // SAFETY: the window was just mapped one to one as a device, and each is listed once, so it has no other user.
        unsafe { MmioTransport::new(window.address as usize) }
    };
    for (window, opened) in mmio::search(windows, is_probing, open) {
        let place = Place::Mmio(window.address);
        let pin = pin_of(machine, window.interrupt, Trigger::Edge);
        match (opened, pin) {
            (Ok(transport), Some(interrupts)) => {
                found.push(Found { place, transport: Box::new(transport), interrupts });
            }
            (Ok(_), None) => print_line(format_args!(
                "virtio device {place}: its interrupt {} reaches no interrupt controller",
                window.interrupt
            )),
            (Err(error), _) => print_line(format_args!("virtio device {place}: {error}")),
        }
    }
}

/// Configuration spaces in memory, each bus mapped when it is first looked at.
struct Spaces<'a> {
    segment: &'a PciSegment,
    mapped: Option<u8>,
}

impl pci::Spaces for Spaces<'_> {
    fn read(&mut self, function: pci::Function, offset: u16) -> u32 {
        // What cannot be mapped reads as what is not there.
        self.register(function, offset).map_or(u32::MAX, |register| {
            // SAFETY: `register` has mapped it, and reading the configuration of a function that is not there gives all ones.
            unsafe { register.read_volatile() }
        })
    }

    fn write(&mut self, function: pci::Function, offset: u16, value: u32) {
        if let Some(register) = self.register(function, offset) {
            // SAFETY: as for `read`; what is written there moves registers, which pci.rs keeps away from RAM.
            unsafe { register.write_volatile(value) }
        }
    }
}

impl Spaces<'_> {
    fn register(&mut self, function: pci::Function, offset: u16) -> Option<*mut u32> {
        assert!(offset < 4096 && offset.is_multiple_of(4));
        if self.mapped != Some(function.bus) {
            let bus = self.segment.address + (u64::from(function.bus) << 20);
            map_device(bus, bus + (1 << 20)).ok()?;
            self.mapped = Some(function.bus);
        }
        let address = self.segment.address + function.offset() + u64::from(offset);
        Some(core::ptr::with_exposed_provenance_mut(address as usize))
    }
}

fn find_on_pci(machine: &Machine, segment: &PciSegment, found: &mut Vec<Found>) {
    let mut spaces = Spaces { segment, mapped: None };
    let mut free = pci::FreeAddresses::of(segment, &machine.ram);
    for (function, kind) in pci::virtio_functions(&mut spaces, segment.first_bus, segment.last_bus) {
        let place = Place::Pci(function);
        let opened = pci::open(&mut spaces, function, &mut free);
        match opened.map(|opened| attach(kind, function, &opened)) {
            Ok(Some((transport, interrupts))) => found.push(Found { place, transport, interrupts }),
            Ok(None) => print_line(format_args!("virtio device {place}: there is no memory to map its registers")),
            Err(error) => print_line(format_args!("virtio device {place}: {error}")),
        }
    }
}

fn attach(kind: u32, function: pci::Function, opened: &pci::Opened) -> Option<(VmTransport, Box<dyn Source>)> {
    let [common, notify, device] = &opened.windows;
    // SAFETY: these are the registers of one function, which pci.rs has found outside of RAM; each function is found once.
    let [common, notify, device, table] =
        [common, notify, device, &opened.messages].map(|window| unsafe { registers(window.clone()) });
    let windows = [common?, notify?, device?];
    let transport = PciTransport::new(kind, &opened.layout, windows, opened.message_count);
    Some((Box::new(transport), Box::new(Messages::new(table?, opened.message_count, function.number()))))
}
