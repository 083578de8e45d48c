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
mod connection;
mod description;
mod freeze;
mod holding;
#[cfg(test)]
mod model;
mod stub;
mod switch;
mod turn;
mod whole;

use std::io;
use std::path::Path;

use glass_profiler_core::arch::x86_64::paging::Translator;
use glass_profiler_core::event::{Event, RawSample};
use glass_profiler_core::guest::GuestKind;
use glass_profiler_core::model::State;

use crate::arch::x86_64::CoreState;
use crate::arch::x86_64::gdb::Layout;
use crate::backends::access::KnownVm;
use crate::error::GuestError;
use crate::files::OpenedFiles;
use crate::find::Vm;
use crate::find::vcpus::choose_vcpus;
use crate::memory::AddressSpace;
use crate::memory::Physical;
use crate::memory::Ram;
use crate::sys::monotonic_ns;
use crate::systems::image::VmImage;
pub use crate::systems::image::VmSettings;
use crate::systems::plan::{CopyPlan, HeldCore};
use crate::{Attempt, Guest, Taken};
use client::{bytes_of, protocol};
use connection::Connection;
use freeze::Freezer;
use stub::{Hold, Stub};
use switch::{Found, Switch};

/// The registers of a core as they were sent, and whether it is halted.
type Digits = (Vec<u8>, bool);

/// A VM that is attached to.
pub struct QemuVm {
    pid: u32,
    stub: Stub,
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
    /// Samples of a VM that did not run.
    paused_samples: u64,
    /// What could not be put back when it was detached from.
    left_behind: Option<String>,
    detached: bool,
    /// The pause of the attach.
    frozen_ns: u64,
    warnings: Vec<String>,
}

/// How often a sample is repeated because the owner has continued the VM between two of its requests.
const REPEATS_MAX: u32 = 3;
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
    stub: &'a mut Stub,
    memory: Option<&'a Ram>,
    translator: Translator,
    thread: &'a str,
    is_halted: bool,
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
                let rest = address.wrapping_add(done as u64);
                Ok(done + self.stub.read_memory(self.thread, rest, &mut into[done..])?)
            }
            None => self.stub.read_memory(self.thread, address, into),
        }
    }
}

impl HeldCore for Core<'_> {
    fn is_halted(&mut self) -> Result<bool, GuestError> {
        Ok(self.is_halted)
    }

    fn is_exact(&self) -> bool {
        self.is_exact
    }

    fn read_physical(&mut self, address: u64, into: &mut [u8]) -> bool {
        self.memory.is_some_and(|memory| memory.read(address, into))
    }
}

impl QemuVm {
    /// Attaches. The VM is stopped for some milliseconds; when this returns it runs, if its owner has not stopped it.
    ///
    /// Do not wait for a QEMU that is a child of this process until it is detached from: the kernel would report stops of its main thread, which is
    /// traced, to any thread that waits.
    pub fn attach(vm: &Vm, settings: VmSettings) -> Result<KnownVm<QemuVm>, GuestError> {
        let vcpus = settings.vcpus.clone();
        let memories = settings.memories(vm.pid, &OpenedFiles::default());
        let image = VmImage::load(GuestKind::Vm { vmm: vm.pid }, &vm.name, settings)?;
        KnownVm::of(QemuVm::connect(vm, &vcpus)?, image, &memories)
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
        let start_ns = monotonic_ns();
        let mut stub = Stub::new(Connection::open(&address, switch.as_ref())?);
        // From here on the VM is stopped, even if we are killed. A `stop` of the owner until it is continued is lost, so it is soon.
        let vcpu_threads = stub.vcpu_threads()?;
        let threads = stub.vcpus()?;
        stub.go()?;
        let is_exact = vm.accel == "kvm";
        if let Err(error) = prepare_to_freeze(&mut stub, vm.pid, &vcpu_threads) {
            warnings.push(without_freezer(is_exact, &error));
        }
        let layout = description::read_layout(&mut stub)?;
        let wanted = choose_vcpus(vcpus, threads.len())?;
        let mut attached = QemuVm {
            pid: vm.pid,
            stub,
            switch,
            layout,
            memory: None,
            threads,
            wanted,
            is_exact,
            plan: CopyPlan::default(),
            first_state: None,
            paused_samples: 0,
            left_behind: None,
            detached: false,
            frozen_ns: 0,
            warnings,
        };
        attached.choose_memory()?;
        let hold = attached.read_first_state()?;
        match hold {
            Hold::Paused => {
                attached.warnings.push("the VM is paused, and stays so until its owner starts it".to_owned())
            }
            _ => attached.frozen_ns = monotonic_ns() - start_ns,
        }
        Ok(attached)
    }

