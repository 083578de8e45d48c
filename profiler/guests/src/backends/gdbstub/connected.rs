//! A VM that is connected to: held for each sample.

use glass_profiler_core::arch::paging::Translator;
use glass_profiler_core::event::RawSample;

use super::client::{bytes_of, protocol};
use super::stub::{Hold, Stub};
use crate::arch::CoreState;
use crate::arch::gdb::Layout;
use crate::error::GuestError;
use crate::memory::{AddressSpace, Physical, Ram};
use crate::sys::monotonic_ns;
use crate::systems::plan::{CopyPlan, HeldCore};

/// How often the VM is held once more because its owner has continued it between two requests of a hold.
const REPEATS_MAX: u32 = 3;

/// The registers of a core as they were sent, and whether it is halted.
type Digits = (Vec<u8>, bool);

/// A VM that is connected to.
pub(super) struct Connected {
    pub(super) stub: Stub,
    pub(super) layout: Layout,
    pub(super) memory: Option<Ram>,
    /// QEMU's name of each vCPU.
    pub(super) threads: Vec<String>,
    /// Which of them are read; all are stopped.
    pub(super) wanted: Vec<usize>,
    /// A KVM stops anywhere, an emulator only between two blocks.
    pub(super) is_exact: bool,
}

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

impl Connected {
    /// Holds the VM, until [`Stub::go`]; the states of these cores, and whether each is halted. None if it has ended.
    pub(super) fn hold(&mut self, indices: &[usize]) -> Result<(Hold, Vec<(CoreState, bool)>), GuestError> {
        let (hold, cores) = self.hold_digits(indices)?;
        Ok((hold, states(&self.layout, &cores)?))
    }

    /// The same with the registers as they were sent.
    pub(super) fn hold_digits(&mut self, indices: &[usize]) -> Result<(Hold, Vec<Digits>), GuestError> {
        let threads: Vec<&str> = indices.iter().map(|index| self.threads[*index].as_str()).collect();
        read_digits(&mut self.stub, &self.layout, &threads)
    }

    /// One sample of each wanted core of the VM while it is held, with these states.
    pub(super) fn samples(
        &mut self,
        states: &[(CoreState, bool)],
        plan: &CopyPlan,
    ) -> Result<Vec<RawSample>, GuestError> {
        let mut samples = Vec::with_capacity(states.len());
        for (index, (state, is_halted)) in self.wanted.iter().zip(states) {
            let (memory, is_exact) = (self.memory.as_ref(), self.is_exact);
            let block = if is_exact { None } else { self.stub.line().block_before(&state.registers) };
            let (translator, thread) = (Translator::new(state.paging), self.threads[*index].as_str());
            let stub = &mut self.stub;
            let mut core = Core { stub, memory, translator, thread, is_halted: *is_halted, is_exact, block };
            samples.push(plan.sample(*index, *state, &mut core, plan.room())?);
        }
        Ok(samples)
    }

    /// Holds the VM for `look`, once more if its owner has continued it meanwhile. Also returns when the last hold began; [`Stub::go`] ends it.
    pub(super) fn hold_whole<T>(
        &mut self,
        mut look: impl FnMut(&mut Connected) -> Result<T, GuestError>,
    ) -> Result<(u64, T), GuestError> {
        let (mut start_ns, mut seen) = (monotonic_ns(), look(self)?);
        for _ in 0..REPEATS_MAX {
            if !self.stub.is_torn() {
                break;
            }
            self.stub.go()?;
            (start_ns, seen) = (monotonic_ns(), look(self)?);
        }
        Ok((start_ns, seen))
    }
}

/// Holds a VM, until [`Stub::go`]; the registers of these vCPUs, as [`Layout::registers`] takes them. None if it has ended.
pub(super) fn read_digits(
    stub: &mut Stub,
    layout: &Layout,
    threads: &[&str],
) -> Result<(Hold, Vec<Digits>), GuestError> {
    let others = layout.others();
    let count = 3 + others.len();
    let mut commands = Vec::with_capacity(count * threads.len());
    for thread in threads {
        commands.extend([format!("Hg{thread}"), format!("qThreadExtraInfo,{thread}"), "g".to_owned()]);
        commands.extend(others.iter().map(|number| format!("p{number:x}")));
    }
    let (hold, answers) = stub.hold(&commands)?;
    if hold == Hold::Ended {
        return Ok((hold, Vec::new()));
    }
    let mut cores = Vec::with_capacity(threads.len());
    for answer in answers.chunks(count) {
        let [selected, info, registers @ ..] = answer else { break };
        if selected != b"OK" {
            return Err(protocol("does not accept a vCPU that it listed"));
        }
        cores.push((registers.concat(), is_halted(info)));
    }
    if cores.len() < threads.len() {
        return Err(protocol("did not answer for each vCPU"));
    }
    Ok((hold, cores))
}

/// The states in registers as they were sent.
pub(super) fn states(layout: &Layout, cores: &[Digits]) -> Result<Vec<(CoreState, bool)>, GuestError> {
    let state = |digits: &[u8]| layout.registers(digits).ok_or_else(|| protocol("sent too few registers"));
    cores.iter().map(|(digits, is_halted)| Ok((state(digits)?, *is_halted))).collect()
}

/// Whether QEMU reports a vCPU as halted, in its text for humans ("CPU#0 [halted ]"), which has been stable for a decade.
fn is_halted(info: &[u8]) -> bool {
    let text: Vec<u8> = bytes_of(info).collect();
    text.windows(6).any(|window| window == b"halted")
}
