//! The VMM of processors for x86-64.

mod boot;
mod bus;
mod copies;
mod devices;
mod end;
mod exits;
mod faults;
mod jail;
mod operand;
mod ports;
mod processor;
mod registers;
#[cfg(feature = "script")]
pub mod script;
mod snapshot;
#[allow(unsafe_code)] // memory slots, descriptors, structures of KVM
mod sys;
mod worker;

use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;

use anyhow::{Context as _, Result};
use bus::{BUS_BYTES, Bus, WINDOWS};
pub use copies::run_copies;
use devices::Devices;
use exits::Exits;
use glass_devices::DiskOptions;
use glass_formats::GENERATION_WORD;
use kvm_bindings::KVM_MAX_CPUID_ENTRIES;
use kvm_ioctls::Kvm;
use processor::Shared;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
pub use snapshot::disk::{name as name_of_copy, path_of as disk_of_snapshot};
pub use snapshot::pages::path_of as pages_of_snapshot;
pub use snapshot::request::{origin, used_pages, write_snapshot};
use snapshot::take::Requests;
use sys::Slots;
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap, MmapRegion, VolatileMemory};

use crate::{Image, Machine};

/// Where the hole for devices below 4 GiB starts.
const HOLE: u64 = 3 << 30;
const FOUR_GIB: u64 = 1 << 32;
const PAGE_BYTES: u64 = 4096;
/// Addresses that KVM needs below 4 GiB, where no memory is.
const KVM_PAGES: usize = 0xfffb_d000;

/// Runs a VM in this process until it ends, and exits with the status that QEMU with `isa-debug-exit` has: its console is on standard output and
/// standard input. Before the first instruction of the guest the process is jailed.
///
/// # Errors
/// The VM cannot start.
pub fn run(machine: &Machine) -> Result<()> {
    // First, because it takes longer than all else.
    let card = devices::open_card(&machine.network, machine.mac, None)?;
    // It stays open: a profiler requests of it what this host's KVM can do.
    let kvm = Kvm::new().context("cannot open /dev/kvm")?;
    let features = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).context("KVM has no features")?;
    let memory = memory(machine.memory_bytes)?;
    let slots = make_vm(&kvm, memory.clone(), memory)?;
    let of_files = |path: &PathBuf| (path.clone(), DiskOptions { is_read_only: true, ..DiskOptions::default() });
    let files_disk = machine.files_disk.as_ref().map(of_files);
    let devices = Devices::open(machine.disk.iter().chain(&files_disk), card, &slots, machine.cores.into())?;
    let generation = format!("{GENERATION_WORD}{:#x} ", snapshot::GENERATION);
    let command_line = devices.words() + &generation + &machine.command_line;
    let mut image = Image::open(&machine.image)?;
    let entry = boot::place(&mut image, slots.memory(), &command_line, machine.cores)?;
    let make = |index| processor::make(&slots, index, &features);
    let mut processors = (0..machine.cores).map(make).collect::<Result<Vec<_>>>()?.into_iter();
    let (first, features) = processors.next().context("a VM has at least one processor")?;
    processor::enter(&first, entry).context("KVM refuses the registers of a new processor")?;
    let exits = Arc::new(Exits::new(machine.cores, &devices.names, exits::guest_clock(&first))?);
    let bus = Bus::new(devices.windows);
    mirror(&bus, &slots)?;
    let listen = |path: &PathBuf| Requests::listen(path, cannot_be_copied(machine), machine.disk.is_some(), features);
    let requests = machine.snapshots.as_ref().map(listen).transpose()?;
    let is_template = requests.is_some();
    let needs = jail::Needs {
        cores: machine.cores,
        network: &machine.network,
        private_bytes: devices.memory_bytes,
        is_template,
        reports_faults: false,
    };
    jail::enter(devices.system_calls, &needs)?;
    let shared = Arc::new(Shared { bus: Mutex::new(bus), slots, requests: requests.map(Mutex::new), faults: None });
    for ((processor, _), index) in processors.zip(1..) {
        let (shared, exits) = (shared.clone(), exits.of_processor(index));
        let run = move || processor::run(processor, &shared, exits);
        thread::Builder::new().name(format!("vcpu {index}")).spawn(run).context("there are no threads")?;
    }
    let _ = &kvm;
    processor::run(first, &shared, exits.of_processor(0))
}

/// A VM with this memory, which KVM uses by the mapping `seen`, and interrupt controllers, without processors.
fn make_vm(kvm: &Kvm, memory: GuestMemoryMmap, seen: GuestMemoryMmap) -> Result<Slots> {
    let vm = kvm.create_vm().context("KVM makes no VM")?;
    let windows = MmapRegion::new(BUS_BYTES as usize).context("there is no memory")?;
    // Before there are interrupt controllers: with them each slot takes milliseconds.
    let slots = Slots::new(vm, memory, seen, windows, WINDOWS)?;
    slots.vm().set_tss_address(KVM_PAGES).context("KVM has no room for its pages")?;
    slots.vm().create_irq_chip().context("KVM makes no interrupt controllers")?;
    Ok(slots)
}

/// Shows the guest the registers of all devices, where it reads them without an exit.
fn mirror(bus: &Bus, slots: &Slots) -> Result<()> {
    let Some(page) = slots.windows() else { return Ok(()) };
    (0..bus.devices()).try_for_each(|index| bus.mirror(index, &page.as_volatile_slice()))
}

/// Why there can be no copies of a VM.
fn cannot_be_copied(machine: &Machine) -> Option<String> {
    let Machine { cores, files_disk, .. } = machine;
    if *cores > 1 {
        return Some(format!("it has {cores} cores, and a template has one"));
    }
    files_disk.is_some().then(|| "it has two disks, and a template has one at most".to_owned())
}

/// Where RAM of so many bytes is, and how much is there.
fn ranges(bytes: u64) -> Vec<(u64, u64)> {
    let bytes = bytes.next_multiple_of(PAGE_BYTES);
    let low = bytes.min(HOLE);
    let mut ranges = vec![(0, low)];
    ranges.extend((bytes > low).then(|| (FOUR_GIB, bytes - low)));
    ranges
}

/// RAM, which is zero: a file for what is below the hole, and one for what is above it, as other VMMs have it.
fn memory(bytes: u64) -> Result<GuestMemoryMmap> {
    let range = |(address, bytes): (u64, u64)| {
        let file = File::from(memfd_create("glass_ram", MemfdFlags::CLOEXEC)?);
        ftruncate(&file, bytes)?;
        Ok((GuestAddress(address), bytes as usize, Some(FileOffset::new(file, 0))))
    };
    let ranges: rustix::io::Result<Vec<_>> = ranges(bytes).into_iter().map(range).collect();
    let ranges = ranges.context("there is no memory for the VM")?;
    GuestMemoryMmap::from_ranges_with_files(ranges).context("there is no memory for the VM")
}

#[cfg(test)]
mod tests {
    use super::*;
    use vm_memory::{GuestMemoryBackend, GuestMemoryRegion};

    #[test]
    fn memory_has_a_hole_below_4_gib() {
        let ranges = |bytes| {
            let memory = memory(bytes).unwrap();
            memory.iter().map(|region| (region.start_addr().0, region.len())).collect::<Vec<_>>()
        };
        assert_eq!(ranges((64 << 20) - 1), [(0, 64 << 20)]);
        assert_eq!(ranges(HOLE), [(0, HOLE)]);
        assert_eq!(ranges(HOLE + 1), [(0, HOLE), (FOUR_GIB, PAGE_BYTES)]);
    }
}
