//! A virtual processor: its features and registers at the start, and the loop that runs it.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kvm_bindings::{CpuId, kvm_cpuid_entry2, kvm_regs, kvm_segment};
use kvm_ioctls::{VcpuExit, VcpuFd};
use vm_memory::VolatileMemory;

use crate::x86_64::boot::START_INFO;
use crate::x86_64::bus::Bus;
use crate::x86_64::end;
use crate::x86_64::ports::{self, Written};
use crate::x86_64::sys::Slots;

/// CPUID leaf 1: there is a hypervisor.
const HYPERVISOR: u32 = 1 << 31;
/// The hypervisor's first leaf, and the one with the rates of its clocks in kHz: the TSC's, and that of the local APIC's timer.
const HYPERVISOR_LEAF: u32 = 0x4000_0000;
const TIMING_LEAF: u32 = 0x4000_0010;
/// KVM's timer counts nanoseconds, unless a VMM changes that (`KVM_CAP_X86_APIC_BUS_CYCLES_NS`).
const TIMER_KHZ: u32 = 1_000_000;
/// How long a processor waits that KVM does not run: one that waits for its start may return from there.
const PAUSE: Duration = Duration::from_millis(1);

/// What all processors share.
pub struct Shared {
    pub bus: Mutex<Bus>,
    pub slots: Slots,
}

/// Makes processor number `index` of a VM, whose local APIC has the same number.
pub fn make(slots: &Slots, index: u8, features: &CpuId) -> Result<VcpuFd> {
    let mut processor = slots.vm().create_vcpu(index.into()).context("KVM makes no processor")?;
    let mut features = features.clone();
    for leaf in features.as_mut_slice() {
        match leaf.function {
            1 => {
                leaf.ebx = leaf.ebx & 0x00ff_ffff | u32::from(index) << 24;
                leaf.ecx |= HYPERVISOR;
            }
            0xb | 0x1f => leaf.edx = index.into(),
            HYPERVISOR_LEAF => leaf.eax = leaf.eax.max(TIMING_LEAF),
            _ => {}
        }
    }
    let tsc_khz = processor.get_tsc_khz().unwrap_or(0);
    let timing = kvm_cpuid_entry2 { function: TIMING_LEAF, eax: tsc_khz, ebx: TIMER_KHZ, ..Default::default() };
    // Without it the guest measures both.
    let _ = features.push(timing);
    processor.set_cpuid2(&features).context("KVM refuses the host's features of a processor")?;
    // Without it each write is an exit.
    let _ = processor.map_coalesced_mmio_ring();
    Ok(processor)
}

/// Makes it start at the PVH entry: 32-bit protected mode without paging.
pub fn enter(processor: &VcpuFd, entry: u64) -> Result<()> {
    let mut system = processor.get_sregs()?;
    let data =
        kvm_segment { limit: 0xffff_ffff, selector: 16, type_: 3, present: 1, db: 1, s: 1, g: 1, ..Default::default() };
    system.cs = kvm_segment { selector: 8, type_: 11, ..data };
    (system.ds, system.es, system.ss, system.fs, system.gs) = (data, data, data, data, data);
    system.cr0 = 0x11;
    processor.set_sregs(&system)?;
    processor.set_regs(&kvm_regs { rip: entry, rbx: START_INFO, rflags: 2, ..Default::default() })?;
    Ok(())
}

/// An access to a device that KVM did not make.
enum Access {
    Read { address: u64, bytes: usize },
    Write { address: u64, bytes: [u8; 8], count: usize },
}

/// Runs a processor until the guest ends the VM, whose process exits with that status, or until the VM has to end for another reason.
pub fn run(mut processor: VcpuFd, shared: &Shared) -> ! {
    let _guard = end::with_thread("a virtual processor");
    match run_until_end(&mut processor, shared) {
        Ok(status) => {
            // What devices have on their way is the guest's, and has to end before the process does.
            let stopped = shared.bus.lock().unwrap_or_else(PoisonError::into_inner).stop();
            match stopped {
                Ok(()) => std::process::exit(status),
                Err(error) => end::failed(&format!("{error:#}")),
            }
        }
        Err(error) => end::failed(&format!("{error:#}")),
    }
}

fn run_until_end(processor: &mut VcpuFd, shared: &Shared) -> Result<i32> {
    loop {
        let access = match processor.run() {
            Ok(VcpuExit::IoOut(port, bytes)) => {
                match ports::write(port, bytes, io::stdout()).context("cannot print what the guest prints")? {
                    Written::Done => continue,
                    Written::End(status) => return Ok(status),
                }
            }
            Ok(VcpuExit::IoIn(port, bytes)) => {
                ports::read(port, bytes);
                continue;
            }
            Ok(VcpuExit::MmioRead(address, bytes)) => Access::Read { address, bytes: bytes.len() },
            Ok(VcpuExit::MmioWrite(address, written)) => {
                let (mut bytes, count) = ([0; 8], written.len().min(8));
                bytes[..count].copy_from_slice(&written[..count]);
                Access::Write { address, bytes, count }
            }
            Ok(VcpuExit::Shutdown) => bail!("the guest has reset its processor (a fault while it handled a fault)"),
            Ok(VcpuExit::InternalError) => bail!("KVM cannot run an instruction of the guest"),
            Ok(VcpuExit::FailEntry(reason, _)) => bail!("the host's processor does not run the guest ({reason:#x})"),
            Ok(VcpuExit::Intr) => continue,
            Ok(other) => bail!("KVM has returned from the guest with {other:?}"),
            Err(error) if error.errno() == libc::EINTR => continue,
            Err(error) if error.errno() == libc::EAGAIN => {
                thread::sleep(PAUSE);
                continue;
            }
            Err(error) => bail!("KVM cannot run the guest: {error}"),
        };
        reach(processor, shared, access)?;
    }
}

/// Makes an access, after those that KVM has kept back.
fn reach(processor: &mut VcpuFd, shared: &Shared, access: Access) -> Result<()> {
    let mut bus = shared.bus.lock().unwrap_or_else(PoisonError::into_inner);
    while let Ok(Some(kept)) = processor.coalesced_mmio_read() {
        let count = (kept.len as usize).min(kept.data.len());
        bus.write(kept.phys_addr, &kept.data[..count])?;
    }
    match access {
        Access::Read { address, bytes } => {
            let mut data = [0; 8];
            bus.read(address, &mut data[..bytes.min(8)]);
            // Where KVM takes the answer from.
            processor.get_kvm_run().__bindgen_anon_1.mmio.data = data;
        }
        Access::Write { address, bytes, count } => {
            let written = bus.write(address, &bytes[..count])?;
            if let (Some(index), Some(windows)) = (written, shared.slots.windows()) {
                bus.mirror(index, &windows.as_volatile_slice())?;
            }
        }
    }
    Ok(())
}
