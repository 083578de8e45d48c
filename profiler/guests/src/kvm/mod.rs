//! A VM under KVM, whichever program runs it: each vCPU's thread is stopped by ptrace, its registers
//! are read from the page that KVM shares with the VMM, its RAM from the memfd that backs it. The VMM
//! is not asked and does not notice.
//!
//! What happens to the guest if we die, at whatever moment (SIGKILL is meant):
//! - The kernel lets all threads that we trace go on when our thread ends. None stays stopped, and a
//!   signal that one was about to receive is received.
//! - A thread that had not been put back in front of `KVM_RUN` sees the call return `EINTR` without a
//!   signal. That is a result that `KVM_RUN` may have at any time; VMMs enter the guest again (QEMU:
//!   `kvm_cpu_exec` goes once through its loop). One that had been put back enters it by itself.
//! - `kvm_valid_regs` stays set: from then on KVM writes registers into the shared page when `KVM_RUN`
//!   returns, which nobody reads. The next recording finds it set and leaves it so.
//!
//! What a VMM could notice while it is sampled: a system call of a vCPU's thread other than `KVM_RUN`
//! that fails with `EINTR` after any stop (signal(7) lists them) does so.

mod page;
pub(crate) mod permission;
mod threads;
mod vcpu;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use glass_profile::event::{Event, RawSample};

use crate::Guest;
use crate::error::GuestError;
use crate::find::Vm;
use crate::memory::{RamFile, Translator};
use crate::sys::{ChildSignals, Process, kvm_extension, monotonic_ns};
use crate::vm::{HeldCore, VmImage, VmSettings};
use page::RunPage;
use threads::{Found, Search};
use vcpu::{Hold, Vcpu};

/// How long a vCPU is waited for: it may be stuck in the kernel, or wait for a CPU of a loaded host.
const STOP_TIMEOUT: Duration = Duration::from_millis(500);
/// The same when letting go for good.
const DETACH_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a vCPU is stopped until one stop has ended a `KVM_RUN`.
const FIRST_STOPS_MAX: u32 = 1000;
/// `KVM_CAP_SYNC_REGS` of `linux/kvm.h`.
const CAP_SYNC_REGS: i32 = 74;

/// A VM that is attached to.
pub struct KvmVm {
    // Threads that are dropped before they are let go need the signals: declared after them.
    vcpus: Vec<Vcpu>,
    memory: RamFile,
    image: VmImage,
    signals: ChildSignals,
    ended: bool,
    warnings: Vec<String>,
}

/// A vCPU that stands still.
struct Core<'a> {
    memory: &'a RamFile,
    translator: Translator,
    is_halted: bool,
}

impl HeldCore for Core<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<usize, GuestError> {
        Ok(self.translator.read(self.memory, address, into))
    }

    fn is_halted(&mut self) -> Result<bool, GuestError> {
        Ok(self.is_halted)
    }
}

/// Whether a process runs a VM by KVM, as far as we may know.
pub fn is_vmm(pid: u32) -> bool {
    vcpu_count(pid).is_ok_and(|count| count > 0)
}

/// How many vCPUs of KVM a process has; fails if we may not know.
pub(crate) fn vcpu_count(pid: u32) -> io::Result<usize> {
    Ok(threads::descriptors(pid)?.0.len())
}

/// Fails unless KVM writes the registers that are wanted: asking for others would make `KVM_RUN` fail.
fn check_kvm(process: &Process, kvm: Option<i32>, refused: impl Fn(io::Error) -> GuestError) -> Result<(), GuestError> {
    let device = match kvm {
        Some(number) => process.descriptor(number).map_err(refused)?,
        None => File::options()
            .read(true)
            .write(true)
            .open("/dev/kvm")
            .map_err(|error| GuestError::Unsupported(format!("/dev/kvm cannot be asked what it can ({error})")))?
            .into(),
    };
    match kvm_extension(&device, CAP_SYNC_REGS) {
        Ok(fields) if fields & page::WANTED == page::WANTED => Ok(()),
        _ => Err(GuestError::Unsupported("this host's KVM does not share registers (KVM_CAP_SYNC_REGS)".to_owned())),
    }
}

impl KvmVm {
    /// Attaches. Each vCPU's thread is stopped some times for some 10 us; when this returns it runs.
    pub fn attach(vm: &Vm, settings: VmSettings) -> Result<KvmVm, GuestError> {
        let pid = vm.pid;
        let image = VmImage::load(pid, settings)?;
        let refused = |error: io::Error| match error.kind() {
            io::ErrorKind::PermissionDenied => permission::explain(pid),
            io::ErrorKind::NotFound => GuestError::NoProcess(pid),
            _ => GuestError::System { action: format!("trace the VMM {pid}"), error },
        };
        let (descriptors, kvm) = threads::descriptors(pid).map_err(refused)?;
        if descriptors.is_empty() {
            return Err(GuestError::NoVcpu(pid));
        }
        let memory = RamFile::open(pid).map_err(refused)?.ok_or(GuestError::NoRamFile(pid))?;
        let process = Process::open(pid).map_err(refused)?;
        check_kvm(&process, kvm, refused)?;
        let signals =
            ChildSignals::block().map_err(|error| GuestError::System { action: "block SIGCHLD".to_owned(), error })?;
        let found = Search { pid, vcpus: &descriptors, signals: &signals, refused: &refused }.run()?;
        let mut vcpus = Vec::with_capacity(found.len());
        for Found { descriptor, id, thread } in found {
            let page = process.descriptor(descriptor.number).and_then(|vcpu| RunPage::open(&vcpu)).map_err(refused)?;
            let stat = if image.tells_state() { None } else { File::open(format!("/proc/{pid}/task/{id}/stat")).ok() };
            vcpus.push(Vcpu { page: Some(page), thread, is_synced: false, stat });
        }
        let warnings = Vec::new();
        let mut attached = KvmVm { vcpus, memory, image, signals, ended: false, warnings };
        attached.check_image(pid)?;
        Ok(attached)
    }

