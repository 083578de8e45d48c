//! How a VM is attached to: its vCPUs and their threads, the way to their registers, and which of the
//! VMM's memory is RAM.

use std::fs::File;
use std::io;

use glass_profile::guest::GuestKind;

use super::aside::Aside;
use super::inject::{self, Injector};
use super::page::{self, RunPage};
use super::threads::{self, Descriptor, Found, Search};
use super::vcpu::Hold;
use super::{Core, DETACH_TIMEOUT, KvmVm, RegistersBy, Vcpu, View, permission};
use crate::Guest;
use crate::arch::x86_64::CoreState;
use crate::error::GuestError;
use crate::find::Vm;
use crate::memory::{Ram, Translator};
use crate::sys::{ChildSignals, Process, kvm_extension, monotonic_ns};
use crate::vm::{HeldCore, VmImage, VmSettings};

/// How often a vCPU is stopped until one stop has ended a `KVM_RUN`.
const FIRST_STOPS_MAX: u32 = 1000;
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
fn wanted(pid: u32, all: Vec<Descriptor>, settings: &VmSettings) -> Result<Vec<Descriptor>, GuestError> {
    if all.is_empty() {
        return Err(GuestError::NoVcpu(pid));
    }
    let missing = settings.vcpus.iter().find(|wanted| all.iter().all(|vcpu| vcpu.index != **wanted));
    if let Some(missing) = missing {
        return Err(GuestError::NoSuchVcpu { index: *missing, there: all.iter().map(|vcpu| vcpu.index).collect() });
    }
    Ok(all.into_iter().filter(|vcpu| settings.wants(vcpu.index as usize)).collect())
}

impl KvmVm {
    /// Attaches. Each vCPU's thread is stopped some times for some 10 us; when this returns it runs.
    pub fn attach(vm: &Vm, settings: VmSettings) -> Result<KvmVm, GuestError> {
        KvmVm::attach_by(RegistersBy::Page, vm, settings)
    }

    /// Attaches with a certain way to the registers.
    #[doc(hidden)]
    pub fn attach_by(by: RegistersBy, vm: &Vm, settings: VmSettings) -> Result<KvmVm, GuestError> {
        let pid = vm.pid;
        let refused = |error: io::Error| match error.kind() {
            io::ErrorKind::PermissionDenied => permission::explain(pid),
            io::ErrorKind::NotFound => GuestError::NoProcess(pid),
            _ => GuestError::System { action: format!("trace the VMM {pid}"), error },
        };
        let (descriptors, kvm) = threads::descriptors(pid).map_err(refused)?;
        let descriptors = wanted(pid, descriptors, &settings)?;
        let image = VmImage::load(GuestKind::Vm { vmm: pid }, &vm.name, settings)?;
        let process = Process::open(pid).map_err(refused)?;
        let shares = match by {
            RegistersBy::Calls => Err(io::Error::other("calls were requested")),
            RegistersBy::Page => check_kvm(&process, kvm),
        };
        let candidates = Ram::candidates(pid).map_err(refused)?;
        let signals =
            ChildSignals::block().map_err(|error| GuestError::System { action: "block SIGCHLD".to_owned(), error })?;
        let found = Search { pid, vcpus: &descriptors, signals: &signals, refused: &refused }.run()?;
        let mut vcpus = Vec::with_capacity(found.len());
        let mut warnings = Vec::new();
        for Found { descriptor, id, thread } in found {
            let page = match &shares {
                Ok(()) => process.descriptor(descriptor.number).and_then(|vcpu| RunPage::open(&vcpu)),
                Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
            };
            let view = match page {
                Ok(page) => View::Page(page),
                Err(error) if inject::is_filtered(pid, id) => {
                    return Err(GuestError::Unsupported(format!(
                        "the registers of the VM {pid} cannot be read: KVM does not share them ({error}), and the VMM's filter of system calls (seccomp) might end it if its threads were made to read them"
                    )));
                }
                Err(error) => {
                    if vcpus.is_empty() {
                        warnings.push(format!("KVM does not share registers ({error}), so the VMM's threads are made to read them, which makes pauses some times longer"));
                    }
                    View::Calls(Injector::new(pid, descriptor.number))
                }
            };
            let stat = File::open(format!("/proc/{pid}/task/{id}/stat")).ok();
            vcpus.push(Vcpu { index: descriptor.index, view, thread, is_synced: false, stat, is_silent: true });
        }
        let mut attached = KvmVm { vcpus, memory: Ram::default(), image, signals, aside: Aside::new(), warnings };
        attached.choose_memory(pid, candidates)?;
        Ok(attached)
    }

