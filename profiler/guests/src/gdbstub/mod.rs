//! A VM in QEMU, held for each sample through its gdbstub. Needs no privilege beyond the socket; RAM
//! is read from the memfd that backs it, or, slower, through the socket.
//!
//! Connecting stops the VM, and QEMU does not start it again when the connection ends. So a small
//! process of our own keeps the connection too and detaches if we die at whatever moment.
//!
//! A gdbstub stops all vCPUs at once, also those that are not wanted.
//!
//! A VM that its owner has paused, or has not started, is sampled as it is and stays paused.
//!
//! In a QEMU that was started without gdbstub, one is started through its monitor.

mod access;
mod client;
mod description;
mod freeze;
mod switch;

use std::io;
use std::path::Path;
use std::time::Duration;

use glass_profile::arch::x86_64::paging::Translator;
use glass_profile::event::{Event, RawSample};
use glass_profile::guest::GuestKind;
use glass_profile::model::State;

use crate::Guest;
use crate::access::KnownVm;
use crate::arch::x86_64::CoreState;
use crate::arch::x86_64::gdb::Layout;
use crate::error::GuestError;
use crate::find::Vm;
use crate::memory::Ram;
use crate::plan::{AddressSpace, CopyPlan, HeldCore, VCPUS_MAX, choose_vcpus};
use crate::sys::{Watchdog, monotonic_ns};
use crate::vm::VmImage;
pub use crate::vm::VmSettings;
pub(crate) use client::hex_byte;
use client::{Client, Stopped};
use freeze::Freezer;
use switch::{Found, Switch};

/// A VM that is attached to.
pub struct QemuVm {
    /// Stops the vCPUs' threads, where QEMU alone would stop them too late. Dropped first: the watchdog can only
    /// be of use if they run.
    freezer: Option<Freezer>,
    pid: u32,
    client: Client,
    watchdog: Watchdog,
    /// How the gdbstub was switched on, if it was off.
    switch: Option<Switch>,
    layout: Layout,
    memory: Option<Ram>,
    /// QEMU's name of each vCPU.
    threads: Vec<String>,
    /// Which of them are read; all are stopped.
    wanted: Vec<usize>,
    /// A KVM stops anywhere, an emulator only between two blocks.
    is_exact: bool,
    plan: CopyPlan,
    /// The registers of the first vCPU at the attach, until they were used.
    first_state: Option<CoreState>,
    /// Its owner had stopped it when it was looked at last.
    is_paused: bool,
    /// Samples of a VM that did not run.
    paused_samples: u64,
    detached: bool,
    /// The pause of the attach.
    frozen_ns: u64,
    warnings: Vec<String>,
}

/// Bytes that are compared at each address to find out which file is the RAM.
const BYTES_COMPARED: usize = 64;

/// A file's bytes beside those that QEMU reads.
#[derive(Debug, Clone, Copy, Default)]
struct Comparison {
    /// How many are the same and not 0 (memory that was never written is 0).
    same: usize,
    differs: bool,
}

impl Comparison {
    fn compare(&mut self, expected: &[u8], found: &[u8]) {
        self.differs |= expected != found;
        self.same += expected.iter().zip(found).filter(|(expected, found)| expected == found && **found != 0).count();
    }
}

/// A core that the gdbstub holds.
struct Core<'a> {
    client: &'a mut Client,
    memory: Option<&'a Ram>,
    translator: Translator,
    thread: &'a str,
    is_exact: bool,
}

impl AddressSpace for Core<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<usize, GuestError> {
        match self.memory {
            Some(memory) => {
                let done = self.translator.read(memory, address, into);
                if done == into.len() || memory.is_whole() {
                    return Ok(done);
                }
                // Perhaps in the part of the RAM whose place in the file is not known.
                Ok(done + self.client.read_memory(address.wrapping_add(done as u64), &mut into[done..])?)
            }
            None => self.client.read_memory(address, into),
        }
    }
}

impl HeldCore for Core<'_> {
    fn is_halted(&mut self) -> Result<bool, GuestError> {
        self.client.is_halted(self.thread)
    }

    fn is_exact(&self) -> bool {
        self.is_exact
    }
}

impl QemuVm {
    /// Attaches. The VM is stopped for some milliseconds; when this returns it runs.
    pub fn attach(vm: &Vm, settings: VmSettings) -> Result<KnownVm<QemuVm>, GuestError> {
        let vcpus = settings.vcpus.clone();
        let image = VmImage::load(GuestKind::Vm { vmm: vm.pid }, &vm.name, settings)?;
        KnownVm::of(QemuVm::connect(vm, &vcpus)?, image)
    }

