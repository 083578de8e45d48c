//! A VMM for images of Glasshouse under KVM, in one process: processors and devices are its threads. It boots an image by PVH, without firmware and
//! without ACPI for one core, and has the devices of `glass_devices` on virtio-mmio. Decision 44 has the reasons.
#![deny(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod boot;
#[cfg(target_arch = "x86_64")]
mod bus;
#[cfg(target_arch = "x86_64")]
mod devices;
#[cfg(target_arch = "x86_64")]
mod end;
#[cfg(target_arch = "x86_64")]
mod jail;
#[cfg(target_arch = "x86_64")]
mod ports;
#[cfg(target_arch = "x86_64")]
mod processor;
#[cfg(target_arch = "x86_64")]
mod registers;
#[cfg(all(feature = "script", target_arch = "x86_64"))]
pub mod script;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)] // memory slots, descriptors
mod sys;
#[cfg(target_arch = "x86_64")]
mod worker;

#[cfg(target_arch = "x86_64")]
use std::fs::File;
use std::path::PathBuf;
#[cfg(target_arch = "x86_64")]
use std::sync::{Arc, Mutex};
#[cfg(target_arch = "x86_64")]
use std::thread;

#[cfg(target_arch = "x86_64")]
use anyhow::Context as _;
use anyhow::Result;
#[cfg(target_arch = "x86_64")]
use boot::Image;
#[cfg(target_arch = "x86_64")]
use bus::{BUS_BYTES, Bus, WINDOWS};
#[cfg(target_arch = "x86_64")]
use devices::Devices;
use glass_devices::{DiskOptions, UserNetwork};
#[cfg(target_arch = "x86_64")]
use kvm_bindings::KVM_MAX_CPUID_ENTRIES;
#[cfg(target_arch = "x86_64")]
use kvm_ioctls::Kvm;
#[cfg(target_arch = "x86_64")]
use processor::Shared;
#[cfg(target_arch = "x86_64")]
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
#[cfg(target_arch = "x86_64")]
use sys::Slots;
#[cfg(target_arch = "x86_64")]
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap, MmapRegion, VolatileMemory};

/// As many processors as the identifiers of a local APIC can name, without the one for all.
pub const CORES_MAX: u8 = 254;
#[cfg(target_arch = "x86_64")]
/// Where the hole for devices below 4 GiB starts.
const HOLE: u64 = 3 << 30;
#[cfg(target_arch = "x86_64")]
const FOUR_GIB: u64 = 1 << 32;
#[cfg(target_arch = "x86_64")]
const PAGE_BYTES: u64 = 4096;
#[cfg(target_arch = "x86_64")]
/// Addresses that KVM needs below 4 GiB, where no memory is.
const KVM_PAGES: usize = 0xfffb_d000;

/// A VM.
#[derive(Debug, Clone)]
pub struct Machine {
    /// The ELF file that it boots.
    pub image: PathBuf,
    /// For the image; what describes the machine is added.
    pub command_line: String,
    /// Bytes of RAM.
    pub memory_bytes: u64,
    /// Processors, 1 to [`CORES_MAX`].
    pub cores: u8,
    /// A file or block device that is its disk.
    pub disk: Option<(PathBuf, DiskOptions)>,
    /// What is behind its network card.
    pub network: Network,
    /// The address of the card.
    pub mac: [u8; 6],
}

/// What is behind a network card.
#[derive(Debug, Clone)]
pub enum Network {
    /// There is no card.
    None,
    /// An existing TAP device.
    Tap(String),
    /// The host's sockets.
    User(UserNetwork),
}

/// Runs a VM in this process until it ends, and exits with the status that QEMU with `isa-debug-exit` has: its console is on standard output and
/// standard input. Before the first instruction of the guest the process is jailed.
///
/// # Errors
/// The VM cannot start.
#[cfg(target_arch = "x86_64")]
pub fn run(machine: &Machine) -> Result<()> {
    // First, because it takes longer than all else.
    let card = devices::open_card(&machine.network, machine.mac)?;
    // It stays open: a profiler requests of it what this host's KVM can do.
    let kvm = Kvm::new().context("cannot open /dev/kvm")?;
    let features = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).context("KVM has no features")?;
    let vm = kvm.create_vm().context("KVM makes no VM")?;
    let windows = MmapRegion::new(BUS_BYTES as usize).context("there is no memory")?;
    // Before there are interrupt controllers: with them each slot takes milliseconds.
    let slots = Slots::new(vm, memory(machine.memory_bytes)?, windows, WINDOWS)?;
    slots.vm().set_tss_address(KVM_PAGES).context("KVM has no room for its pages")?;
    slots.vm().create_irq_chip().context("KVM makes no interrupt controllers")?;
    let devices = Devices::open(machine, card, &slots)?;
    let command_line = devices.words() + &machine.command_line;
    let image = File::open(&machine.image).with_context(|| format!("cannot read {}", machine.image.display()))?;
    let entry = boot::place(&Image(image), slots.memory(), &command_line, machine.cores)?;
    let make = |index| processor::make(&slots, index, &features);
    let mut processors = (0..machine.cores).map(make).collect::<Result<Vec<_>>>()?.into_iter();
    let first = processors.next().context("a VM has at least one processor")?;
    processor::enter(&first, entry).context("KVM refuses the registers of a new processor")?;
    let bus = Bus::new(devices.windows);
    if let Some(page) = slots.windows() {
        (0..bus.devices()).try_for_each(|index| bus.mirror(index, &page.as_volatile_slice()))?;
    }
    jail::enter(devices.system_calls, machine.cores)?;
    let shared = Arc::new(Shared { bus: Mutex::new(bus), slots });
    for (processor, index) in processors.zip(1..) {
        let shared = shared.clone();
        let run = move || processor::run(processor, &shared);
        thread::Builder::new().name(format!("vcpu {index}")).spawn(run).context("there are no threads")?;
    }
    let _ = &kvm;
    processor::run(first, &shared)
}

/// There is none for this processor.
///
/// # Errors
/// Always.
#[cfg(not(target_arch = "x86_64"))]
pub fn run(_machine: &Machine) -> Result<()> {
    anyhow::bail!("our VMM boots images for x86-64 only: use --vmm qemu")
}

#[cfg(target_arch = "x86_64")]
/// RAM, which is zero: a file for what is below the hole, and one for what is above it, as other VMMs have it.
fn memory(bytes: u64) -> Result<GuestMemoryMmap> {
    let bytes = bytes.next_multiple_of(PAGE_BYTES);
    let low = bytes.min(HOLE);
    let mut ranges = vec![(0, low)];
    ranges.extend((bytes > low).then(|| (FOUR_GIB, bytes - low)));
    let range = |(address, bytes): (u64, u64)| {
        let file = File::from(memfd_create("glass_ram", MemfdFlags::CLOEXEC)?);
        ftruncate(&file, bytes)?;
        Ok((GuestAddress(address), bytes as usize, Some(FileOffset::new(file, 0))))
    };
    let ranges: rustix::io::Result<Vec<_>> = ranges.into_iter().map(range).collect();
    let ranges = ranges.context("there is no memory for the VM")?;
    GuestMemoryMmap::from_ranges_with_files(ranges).context("there is no memory for the VM")
}

#[cfg(all(test, target_arch = "x86_64"))]
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