    /// Finds out which of the candidates is the RAM by what a vCPU sees there.
    fn choose_memory(&mut self, pid: u32, mut candidates: Vec<Ram>) -> Result<(), GuestError> {
        if candidates.is_empty() {
            return Err(GuestError::NoRamFile(pid));
        }
        let mut chosen = None;
        for position in 0..self.vcpus.len() {
            let Some(choice) = self.while_held(position, |image, state| choose(pid, image, state, &candidates))? else {
                continue;
            };
            let is_sure = matches!(choice, Ok((_, None)));
            // A vCPU that has not been started yet sees nothing that could be compared; the first does.
            if is_sure || chosen.is_none() {
                chosen = Some(choice);
            }
            if is_sure {
                break;
            }
        }
        let (index, warning) = chosen.unwrap_or(Err(GuestError::NoVcpu(pid)))?;
        self.memory = candidates.swap_remove(index);
        self.warnings.extend(warning);
        self.warnings.extend(self.image.prepare());
        if !self.memory.is_file() {
            self.warnings.push("the VM's RAM is no file that is shared, so it is read out of the VMM, which takes some microseconds longer for each sample (with QEMU, `-object memory-backend-memfd,share=on` avoids that)".to_owned());
        }
        if !self.memory.is_whole() {
            self.warnings.push(
                "where the VM has its RAM above 2 GiB is not known, so nothing is read there: stacks may be cut short"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// Stops a vCPU until its registers are known, and inspects it while it is stopped. `Ok(None)` if they are
    /// not available.
    fn while_held<T>(
        &mut self,
        position: usize,
        look: impl Fn(&VmImage, CoreState) -> T,
    ) -> Result<Option<T>, GuestError> {
        for _ in 0..FIRST_STOPS_MAX {
            let vcpu = &mut self.vcpus[position];
            let call = match vcpu.thread.hold(&self.signals, DETACH_TIMEOUT)? {
                Hold::Yes(call) => call,
                Hold::Late | Hold::Ended => return Ok(None),
            };
            let state = vcpu.registers(call, &self.signals);
            let seen = state.map(|state| state.map(|state| look(&self.image, state)));
            vcpu.thread.release()?;
            if let Some(seen) = seen? {
                return Ok(Some(seen));
            }
            self.rest(monotonic_ns() + 1_000_000)?;
        }
        Ok(None)
    }
}

/// The candidate that holds what the guest should run, and a warning if that is not sure.
fn choose(
    pid: u32,
    image: &VmImage,
    state: CoreState,
    candidates: &[Ram],
) -> Result<(usize, Option<String>), GuestError> {
    let mut possible = None;
    let mut wrong = None;
    for (index, memory) in candidates.iter().enumerate() {
        let translator = Translator::new(state.paging);
        let mut core = Core { memory, translator, is_halted: false, was_asked: false };
        match image.check(&state, &mut core) {
            Ok(None) => return Ok((index, None)),
            // Other memory than RAM holds no page tables that lead anywhere.
            Ok(Some(warning)) if core.read(state.registers.rip, &mut [0])? == 1 => {
                possible.get_or_insert((index, Some(warning)));
            }
            Ok(Some(_)) => {}
            Err(error) => {
                wrong.get_or_insert(error);
            }
        }
    }
    match (possible, wrong) {
        (_, Some(error)) => Err(error),
        (Some(possible), None) => Ok(possible),
        (None, None) => Err(GuestError::NoRamFile(pid)),
    }
}
