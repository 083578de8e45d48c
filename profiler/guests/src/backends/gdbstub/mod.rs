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
mod attach;
mod beside;
mod client;
mod connection;
mod description;
mod emulated;
mod freeze;
mod holding;
#[cfg(test)]
mod model;
mod stub;
mod switch;
mod turn;
mod whole;

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
use crate::memory::AddressSpace;
use crate::memory::Physical;
use crate::memory::Ram;
use crate::sys::monotonic_ns;
use crate::systems::image::VmImage;
pub use crate::systems::image::VmSettings;
use crate::systems::plan::{CopyPlan, HeldCore};
use crate::{Attempt, Guest, Taken};
use client::{bytes_of, protocol};
use stub::{Hold, Stub};
use switch::Switch;

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

/// A core that the gdbstub holds.
struct Core<'a> {
    stub: &'a mut Stub,
    memory: Option<&'a Ram>,
    translator: Translator,
    thread: &'a str,
    is_halted: bool,
    is_exact: bool,
    /// An instruction of the block that was executed before the one where it is.
    block: Option<u64>,
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

    fn block_before(&self) -> Option<u64> {
        self.block
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

    /// Holds the VM, until [`Stub::go`]; the states of these cores, and whether each is halted. None if it has ended.
    fn hold(&mut self, indices: &[usize]) -> Result<(Hold, Vec<(CoreState, bool)>), GuestError> {
        let (hold, cores) = self.hold_digits(indices)?;
        let state = |digits: &[u8]| self.layout.registers(digits).ok_or_else(|| protocol("sent too few registers"));
        let cores = cores.iter().map(|(digits, is_halted)| Ok((state(digits)?, *is_halted)));
        Ok((hold, cores.collect::<Result<_, GuestError>>()?))
    }

    /// The same with the registers as they were sent.
    fn hold_digits(&mut self, indices: &[usize]) -> Result<(Hold, Vec<Digits>), GuestError> {
        let threads: Vec<&str> = indices.iter().map(|index| self.threads[*index].as_str()).collect();
        read_digits(&mut self.stub, &threads)
    }

    /// The way to the memory of a core of the held VM.
    fn core(&mut self, index: usize, state: &CoreState, is_halted: bool) -> (Core<'_>, &CopyPlan) {
        let (translator, thread) = (Translator::new(state.paging), self.threads[index].as_str());
        let (memory, is_exact) = (self.memory.as_ref(), self.is_exact);
        let block = if is_exact { None } else { self.stub.line().block_before(&state.registers) };
        (Core { stub: &mut self.stub, memory, translator, thread, is_halted, is_exact, block }, &self.plan)
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

/// Holds a VM, until [`Stub::go`]; the registers of these vCPUs. None if it has ended.
fn read_digits(stub: &mut Stub, threads: &[&str]) -> Result<(Hold, Vec<Digits>), GuestError> {
    let mut commands = Vec::with_capacity(3 * threads.len());
    for thread in threads {
        commands.extend([format!("Hg{thread}"), "g".to_owned(), format!("qThreadExtraInfo,{thread}")]);
    }
    let (hold, answers) = stub.hold(&commands)?;
    if hold == Hold::Ended {
        return Ok((hold, Vec::new()));
    }
    let mut cores = Vec::with_capacity(threads.len());
    for answer in answers.chunks(3) {
        let [selected, registers, info] = answer else { break };
        if selected != b"OK" {
            return Err(protocol("does not accept a vCPU that it listed"));
        }
        cores.push((registers.clone(), is_halted(info)));
    }
    if cores.len() < threads.len() {
        return Err(protocol("did not answer for each vCPU"));
    }
    Ok((hold, cores))
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
