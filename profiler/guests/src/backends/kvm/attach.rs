//! How a VM is attached to: its vCPUs and their threads, the pages with their registers, and which of the
//! VMM's memory is RAM.

use std::fs::File;
use std::io;
use std::time::Duration;

use glass_profiler_core::arch::Architecture;
use glass_profiler_core::guest::GuestKind;

use super::affinity::Affinity;
use super::page::{self, RunPage};
use super::threads::{Found, Search};
use super::vcpu::Hold;
use super::vmm::VmmStacks;
use super::waiting::Waiting;
use super::{DETACH_TIMEOUT, KvmVm, Vcpu, permission};
use crate::Guest;
use crate::arch::CoreState;
use crate::backends::access::{self, KnownVm, VmAccess};
use crate::backends::sleeper::{QUIET_PART, Sleeper};
use crate::error::GuestError;
use crate::files::OpenedFiles;
use crate::find::Vm;
use crate::find::vcpus;
use crate::find::vcpus::Descriptor;
use crate::find::vcpus::is_wanted;
use crate::memory::{AddressSpace, InUse, LiveSpace, Ram};
use crate::sys::arch::CAN_CALL_AGAIN;
use crate::sys::{ChildSignals, Process, kvm_extension, monotonic_ns};
use crate::systems::image::{VmImage, VmSettings};
use crate::systems::plan::CopyPlan;

/// How often a vCPU is stopped until one stop has ended a `KVM_RUN`.
const FIRST_STOPS_MAX: u32 = 1000;
/// The most vCPUs whose page tables and stacks show where RAM is.
const VCPUS_USED_MAX: usize = 16;
/// `KVM_CAP_SYNC_REGS` of `linux/kvm.h`.
const CAP_SYNC_REGS: i32 = 74;

/// Fails unless KVM can write the required registers: requesting others would make `KVM_RUN` fail.
fn check_kvm(process: &Process, kvm: Option<i32>) -> io::Result<()> {
    let device = match kvm {
        Some(number) => process.descriptor(number)?,
        None => File::options().read(true).write(true).open("/dev/kvm")?.into(),
    };
    if kvm_extension(&device, CAP_SYNC_REGS)? & page::WANTED == page::WANTED {
        return Ok(());
    }
    Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
}

/// The vCPUs that are wanted, or an error that names those that are there.
fn wanted(pid: u32, all: Vec<Descriptor>, vcpus: &[u32]) -> Result<Vec<Descriptor>, GuestError> {
    if all.is_empty() {
        return Err(GuestError::NoVcpu(pid));
    }
    let missing = vcpus.iter().find(|wanted| all.iter().all(|vcpu| vcpu.index != **wanted));
    if let Some(missing) = missing {
        return Err(GuestError::NoSuchVcpu { index: *missing, there: all.iter().map(|vcpu| vcpu.index).collect() });
    }
    Ok(all.into_iter().filter(|vcpu| is_wanted(vcpus, vcpu.index)).collect())
}

impl KvmVm {
    /// Attaches. Unless its symbols are found in RAM, each vCPU's thread is stopped some times for some 10 us; when this returns it runs.
    pub fn attach(vm: &Vm, settings: VmSettings) -> Result<KnownVm<KvmVm>, GuestError> {
        KvmVm::attach_as(vm, settings, |seized| seized)
    }

    /// The same, with what the VMM does for a vCPU.
    pub(crate) fn attach_with_vmm(vm: &Vm, settings: VmSettings) -> Result<KnownVm<KvmVm>, GuestError> {
        KvmVm::attach_as(vm, settings, |seized| seized.with_the_vmm(vm.pid))
    }