    /// Connects, for samples of these vCPUs, of all if none is given. What the VM runs is not known yet.
    pub(crate) fn connect(vm: &Vm, vcpus: &[u32]) -> Result<QemuVm, GuestError> {
        let (address, switch) = match (&vm.gdb, &vm.monitor) {
            (Some(address), _) => (address.clone(), None),
            (None, Some(monitor)) => match Switch::find(vm.pid, monitor)? {
                Found::On(address) => (address, None),
                Found::Off(switch) => (switch.address(), Some(switch)),
            },
            (None, None) => return Err(GuestError::NoGdbstub(vm.pid)),
        };
        let mut warnings = Vec::new();
        let files = match Ram::candidates(vm.pid) {
            Ok(candidates) => candidates.into_iter().filter(Ram::is_file).collect(),
            Err(error) => {
                warnings.push(format!("the VM's RAM cannot be mapped ({error}), so it is read through the gdbstub, which makes pauses some times longer"));
                Vec::new()
            }
        };
        let start_ns = monotonic_ns();
        let (mut client, mut watchdog) = Client::connect(&address, switch.as_ref())?;
        // From here on the VM is stopped, even if we are killed.
        let is_paused = client.greet()? == Stopped::Before;
        watchdog.note_paused(is_paused);
        let layout = description::read_layout(&mut client)?;
        let threads = read_threads(&mut client)?;
        let wanted = choose_vcpus(vcpus, threads.len())?;
        let mut attached = QemuVm {
            freezer: None,
            pid: vm.pid,
            client,
            watchdog,
            switch,
            layout,
            memory: None,
            threads,
            wanted,
            is_exact: vm.accel == "kvm",
            plan: CopyPlan::default(),
            first_state: None,
            is_paused,
            paused_samples: 0,
            detached: false,
            frozen_ns: 0,
            warnings,
        };
        attached.choose_memory(files)?;
        attached.prepare_to_freeze()?;
        attached.first_state = Some(attached.core(attached.wanted[0])?.0);
        if is_paused {
            attached.warnings.push("the VM is paused, and stays so until its owner starts it".to_owned());
        } else {
            attached.client.resume()?;
            attached.frozen_ns = monotonic_ns() - start_ns;
        }
        Ok(attached)
    }

    /// Stops the VM for a sample.
    fn stop(&mut self) -> Result<Stopped, GuestError> {
        let may_be_paused = self.is_paused || self.client.was_stopped();
        let stopped = match &mut self.freezer {
            _ if may_be_paused => self.client.stop_if_it_runs()?,
            Some(freezer) => {
                freezer.freeze()?;
                self.client.stop_while(|has_answer| freezer.release(has_answer))?
            }
            None => self.client.stop()?,
        };
        let is_paused = stopped == Stopped::Before;
        if stopped != Stopped::Ended && is_paused != self.is_paused {
            self.is_paused = is_paused;
            self.watchdog.note_paused(is_paused);
        }
        Ok(stopped)
    }

    /// Has the gdbstub use a core of the held VM.
    fn select(&mut self, index: usize) -> Result<(), GuestError> {
        if self.threads.len() > 1 { self.client.select(&self.threads[index]) } else { Ok(()) }
    }

    /// The registers of a core of the held VM, and the way to its memory.
    fn core(&mut self, index: usize) -> Result<(CoreState, Core<'_>, &CopyPlan), GuestError> {
        self.select(index)?;
        let thread = &self.threads[index];
        let bytes = self.client.registers()?;
        let state =
            self.layout.registers(bytes).ok_or_else(|| GuestError::Protocol("sent too few registers".to_owned()))?;
        let translator = Translator::new(state.paging);
        let (memory, is_exact) = (self.memory.as_ref(), self.is_exact);
        let core = Core { client: &mut self.client, memory, translator, thread, is_exact };
        Ok((state, core, &self.plan))
    }

    /// Finds out which of the files is the RAM: the one that holds what QEMU reads there. Of several, the nodes of a
    /// NUMA machine say, nothing else shows it.
    fn choose_memory(&mut self, mut files: Vec<Ram>) -> Result<(), GuestError> {
        if files.is_empty() {
            if self.warnings.is_empty() {
                self.warnings.push("the VM's RAM is no memfd, so it is read through the gdbstub, which makes pauses some times longer: start QEMU with `-object memory-backend-memfd,share=on`".to_owned());
            }
            return Ok(());
        }
        let mut seen = vec![Comparison::default(); files.len()];
        for index in 0..self.threads.len() {
            let (state, core, _) = self.core(index)?;
            for address in [state.registers.rsp, state.registers.rip] {
                let mut expected = [0; BYTES_COMPARED];
                let bytes = core.client.read_memory(address, &mut expected)?;
                for (file, seen) in files.iter().zip(&mut seen) {
                    let mut found = [0; BYTES_COMPARED];
                    let read = Translator::new(state.paging).read(file, address, &mut found[..bytes]);
                    seen.compare(&expected[..read], &found[..read]);
                }
            }
            if seen.iter().any(|seen| seen.same > 0) {
                break;
            }
        }
        let best = (0..files.len()).filter(|index| !seen[*index].differs).max_by_key(|index| seen[*index].same);
        match best.filter(|best| seen[*best].same > 0 || files.len() == 1) {
            Some(best) => self.memory = Some(files.swap_remove(best)),
            None => self.warnings.push("which of QEMU's files is the VM's RAM is not clear yet, so it is read through the gdbstub, which makes pauses some times longer: record again once the guest runs".to_owned()),
        }
        Ok(())
    }