    /// The registers of the first core, kept for the first who wants them, and how the VM was.
    fn read_first_state(&mut self) -> Result<Hold, GuestError> {
        let (hold, cores) = self.hold(&[self.wanted[0]])?;
        self.stub.go()?;
        self.first_state =
            Some(cores.first().map(|(state, _)| *state).ok_or_else(|| protocol("ended the connection"))?);
        Ok(hold)
    }

    /// Holds the VM, until [`Stub::go`]; the states of these cores, and whether each is halted. None if it has ended.
    fn hold(&mut self, indices: &[usize]) -> Result<(Hold, Vec<(CoreState, bool)>), GuestError> {
        let (hold, cores) = self.hold_digits(indices)?;
        let state = |digits: &[u8]| self.layout.registers(digits).ok_or_else(|| protocol("sent too few registers"));
        let cores = cores.iter().map(|(digits, is_halted)| Ok((state(digits)?, *is_halted)));
        Ok((hold, cores.collect::<Result<_, GuestError>>()?))
    }

    /// The same with the registers as they were sent.
    fn hold_digits(&mut self, indices: &[usize]) -> Result<(Hold, Vec<Digits>), GuestError> {
        let mut commands = Vec::with_capacity(3 * indices.len());
        for index in indices {
            let thread = &self.threads[*index];
            commands.extend([format!("Hg{thread}"), "g".to_owned(), format!("qThreadExtraInfo,{thread}")]);
        }
        let (hold, answers) = self.stub.hold(&commands)?;
        if hold == Hold::Ended {
            return Ok((hold, Vec::new()));
        }
        let mut cores = Vec::with_capacity(indices.len());
        for answer in answers.chunks(3) {
            let [selected, registers, info] = answer else { break };
            if selected != b"OK" {
                return Err(protocol("does not accept a vCPU that it listed"));
            }
            cores.push((registers.clone(), is_halted(info)));
        }
        if cores.len() < indices.len() {
            return Err(protocol("did not answer for each vCPU"));
        }
        Ok((hold, cores))
    }

    /// The way to the memory of a core of the held VM.
    fn core(&mut self, index: usize, state: &CoreState, is_halted: bool) -> (Core<'_>, &CopyPlan) {
        let (translator, thread) = (Translator::new(state.paging), self.threads[index].as_str());
        let (memory, is_exact) = (self.memory.as_ref(), self.is_exact);
        (Core { stub: &mut self.stub, memory, translator, thread, is_halted, is_exact }, &self.plan)
    }

    /// Finds out which memory of QEMU is the RAM: that which holds what QEMU reads there. Of several, the nodes of a
    /// NUMA machine say, nothing else shows it. Memory that is no file is read with the rights of a debugger.
    fn choose_memory(&mut self) -> Result<(), GuestError> {
        let mut blocks = match Ram::candidates(self.pid) {
            Ok(candidates) => candidates,
            Err(error) => {
                self.warnings.push(format!("the VM's RAM cannot be mapped ({error}), so it is read through the gdbstub, which makes pauses some times longer"));
                return Ok(());
            }
        };
        if !self.stub.can_freeze() || blocks.iter().any(Ram::is_file) {
            blocks.retain(Ram::is_file);
        }
        if blocks.is_empty() {
            self.warnings.push("the VM's RAM is no memfd, so it is read through the gdbstub, which makes pauses some times longer: start QEMU with `-object memory-backend-memfd,share=on`".to_owned());
            return Ok(());
        }
        let mut seen = vec![Comparison::default(); blocks.len()];
        for index in 0..self.threads.len() {
            let (_, cores) = self.hold(&[index])?;
            let Some((state, _)) = cores.first() else { break };
            let (core, _) = self.core(index, state, false);
            for address in [state.registers.rsp, state.registers.rip] {
                let mut expected = [0; BYTES_COMPARED];
                let bytes = core.stub.read_memory(core.thread, address, &mut expected)?;
                for (block, seen) in blocks.iter().zip(&mut seen) {
                    let mut found = [0; BYTES_COMPARED];
                    let read = Translator::new(state.paging).read(block, address, &mut found[..bytes]);
                    seen.compare(&expected[..read], &found[..read]);
                }
            }
            self.stub.go()?;
            if seen.iter().any(|seen| seen.same > 0) {
                break;
            }
        }
        let best = (0..blocks.len()).filter(|index| !seen[*index].differs).max_by_key(|index| seen[*index].same);
        let is_only = |index: usize| blocks.len() == 1 && blocks[index].is_file();
        match best.filter(|best| seen[*best].same > 0 || is_only(*best)) {
            Some(best) => self.memory = Some(blocks.swap_remove(best)),
            None => self.warnings.push("which memory of QEMU is the VM's RAM is not clear yet, so it is read through the gdbstub, which makes pauses some times longer: record again once the guest runs".to_owned()),
        }
        Ok(())
    }