    fn attach_as(
        vm: &Vm,
        settings: VmSettings,
        prepare: impl FnOnce(KvmVm) -> KvmVm,
    ) -> Result<KnownVm<KvmVm>, GuestError> {
        let vcpus = settings.vcpus.clone();
        let memories = settings.memories(vm.pid, &OpenedFiles::default());
        let image = VmImage::load(GuestKind::Vm { vmm: vm.pid }, &vm.name, settings)?;
        KnownVm::of(prepare(KvmVm::seize(vm.pid, &vcpus)?), image, &memories)
    }

    /// Traces the threads of these vCPUs, of all if none is given, and stops none of them if their names show which they are. What the VM runs is not
    /// known yet.
    pub(crate) fn seize(pid: u32, vcpus: &[u32]) -> Result<KvmVm, GuestError> {
        if !CAN_CALL_AGAIN {
            let reason = "glass cannot sample the VMs of KVM on this architecture yet: use QEMU's gdbstub (-gdb)";
            return Err(GuestError::Unsupported(reason.to_owned()));
        }
        let refused = |error: io::Error| match error.kind() {
            io::ErrorKind::PermissionDenied => permission::explain(pid),
            io::ErrorKind::NotFound => GuestError::NoProcess(pid),
            _ => GuestError::System { action: format!("trace the VMM {pid}"), error },
        };
        let (all, kvm) = vcpus::descriptors(pid).map_err(refused)?;
        let descriptors = wanted(pid, all.clone(), vcpus)?;
        let process = Process::open(pid).map_err(refused)?;
        let no_page = |error: io::Error| {
            GuestError::Unsupported(format!("KVM does not share the registers of the VM {pid}: {error}"))
        };
        check_kvm(&process, kvm).map_err(no_page)?;
        let candidates = Ram::candidates(pid, Architecture::X86_64).map_err(refused)?;
        if candidates.is_empty() {
            return Err(GuestError::NoRamFile(pid));
        }
        let signals =
            ChildSignals::block().map_err(|error| GuestError::System { action: "block SIGCHLD".to_owned(), error })?;
        let found = Search { pid, vcpus: &descriptors, all: &all, signals: &signals, refused: &refused }.run()?;
        let mut vcpus = Vec::with_capacity(found.len());
        for Found { descriptor, id, thread, is_certain } in found {
            let page = process.descriptor(descriptor.number).and_then(|vcpu| RunPage::open(&vcpu)).map_err(no_page)?;
            let open = |name| File::open(format!("/proc/{pid}/task/{id}/{name}")).ok();
            vcpus.push(Vcpu {
                index: descriptor.index,
                page: Some(page),
                thread,
                is_synced: false,
                stat: open("stat"),
                schedule: open("schedstat"),
                sleeper: Sleeper::new(QUIET_PART),
                call: open("syscall"),
                rests_as: None,
                last: None,
                is_certain,
                descriptor: descriptor.number,
                pending: None,
                is_silent: true,
                slept_at: None,
                waiting: Waiting::new(pid, id),
                is_outside: false,
                paused_samples: 0,
            });
        }
        let (memory, plan) = (Ram::default(), CopyPlan::default());
        Ok(KvmVm {
            vcpus,
            memory,
            candidates,
            plan,
            signals,
            affinity: Affinity::new(),
            vmm: None,
            warnings: Vec::new(),
        })
    }

    /// Keeps the threads of the process that started this one off the vCPUs' CPUs too.
    pub(crate) fn with_parent_elsewhere(mut self) -> KvmVm {
        self.affinity.include_parent();
        self
    }

    /// Samples what the VMM does for a vCPU, too.
    pub(crate) fn with_the_vmm(mut self, pid: u32) -> KvmVm {
        self.vmm = Some(VmmStacks::of(pid));
        self
    }

