//! A VMM for tests: runs an image of ours by KVM, with its memory laid out as other VMMs do it.
//!
//! There is no device but KVM's interrupt controllers and a serial port, whose output is ours. Before the guest runs, the last 8 bytes of every
//! 2 MiB of RAM get a word that depends on its physical address. For each range of RAM a line `ram ADDRESS BYTES` is written (hexadecimal), then
//! `ready`. A line `add` on standard input adds memory while the VM runs, if the layout has some more; its end ends the VM.
#![deny(unsafe_code)]

mod boot;
mod layout;
mod snapshot;
#[allow(unsafe_code)] // mappings and memory slots
mod sys;

use std::io::{self, BufRead, Write};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use kvm_bindings::{CpuId, KVM_MAX_CPUID_ENTRIES};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use layout::{Layout, Zone};
use snapshot::Registers;
use sys::Memory;

#[derive(Debug, Parser)]
struct Options {
    /// How the memory is laid out
    #[arg(long, value_enum, default_value_t = Layout::Plain)]
    layout: Layout,
    /// MiB of memory, without what is added later
    #[arg(long, default_value_t = 64)]
    memory: u64,
    /// Number of vCPUs
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
    vcpus: u8,
    /// The image that runs; without one the vCPUs never run
    image: Option<PathBuf>,
    /// RAM from the physical address 0 on, as another VMM had it; the first vCPU continues there
    #[arg(long, value_name = "FILE", requires = "registers", conflicts_with = "image")]
    ram: Option<PathBuf>,
    /// The registers with which it does: lines of a name and a hexadecimal number
    #[arg(long, value_name = "FILE", requires = "ram")]
    registers: Option<PathBuf>,
}

/// How the first vCPU starts.
enum Start {
    /// At the entry of an image.
    Entry(u64),
    /// Where another VMM stopped it.
    Snapshot(Registers),
}

/// Addresses that KVM needs below 4 GiB, where no layout has RAM.
const KVM_PAGES: usize = 0xfffb_d000;

fn main() -> Result<()> {
    let options = Options::parse();
    sys::end_with_parent();
    let kvm = Kvm::new().context("cannot open /dev/kvm")?;
    let vm = kvm.create_vm()?;
    let (zones, added) = options.layout.zones(options.memory << 20);
    let mut memory = Memory::default();
    // Slots first: once there are interrupt controllers each takes milliseconds.
    zones.iter().try_for_each(|zone| memory.add(&vm, zone))?;
    memory.write_marks(0)?;
    vm.set_tss_address(KVM_PAGES)?;
    vm.create_irq_chip()?;
    let features = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?;
    let start = match (&options.image, &options.ram, &options.registers) {
        (Some(image), ..) => Some(Start::Entry(boot::place(image, memory.guest(), &zones, options.vcpus)?)),
        (None, Some(ram), Some(registers)) => {
            snapshot::load(ram, memory.guest())?;
            Some(Start::Snapshot(Registers::read(registers)?))
        }
        _ => None,
    };
    // The first starts the others: all are there before it runs.
    let vcpus = (0..options.vcpus).map(|index| make_vcpu(&vm, index, &features)).collect::<Result<Vec<_>>>()?;
    let mut idle = Vec::new();
    for (index, vcpu) in (0..).zip(vcpus) {
        match &start {
            Some(start) => {
                match start {
                    Start::Entry(entry) if index == 0 => boot::enter(&vcpu, *entry)?,
                    Start::Snapshot(registers) if index == 0 => registers.enter(&vcpu)?,
                    _ => {}
                }
                thread::Builder::new().name(format!("vcpu {index}")).spawn(move || run(vcpu, index))?;
            }
            None => idle.push(vcpu),
        }
    }
    announce(&zones, "ready")?;
    for line in io::stdin().lock().lines() {
        match line?.as_str() {
            "add" => {
                let before = memory.slots();
                added.iter().try_for_each(|zone| memory.add(&vm, zone))?;
                memory.write_marks(before)?;
                announce(&added, "added")?;
            }
            other => bail!("{other:?} is no command"),
        }
    }
    Ok(())
}

fn announce(zones: &[Zone], end: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    for part in zones.iter().flat_map(|zone| &zone.parts) {
        writeln!(out, "ram {:x} {:x}", part.address, part.bytes)?;
    }
    writeln!(out, "{end}")?;
    Ok(out.flush()?)
}

fn make_vcpu(vm: &VmFd, index: u8, features: &CpuId) -> Result<VcpuFd> {
    let vcpu = vm.create_vcpu(index.into())?;
    let mut features = features.clone();
    for leaf in features.as_mut_slice() {
        match leaf.function {
            1 => leaf.ebx = leaf.ebx & 0x00ff_ffff | u32::from(index) << 24,
            0xb | 0x1f => leaf.edx = index.into(),
            _ => {}
        }
    }
    vcpu.set_cpuid2(&features)?;
    Ok(vcpu)
}

/// Runs a vCPU; an end that is none of the guest's ends the VM.
fn run(mut vcpu: VcpuFd, index: u8) {
    const SERIAL: u16 = 0x3f8;
    const SERIAL_STATUS: u16 = SERIAL + 5;
    const CAN_SEND: u8 = 0x60;
    const EXIT: u16 = 0xf4;
    let end = loop {
        match vcpu.run() {
            Ok(VcpuExit::IoOut(SERIAL, data)) => {
                let _ = io::stdout().write_all(data);
            }
            Ok(VcpuExit::IoOut(EXIT, _)) => std::process::exit(0),
            Ok(VcpuExit::IoOut(..) | VcpuExit::MmioWrite(..)) => {}
            Ok(VcpuExit::IoIn(SERIAL_STATUS, data)) => data.fill(CAN_SEND),
            Ok(VcpuExit::IoIn(_, data)) => data.fill(0xff),
            Ok(VcpuExit::MmioRead(_, data)) => data.fill(0),
            Ok(other) => break format!("{other:?}"),
            Err(error) if error.errno() == libc::EINTR => {}
            // A core that waits to be started may return so.
            Err(error) if error.errno() == libc::EAGAIN => thread::sleep(Duration::from_millis(1)),
            Err(error) => break error.to_string(),
        }
    };
    eprintln!("vcpu {index} ended: {end}");
    std::process::exit(1);
}