    /// An emulated VM is sampled at the moment of the request, if we may stop its threads.
    fn prepare_to_freeze(&mut self) -> Result<(), GuestError> {
        if self.is_exact {
            return Ok(());
        }
        let threads = self.client.vcpu_threads()?;
        let freezer = match threads.is_empty() {
            true => Err(io::Error::other("QEMU does not name them")),
            false => Freezer::new(self.pid, &threads),
        };
        match freezer {
            Ok(freezer) => self.freezer = Some(freezer),
            Err(error) => self.warnings.push(format!(
                "the threads of the VM's vCPUs cannot be stopped at the moment of a sample ({error}), so too many samples show the guest waiting for its devices: run glass with CAP_SYS_PTRACE (as root, say)"
            )),
        }
        Ok(())
    }

    /// Leaves the gdbstub as it was found.
    fn switch_off(&mut self) -> Result<(), GuestError> {
        match self.switch.take().map(|switch| switch.off()) {
            // A QEMU that is gone has nothing left that could be on.
            Some(Err(error)) if Path::new(&format!("/proc/{}", self.pid)).exists() => Err(error),
            _ => Ok(()),
        }
    }

    fn sample_core(&mut self, index: usize) -> Result<RawSample, GuestError> {
        let (state, mut core, plan) = self.core(index)?;
        let room = plan.room();
        plan.sample(index, state, &mut core, room)
    }
}

fn read_threads(client: &mut Client) -> Result<Vec<String>, GuestError> {
    let mut threads = Vec::new();
    let mut answer = client.ask("qfThreadInfo")?;
    // A stub may send one name at a time, or none.
    for _ in 0..VCPUS_MAX {
        let Some(list) = answer.strip_prefix('m') else { break };
        threads.extend(list.split(',').filter(|id| !id.is_empty() && id.len() <= 64).map(str::to_owned));
        if threads.len() >= VCPUS_MAX {
            break;
        }
        answer = client.ask("qsThreadInfo")?;
    }
    if threads.is_empty() {
        return Err(GuestError::Protocol("names no vCPU".to_owned()));
    }
    threads.truncate(VCPUS_MAX);
    Ok(threads)
}

impl Guest for QemuVm {
    fn announce(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        self.warnings.drain(..).for_each(|text| sink(Event::Warning(text)));
        if self.frozen_ns > 0 {
            let frozen_ns = std::mem::take(&mut self.frozen_ns);
            sink(Event::Frozen { tracks_ns: self.wanted.iter().map(|vcpu| (*vcpu as u32, frozen_ns)).collect() });
        }
        Ok(())
    }

    fn sample(&mut self) -> Result<Option<Vec<Event>>, GuestError> {
        let start_ns = monotonic_ns();
        if self.stop()? == Stopped::Ended {
            self.freezer = None;
            self.switch_off()?;
            self.watchdog.dismiss();
            self.detached = true;
            return Ok(None);
        }
        let mut samples = Vec::with_capacity(self.wanted.len());
        for index in 0..self.wanted.len() {
            samples.push(self.sample_core(self.wanted[index])?);
        }
        if self.is_paused {
            self.paused_samples += 1;
        } else {
            self.client.resume()?;
        }
        // From before the request to stop until after the request to resume: the guest is stopped for
        // a part of this time, never for more. One that is paused loses nothing, and does not run.
        let frozen_ns = if self.is_paused { 0 } else { monotonic_ns() - start_ns };
        let events = samples.into_iter().map(|mut sample| {
            sample.time_ns = start_ns;
            sample.frozen_ns = frozen_ns;
            if self.is_paused && sample.state != State::NeverStarted {
                sample.state = State::Paused;
            }
            Event::Sample(sample)
        });
        Ok(Some(events.collect()))
    }

    fn rest(&mut self, until_ns: u64) -> Result<(), GuestError> {
        self.watchdog.look_after();
        match &mut self.freezer {
            Some(freezer) => freezer.rest(until_ns)?,
            None => std::thread::sleep(Duration::from_nanos(until_ns.saturating_sub(monotonic_ns()))),
        }
        Ok(())
    }

    fn remark(&self) -> Option<String> {
        let displaced = self.freezer.as_ref().map_or(0, Freezer::displaced);
        let displaced = (displaced > 0).then(|| {
            format!("{displaced} samples were taken late, because QEMU was busy with a device: they may show the guest waiting for it")
        });
        let paused = (self.paused_samples > 0).then(|| {
            format!(
                "the VM was paused by its owner at {} samples of each vCPU: they are shown as paused, where it stood",
                self.paused_samples
            )
        });
        let said: Vec<String> = [displaced, paused].into_iter().flatten().collect();
        (!said.is_empty()).then(|| said.join("; "))
    }

    fn tracks(&self) -> u64 {
        self.wanted.len() as u64
    }

    fn detach(&mut self) -> Result<(), GuestError> {
        if !self.detached {
            self.freezer = None;
            // If this fails, the watchdog does what is left to do.
            self.client.detach(self.is_paused)?;
            self.switch_off()?;
            self.watchdog.dismiss();
            self.detached = true;
        }
        Ok(())
    }
}