    /// Stops a vCPU until its registers are known. `Ok(None)` if they are not available.
    fn first_state(&mut self, position: usize) -> Result<Option<CoreState>, GuestError> {
        for _ in 0..FIRST_STOPS_MAX {
            let vcpu = &mut self.vcpus[position];
            let call = match vcpu.thread.hold(&self.signals, DETACH_TIMEOUT)? {
                Hold::Yes(call) => call,
                Hold::Late | Hold::Ended => return Ok(None),
            };
            if !self.check_thread(position, call)? {
                continue;
            }
            let vcpu = &mut self.vcpus[position];
            let state = vcpu.registers(call);
            vcpu.thread.release()?;
            // Of a nested guest nothing is known.
            if let Some(state) = state.filter(|_| !self.vcpus[position].is_nested()) {
                return Ok(Some(state));
            }
            self.rest(monotonic_ns() + 1_000_000)?;
        }
        Ok(None)
    }

    /// Has each candidate fit what the vCPUs use. A vCPU that shows no registers at once is left out.
    fn settle_memories(&mut self) -> Result<(), GuestError> {
        let mut in_use = Vec::new();
        for position in 0..self.vcpus.len().min(VCPUS_USED_MAX) {
            let Hold::Yes(call) = self.vcpus[position].thread.hold(&self.signals, DETACH_TIMEOUT)? else { continue };
            if !self.check_thread(position, call)? {
                continue;
            }
            let vcpu = &mut self.vcpus[position];
            let state = vcpu.registers(call);
            vcpu.thread.release()?;
            in_use.extend(state.and_then(|state| {
                Some(InUse { paging: *state.paging.x86_64()?, stack_pointer: state.registers.sp() })
            }));
        }
        self.candidates.iter_mut().for_each(|ram| ram.settle(&in_use));
        Ok(())
    }
}

impl VmAccess for KvmVm {
    fn vcpus(&self) -> Vec<u32> {
        self.vcpus.iter().map(|vcpu| vcpu.index).collect()
    }

    fn threads(&self) -> Vec<u32> {
        self.vcpus.iter().map(|vcpu| vcpu.thread.id()).collect()
    }

    fn state(&mut self, vcpu: usize) -> Result<Option<CoreState>, GuestError> {
        if vcpu >= self.vcpus.len() {
            return Ok(None);
        }
        let state = self.first_state(vcpu)?;
        // With the first vCPU an attempt begins to find what the VM runs.
        if vcpu == 0 && self.candidates.iter().any(Ram::is_doubtful) {
            self.settle_memories()?;
        }
        Ok(state)
    }

    fn memories(&self) -> usize {
        self.candidates.len()
    }

    fn read(&mut self, view: access::View, address: u64, into: &mut [u8]) -> Result<usize, GuestError> {
        let memory = self.candidates.get(view.memory).unwrap_or(&self.memory);
        LiveSpace::new(memory, view.paging).read(address, into)
    }

    fn choose_memory(&mut self, memory: usize) -> Result<(), GuestError> {
        if memory < self.candidates.len() {
            self.memory = self.candidates.swap_remove(memory);
            self.candidates.clear();
        }
        if !self.memory.is_file() {
            self.warnings.push("the VM's RAM is no file that is shared, so it is read out of the VMM, which takes some microseconds longer for each sample (with QEMU, `-object memory-backend-memfd,share=on` avoids that)".to_owned());
        }
        if !self.memory.is_whole() {
            self.warnings.push(
                "where the VM has some of its RAM is not known, so nothing is read there: stacks may be cut short (KVM shows it to root, and to a user with CAP_BPF and CAP_PERFMON, if the kernel describes its types: CONFIG_DEBUG_INFO_BTF)"
                    .to_owned(),
            );
        }
        Ok(())
    }

    fn set_plan(&mut self, plan: CopyPlan) -> Result<(), GuestError> {
        self.plan = plan;
        Ok(())
    }

    fn wait(&mut self, time: Duration) -> Result<(), GuestError> {
        self.rest(monotonic_ns() + time.as_nanos() as u64).map(drop)
    }

    fn give_up(&mut self) {
        // A thread that does not stop resumes when this one ends.
        let _ = self.detach();
    }
}
