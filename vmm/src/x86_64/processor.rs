//! A virtual processor: its features and registers at the start, and the loop that runs it.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kvm_bindings::{CpuId, kvm_cpuid_entry2, kvm_regs, kvm_segment};
use kvm_ioctls::{VcpuExit, VcpuFd};
use vm_memory::{Bytes as _, GuestAddress, VolatileMemory};

use crate::x86_64::boot::START_INFO;
use crate::x86_64::bus::Bus;
use crate::x86_64::end;
use crate::x86_64::exits::{ExitsOfProcessor, Reason};
use crate::x86_64::faults::{self, Faults};
use crate::x86_64::ports::{self, Written};
use crate::x86_64::snapshot::take::Requests;
use crate::x86_64::sys::{Slots, ticks};

/// CPUID leaf 1: there is a hypervisor.
const HYPERVISOR: u32 = 1 << 31;
/// The hypervisor's first leaf, and the one with the rates of its clocks in kHz: the TSC's, and that of the local APIC's timer.
const HYPERVISOR_LEAF: u32 = 0x4000_0000;
pub const TIMING_LEAF: u32 = 0x4000_0010;
/// KVM's timer counts nanoseconds, unless a VMM changes that (`KVM_CAP_X86_APIC_BUS_CYCLES_NS`).
const TIMER_KHZ: u32 = 1_000_000;
/// How long a processor waits that KVM does not run: one that waits for its start may return from there.
const PAUSE: Duration = Duration::from_millis(1);

/// What all processors share.
pub struct Shared {
    pub bus: Mutex<Bus>,
    pub slots: Slots,
    /// For snapshots of this VM, which the first processor follows.
    pub requests: Option<Mutex<Requests>>,
    /// Of a copy whose page faults are reported.
    pub faults: Option<Mutex<Faults>>,
}

impl Shared {
    /// The devices.
    pub fn bus(&self) -> MutexGuard<'_, Bus> {
        self.bus.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn faults(&self) -> Option<MutexGuard<'_, Faults>> {
        self.faults.as_ref().map(|faults| faults.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Makes processor number `index` of a VM, whose local APIC has the same number, and returns it with its features.
pub fn make(slots: &Slots, index: u8, features: &CpuId) -> Result<(VcpuFd, CpuId)> {
    let processor = make_bare(slots, index)?;
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
    Ok((processor, features))
}

/// Makes one without features.
pub fn make_bare(slots: &Slots, index: u8) -> Result<VcpuFd> {
    let mut processor = slots.vm().create_vcpu(index.into()).context("KVM makes no processor")?;
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

/// An access that KVM did not make.
enum Access {
    /// To a device.
    Read {
        address: u64,
        bytes: usize,
    },
    Write {
        address: u64,
        bytes: [u8; 8],
        count: usize,
    },
    /// To a page that it may not use yet.
    Page,
}

/// Runs a processor until the guest ends the VM, whose process exits with that status, or until the VM has to end for another reason.
pub fn run(mut processor: VcpuFd, shared: &Shared, mut exits: ExitsOfProcessor) -> ! {
    let _guard = end::with_thread("a virtual processor");
    match run_until_end(&mut processor, shared, &mut exits) {
        Ok(status) => {
            if let Some(mut faults) = shared.faults() {
                // The status of the guest is more than its last fault.
                let _ = faults.went_on();
            }
            // What devices have on their way is the guest's, and has to end before the process does.
            let stopped = shared.bus().stop();
            match stopped {
                Ok(()) => std::process::exit(status),
                Err(error) => end::failed(&format!("{error:#}")),
            }
        }
        Err(error) => end::failed(&format!("{error:#}")),
    }
}

fn run_until_end(processor: &mut VcpuFd, shared: &Shared, exits: &mut ExitsOfProcessor) -> Result<i32> {
    loop {
        let returned = processor.run();
        let start = ticks();
        let (reason, access) = match returned {
            Ok(VcpuExit::IoOut(port, bytes)) => {
                let written = ports::write(port, bytes, io::stdout()).context("cannot print what the guest prints")?;
                match written {
                    Written::Done => (Reason::PortWritten, None),
                    Written::End(status) => return Ok(status),
                }
            }
            Ok(VcpuExit::IoIn(port, bytes)) => {
                ports::read(port, bytes);
                (Reason::PortRead, None)
            }
            Ok(VcpuExit::MmioRead(address, bytes)) => {
                (Reason::Read(address), Some(Access::Read { address, bytes: bytes.len() }))
            }
            Ok(VcpuExit::MmioWrite(address, written)) => {
                let (mut bytes, count) = ([0; 8], written.len().min(8));
                bytes[..count].copy_from_slice(&written[..count]);
                (Reason::Written(address), Some(Access::Write { address, bytes, count }))
            }
            Ok(VcpuExit::Shutdown) => bail!("the guest has reset its processor (a fault while it handled a fault)"),
            Ok(VcpuExit::InternalError | VcpuExit::MemoryFault { .. }) if shared.faults.is_some() => {
                (Reason::Page, Some(Access::Page))
            }
            Ok(VcpuExit::InternalError) => bail!("KVM cannot run an instruction of the guest"),
            Ok(VcpuExit::FailEntry(reason, _)) => bail!("the host's processor does not run the guest ({reason:#x})"),
            Ok(VcpuExit::Intr) => (Reason::Signal, None),
            Ok(other) => bail!("KVM has returned from the guest with {other:?}"),
            Err(error) if error.errno() == libc::EINTR => (Reason::Signal, None),
            Err(error) if error.errno() == libc::EAGAIN => {
                thread::sleep(PAUSE);
                continue;
            }
            Err(error) if error.errno() == libc::EFAULT && shared.faults.is_some() => {
                (Reason::Page, Some(Access::Page))
            }
            Err(error) => bail!("KVM cannot run the guest: {error}"),
        };
        if let Some(access) = access {
            reach(processor, shared, access)?;
        }
        exits.add(reason, start);
        if reason == Reason::Signal
            && exits.is_of_first()
            && let Some(requests) = &shared.requests
        {
            requests.lock().unwrap_or_else(PoisonError::into_inner).follow(processor, shared)?;
        }
    }
}

/// Makes an access, after those that KVM has kept back.
fn reach(processor: &mut VcpuFd, shared: &Shared, access: Access) -> Result<()> {
    if let Some(mut faults) = shared.faults()
        && reach_memory(&mut faults, processor, &access)?
    {
        return Ok(());
    }
    let mut bus = shared.bus();
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
        Access::Page => {}
    }
    Ok(())
}

/// Makes an access to memory of a guest whose page faults are reported. Whether it was one.
fn reach_memory(faults: &mut Faults, processor: &mut VcpuFd, access: &Access) -> Result<bool> {
    let start_ns = faults::now_ns();
    if !matches!(access, Access::Page) {
        faults.went_on()?;
    }
    match *access {
        Access::Page => faults.not_run(processor, start_ns)?,
        Access::Read { address, bytes } if faults.has(address) => {
            faults.reached(processor, address, false, start_ns)?;
            let mut data = [0; 8];
            faults.memory().read_slice(&mut data[..bytes.min(8)], GuestAddress(address))?;
            processor.get_kvm_run().__bindgen_anon_1.mmio.data = data;
        }
        Access::Write { address, bytes, count } if faults.has(address) => {
            faults.reached(processor, address, true, start_ns)?;
            faults.memory().write_slice(&bytes[..count], GuestAddress(address))?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}