    /// Stops the first vCPU until its registers are known, and compares memory with the image.
    fn check_image(&mut self, pid: u32) -> Result<(), GuestError> {
        for _ in 0..FIRST_STOPS_MAX {
            let vcpu = &mut self.vcpus[0];
            match vcpu.thread.hold(&self.signals, DETACH_TIMEOUT)? {
                Hold::Yes(call) => vcpu.is_synced |= call.interrupted,
                Hold::Late => return Err(GuestError::NoVcpu(pid)),
                Hold::Ended => return Err(GuestError::NoProcess(pid)),
            }
            let checked = match &vcpu.page {
                Some(page) if vcpu.is_synced => {
                    let translator = Translator::new(page.registers().paging);
                    Some(self.image.check(&mut Core { memory: &self.memory, translator, is_halted: false }))
                }
                _ => None,
            };
            vcpu.thread.release()?;
            if let Some(checked) = checked {
                self.warnings.extend(checked?);
                return Ok(());
            }
            self.rest(monotonic_ns() + 1_000_000)?;
        }
        Err(GuestError::NoVcpu(pid))
    }

    /// One sample of a vCPU; `Ok(None)` if there is none to be had now.
    fn sample_vcpu(&mut self, index: usize) -> Result<Option<RawSample>, GuestError> {
        let vcpu = &mut self.vcpus[index];
        // A thread that sleeps in KVM_RUN waits for its guest to be woken, or started.
        // Allocated while the guest runs.
        let room = self.image.room();
        let sleeps = vcpu.stat.as_ref().is_some_and(is_asleep);
        let start_ns = monotonic_ns();
        let call = match vcpu.thread.hold(&self.signals, STOP_TIMEOUT)? {
            Hold::Yes(call) => call,
            Hold::Late => return Ok(None),
            Hold::Ended => {
                self.ended = true;
                return Ok(None);
            }
        };
        vcpu.is_synced |= call.interrupted;
        let sample = match &vcpu.page {
            Some(page) if vcpu.is_synced => {
                let state = page.registers();
                let translator = Translator::new(state.paging);
                let is_halted = sleeps && call.run_on.is_some();
                Some(self.image.sample(index, state, &mut Core { memory: &self.memory, translator, is_halted }, room))
            }
            _ => None,
        };
        vcpu.thread.release()?;
        let pause_ns = monotonic_ns() - start_ns;
        let Some(sample) = sample else { return Ok(None) };
        Ok(Some(RawSample { time_ns: start_ns, pause_ns, ..sample? }))
    }

    /// Stops and lets go each vCPU without reading anything: the floor that samples are measured against.
    /// Returns, of the one that took longest, the time until it stood still and that until it was let go.
    pub fn hold_and_release(&mut self) -> Result<Option<(Duration, Duration)>, GuestError> {
        let mut longest = (Duration::ZERO, Duration::ZERO);
        for vcpu in &mut self.vcpus {
            let start_ns = monotonic_ns();
            let held = vcpu.thread.hold(&self.signals, STOP_TIMEOUT)?;
            let held_ns = monotonic_ns();
            vcpu.thread.release()?;
            if held == Hold::Ended {
                return Ok(None);
            }
            let times = (held_ns - start_ns, monotonic_ns() - start_ns);
            longest = longest.max((Duration::from_nanos(times.0), Duration::from_nanos(times.1)));
        }
        Ok(Some(longest))
    }

    /// How many signals for the VMM went through our hands.
    pub fn signals_handed_on(&self) -> u64 {
        self.vcpus.iter().map(|vcpu| vcpu.thread.signals()).sum()
    }
}

fn is_asleep(stat: &File) -> bool {
    let mut bytes = [0; 512];
    let count = stat.read_at(&mut bytes, 0).unwrap_or(0);
    let state = threads::parse_stat(&String::from_utf8_lossy(&bytes[..count]));
    state.is_some_and(|(state, _)| state == 'S')
}

impl Guest for KvmVm {
    fn announce(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        self.warnings.drain(..).for_each(|text| sink(Event::Warning(text)));
        self.image.announce(self.vcpus.len(), sink);
        Ok(())
    }

    fn sample(&mut self) -> Result<Option<Vec<Event>>, GuestError> {
        let mut samples = Vec::with_capacity(self.vcpus.len());
        // One after the other: each stands still only for its own sample.
        for index in 0..self.vcpus.len() {
            samples.extend(self.sample_vcpu(index)?.map(Event::Sample));
        }
        Ok((!self.ended).then_some(samples))
    }

    fn rest(&mut self, until_ns: u64) -> Result<(), GuestError> {
        loop {
            for vcpu in &mut self.vcpus {
                vcpu.thread.settle()?;
                self.ended |= vcpu.thread.has_ended();
            }
            let left_ns = until_ns.saturating_sub(monotonic_ns());
            if left_ns == 0 {
                return Ok(());
            }
            self.signals.wait(Duration::from_nanos(left_ns));
        }
    }

    fn tracks(&self) -> u64 {
        self.vcpus.len() as u64
    }

    fn detach(&mut self) -> Result<(), GuestError> {
        let mut result = Ok(());
        for vcpu in &mut self.vcpus {
            // Given back first: the thread runs on as soon as it is let go.
            vcpu.page = None;
            let detached = vcpu.thread.detach(&self.signals, DETACH_TIMEOUT);
            result = result.and(detached);
        }
        result
    }
}