    /// One sample of each wanted core, and how the VM was.
    fn read_cores(&mut self) -> Result<(Hold, Vec<RawSample>), GuestError> {
        let wanted = std::mem::take(&mut self.wanted);
        let held = self.hold(&wanted);
        self.wanted = wanted;
        let (hold, cores) = held?;
        let mut samples = Vec::with_capacity(cores.len());
        for (place, (state, is_halted)) in cores.into_iter().enumerate() {
            let index = self.wanted[place];
            let (mut core, plan) = self.core(index, &state, is_halted);
            samples.push(plan.sample(index, state, &mut core, plan.room())?);
        }
        Ok((hold, samples))
    }

    /// Leaves the gdbstub as it was found.
    fn switch_off(&mut self) -> Result<(), GuestError> {
        match self.switch.take().map(|switch| switch.off()) {
            // A QEMU that is gone has nothing left that could be on.
            Some(Err(error)) if Path::new(&format!("/proc/{}", self.pid)).exists() => Err(error),
            _ => Ok(()),
        }
    }
}

/// Lets the vCPUs be kept from running while the VM is held. An emulated VM is then sampled at the moment of the request, too.
fn prepare_to_freeze(stub: &mut Stub, pid: u32, threads: &[u32]) -> io::Result<()> {
    if threads.is_empty() {
        return Err(io::Error::other("QEMU does not name them"));
    }
    stub.freeze_with(pid, Freezer::new(pid, threads)?)
}

fn without_freezer(is_exact: bool, error: &io::Error) -> String {
    let late = if is_exact { "" } else { ", and too many samples show the guest waiting for its devices" };
    format!(
        "the threads of QEMU cannot be stopped ({error}), so a `stop` of the VM's owner is lost if it arrives during a sample{late}: run glass with CAP_SYS_PTRACE (as root, say)"
    )
}

/// Whether QEMU reports a vCPU as halted, in its text for humans ("CPU#0 [halted ]"), which has been stable for a decade.
fn is_halted(info: &[u8]) -> bool {
    let text: Vec<u8> = bytes_of(info).collect();
    text.windows(6).any(|window| window == b"halted")
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

    fn sample(&mut self, _all: usize) -> Result<Attempt, GuestError> {
        let mut start_ns = monotonic_ns();
        let (mut hold, mut samples) = self.read_cores()?;
        for _ in 0..REPEATS_MAX {
            if !self.stub.is_torn() {
                break;
            }
            self.stub.go()?;
            start_ns = monotonic_ns();
            (hold, samples) = self.read_cores()?;
        }
        if hold == Hold::Ended {
            self.detach()?;
            return Ok(Attempt::Ended);
        }
        self.stub.go()?;
        let is_paused = hold == Hold::Paused;
        self.paused_samples += u64::from(is_paused);
        // From before the request to stop until after the request to resume: the guest is stopped for
        // a part of this time, never for more. One that is paused loses nothing, and does not run.
        let frozen_ns = if is_paused { 0 } else { monotonic_ns() - start_ns };
        for sample in &mut samples {
            sample.time_ns = start_ns;
            sample.frozen_ns = frozen_ns;
            if is_paused && sample.state != State::NeverStarted {
                sample.state = State::Paused;
            }
        }
        Ok(Attempt::of(samples))
    }

    fn rest(&mut self, until_ns: u64) -> Result<Option<(usize, Taken)>, GuestError> {
        self.stub.line().rest(until_ns).map(|()| None)
    }

    fn remark(&self) -> Option<String> {
        let displaced = self.stub.displaced();
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

    fn left_behind(&self) -> Option<String> {
        self.left_behind.clone()
    }

    fn tracks(&self) -> u64 {
        self.wanted.len() as u64
    }

    fn detach(&mut self) -> Result<(), GuestError> {
        if !self.detached {
            // If this fails, the watchdog does what is left to do.
            self.stub.line().let_threads_go();
            self.stub.detach()?;
            self.left_behind = self.switch_off().err().map(|error| {
                format!("the gdbstub of QEMU {} stays on, for the next recording to use: {error}", self.pid)
            });
            self.stub.line().dismiss_watchdog();
            self.detached = true;
        }
        Ok(())
    }
}
