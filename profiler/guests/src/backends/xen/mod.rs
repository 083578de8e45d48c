//! A domain of Xen, sampled from dom0: paused for each sample, its registers taken by the same hypercall, its
//! memory through mappings that stay.
//!
//! A domain whose vCPUs all wait for events is not paused: what they wait in does not change while Xen's account
//! of their running time does not.
//!
//! What happens to the domain if we die, at whatever moment (SIGKILL is meant): Xen does not end the pause of a dead
//! caller, so a process of our own (`Guardian`) does. It sees what is due in memory into which Xen itself writes the
//! results of hypercalls, so no moment is left at which it would do too little or too much. What is left is the time
//! until it runs, and a death of both: a SIGKILL to a whole control group, or dom0 without memory. Stopped (SIGSTOP) within a sample, we hold
//! the domain until we are continued.
//!
//! Xen counts pauses, so a domain that others have paused, before or meanwhile, stays so.
//!
//! Between the pause and its end as little is done as can be (`known.rs`).

mod attach;
mod known;
mod memory;

use std::ops::Range;
use std::time::Duration;

use glass_profiler_core::arch::paging::Translator;
use glass_profiler_core::event::{Event, RawSample};
use glass_profiler_core::model::State;

use crate::arch::CoreState;
use crate::arch::x86_64::xen;
use crate::error::GuestError;
use crate::find::domains::layout::{DomainInfo, VcpuInfo};
use crate::memory::AddressSpace;
use crate::sys::monotonic_ns;
use crate::sys::xen::{Call, Guardian, Hypercalls};
use crate::systems::plan::{CORE_STATE_READ, CopyPlan, HeldCore, Room};
use crate::{Attempt, Guest, Taken};
use known::KnownPages;
use memory::Frames;

/// Samples per second if no other rate is wanted: as for a VM by KVM, whose pauses are about as long.
pub const DEFAULT_RATE_HZ: u32 = 199;

/// A domain that is attached to.
pub struct XenDomain {
    guardian: Guardian,
    calls: Hypercalls,
    frames: Frames,
    plan: CopyPlan,
    name: String,
    id: u16,
    is_hvm: bool,
    vcpus: Vec<Vcpu>,
    /// Samples of a domain that others had paused.
    paused_samples: u64,
    /// How long it was paused to be attached to.
    frozen_ns: u64,
    warnings: Vec<String>,
}

/// A vCPU that is sampled.
struct Vcpu {
    /// Its number, which names its track too.
    index: u32,
    /// Xen's last information about it.
    info: VcpuInfo,
    /// Its last sample, if it waited: good as long as it does not run.
    waiting: Option<Waiting>,
    /// Where what its samples need can be read.
    known_pages: KnownPages,
}

/// What a pause has given.
enum Held {
    Samples(Vec<RawSample>),
    /// What was copied from known places is not what a sample needs.
    Useless,
    /// The domain has ended.
    Gone,
}

struct Waiting {
    /// Its running time until then.
    cpu_ns: u64,
    sample: RawSample,
}

impl Vcpu {
    fn new(index: u32, stack_bytes: usize) -> Vcpu {
        Vcpu { index, info: VcpuInfo::default(), waiting: None, known_pages: KnownPages::new(stack_bytes) }
    }

    /// Its state is what Xen reports, if it sleeps.
    fn settled(&self, sample: RawSample) -> RawSample {
        match self.info.is_blocked && sample.state != State::NeverStarted {
            true => RawSample { state: State::Idle, ..sample },
            false => sample,
        }
    }

    /// The sample of a vCPU that still waits where it did.
    fn known(&self) -> Option<&RawSample> {
        let waiting = self.waiting.as_ref().filter(|waiting| waiting.cpu_ns == self.info.cpu_ns);
        waiting.filter(|_| self.info.is_blocked).map(|waiting| &waiting.sample)
    }

    /// Whether its registers have to be read for a sample.
    fn is_unknown(&self) -> bool {
        self.info.is_online && self.known().is_none()
    }
}

/// A paused vCPU.
struct Core<'a> {
    frames: &'a Frames,
    translator: Translator,
    is_blocked: bool,
}

impl AddressSpace for Core<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<usize, GuestError> {
        Ok(self.translator.read(self.frames, address, into))
    }
}

impl HeldCore for Core<'_> {
    fn is_halted(&mut self) -> Result<bool, GuestError> {
        Ok(self.is_blocked)
    }
}

fn failed(action: &str, error: std::io::Error) -> GuestError {
    GuestError::System { action: action.to_owned(), error }
}

fn is_gone(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(libc::ESRCH)
}

/// The call that copies the registers of a vCPU to a place: the shorter record, where there is one.
fn context_call(is_hvm: bool, vcpu: u32, place: usize) -> Call {
    if is_hvm { Call::HvmContext { vcpu, place } } else { Call::Context { vcpu, place } }
}

impl XenDomain {
    /// Reads Xen's information about the domain and each vCPU; `None` if the domain has ended.
    fn look(&mut self) -> Result<Option<DomainInfo>, GuestError> {
        let mut domain = None;
        for vcpus in self.vcpus.chunks_mut(Hypercalls::CALLS_MAX - 1) {
            let mut calls = [Call::DomainInfo; Hypercalls::CALLS_MAX];
            for (call, vcpu) in calls[1..].iter_mut().zip(&*vcpus) {
                *call = Call::VcpuInfo { vcpu: vcpu.index };
            }
            let calls = &calls[..1 + vcpus.len()];
            self.calls.make(calls).map_err(|error| failed("look at the domain", error))?;
            match self.calls.result(0) {
                Err(error) if is_gone(&error) => return Ok(None),
                result => result.map_err(|error| failed("look at the domain", error))?,
            }
            let info = DomainInfo::parse(&self.calls.answer(0));
            if info.id != self.id || info.has_ended {
                return Ok(None);
            }
            domain = Some(info);
            for (index, vcpu) in vcpus.iter_mut().enumerate() {
                self.calls.result(1 + index).map_err(|error| failed("look at a vCPU", error))?;
                vcpu.info = VcpuInfo::parse(&self.calls.answer(1 + index));
            }
        }
        Ok(domain)
    }

    /// The registers of a vCPU, after a call that has copied them to a place; `None` if it was never started.
    fn registers(&self, call: usize, place: usize) -> Result<Option<CoreState>, GuestError> {
        match self.calls.result(call).map_err(|error| (error.raw_os_error(), error)) {
            Ok(()) => {}
            Err((Some(libc::ENOENT | libc::ENODATA), _)) => return Ok(None),
            Err((_, error)) => return Err(failed("read the registers of a vCPU", error)),
        }
        let word = |offset| self.calls.context_word(place, offset);
        Ok(Some(if self.is_hvm { xen::parse_hvm_context(word) } else { xen::parse_context(word) }))
    }

    /// Memory for the stacks of so many vCPUs, to be allocated while the domain runs.
    fn rooms(&self, count: usize) -> Vec<Room> {
        (0..count).map(|_| self.plan.room()).collect()
    }

    /// The calls that copy the registers of the vCPUs at these positions, to places in the same order, and their number.
    fn context_calls(&self, positions: &[usize]) -> ([Call; Hypercalls::CONTEXTS_MAX], usize) {
        let mut calls = [Call::DomainInfo; Hypercalls::CONTEXTS_MAX];
        for (place, (call, position)) in calls.iter_mut().zip(positions).enumerate() {
            *call = context_call(self.is_hvm, self.vcpus[*position].index, place);
        }
        (calls, positions.len().min(Hypercalls::CONTEXTS_MAX))
    }

    /// Copies a sample of each of the vCPUs at these positions. `are_made`: the first calls for registers were made with the pause.
    fn copy(
        &mut self,
        positions: &[usize],
        rooms: &mut Vec<Room>,
        are_made: bool,
    ) -> Result<Vec<RawSample>, GuestError> {
        let mut samples = Vec::with_capacity(positions.len());
        let mut are_made = are_made;
        for chunk in positions.chunks(Hypercalls::CONTEXTS_MAX) {
            if !std::mem::take(&mut are_made) {
                let (calls, count) = self.context_calls(chunk);
                self.calls.make(&calls[..count]).map_err(|error| failed("read registers", error))?;
            }
            for (place, position) in chunk.iter().enumerate() {
                let vcpu = &self.vcpus[*position];
                let Some(state) = self.registers(place, place)? else {
                    samples.push(never_started(vcpu.index));
                    continue;
                };
                let room = rooms.pop().unwrap_or_default();
                let translator = Translator::new(state.paging);
                let mut core = Core { frames: &self.frames, translator, is_blocked: vcpu.info.is_blocked };
                samples.push(vcpu.settled(self.plan.sample(vcpu.index as usize, state, &mut core, room)?));
            }
        }
        Ok(samples)
    }

    /// Copies what samples of the vCPUs at these positions need from known places; false if a place is not known.
    fn copy_known(&mut self, positions: &[usize], code: &Range<u64>) -> bool {
        let maps = &self.frames.maps()[..];
        positions.iter().enumerate().all(|(place, position)| {
            let Vcpu { index, known_pages, .. } = &mut self.vcpus[*position];
            let word = |offset| self.calls.context_word(place, offset);
            let core = self.plan.core_state(*index as usize);
            let (stack, frame) = match self.is_hvm {
                true => {
                    let (stack, frame, is_in_ring_0) = xen::stack_of_hvm_context(word);
                    // A service of ours has a stack of its own, and its caller another.
                    if is_in_ring_0 && core.is_some() {
                        return false;
                    }
                    (stack, frame)
                }
                false => xen::stack_of_context(word),
            };
            self.calls.result(place).is_ok() && known_pages.copy(maps, (stack, frame), code, core)
        })
    }

    /// The samples of what [`copy_known`](XenDomain::copy_known) has copied; `None` if a page was elsewhere, or more is needed.
    fn finish_known(
        &mut self,
        positions: &[usize],
        rooms: &mut Vec<Room>,
    ) -> Result<Option<Vec<RawSample>>, GuestError> {
        let mut samples = Vec::with_capacity(positions.len());
        for (place, position) in positions.iter().enumerate() {
            let state = self.registers(place, place)?;
            let vcpu = &mut self.vcpus[*position];
            let Some(state) = state else { return Ok(None) };
            let mut translator = Translator::new(state.paging);
            if !vcpu.known_pages.were_right(&mut translator, &self.frames) {
                vcpu.known_pages.forget();
                return Ok(None);
            }
            let room = rooms.pop().unwrap_or_default();
            let mut core = vcpu.known_pages.copied(vcpu.info.is_blocked);
            let sample = self.plan.sample(vcpu.index as usize, state, &mut core, room)?;
            if core.was_insufficient() {
                vcpu.known_pages.forget();
                return Ok(None);
            }
            samples.push(vcpu.settled(sample));
        }
        Ok(Some(samples))
    }

    /// Learns where what these samples of the vCPUs at these positions needed can be read.
    fn learn(&mut self, positions: &[usize], samples: &[RawSample]) -> Result<(), GuestError> {
        if positions.len() > Hypercalls::CONTEXTS_MAX || self.plan.code_of_simple_guest().is_none() {
            return Ok(());
        }
        for (place, (position, sample)) in positions.iter().zip(samples).enumerate() {
            let Some(state) = self.registers(place, place)? else { continue };
            let Vcpu { index, known_pages, .. } = &mut self.vcpus[*position];
            let mut translator = Translator::new(state.paging);
            let core = self.plan.core_state(*index as usize);
            let stacks = sample.segments.iter().flat_map(|segment| &segment.stack);
            let ranges = stacks.map(|(start, bytes)| *start..start.saturating_add(bytes.len() as u64));
            let core = core.map(|address| address..address.saturating_add(CORE_STATE_READ as u64));
            ranges.chain(core).for_each(|range| known_pages.learn(range, &mut translator, &self.frames));
        }
        Ok(())
    }

    /// Samples of a domain in which nothing runs, without holding it; `None` if something has begun to.
    fn sample_waiting(&mut self) -> Result<Option<Vec<RawSample>>, GuestError> {
        let unknown: Vec<usize> = (0..self.vcpus.len()).filter(|at| self.vcpus[*at].is_unknown()).collect();
        if !unknown.is_empty() {
            let before: Vec<VcpuInfo> = unknown.iter().map(|at| self.vcpus[*at].info).collect();
            let mut rooms = self.rooms(unknown.len());
            let samples = self.copy(&unknown, &mut rooms, false)?;
            if self.look()?.is_none() {
                return Ok(None);
            }
            for ((at, before), sample) in unknown.into_iter().zip(before).zip(samples) {
                let vcpu = &mut self.vcpus[at];
                if vcpu.info != before {
                    return Ok(None);
                }
                vcpu.waiting = Some(Waiting { cpu_ns: before.cpu_ns, sample });
            }
        }
        let known =
            |vcpu: &Vcpu| if vcpu.info.is_online { vcpu.known().cloned() } else { Some(never_started(vcpu.index)) };
        Ok(self.vcpus.iter().map(known).collect())
    }

    /// Holds the domain to copy samples of the vCPUs at these positions, from known places if that is wanted and they are. Returns how
    /// long it stood, too.
    fn hold_for(&mut self, positions: &[usize], from_known: bool) -> Result<(Held, u64), GuestError> {
        let mut rooms = self.rooms(positions.len());
        let code =
            self.plan.code_of_simple_guest().filter(|_| from_known && positions.len() <= Hypercalls::CONTEXTS_MAX);
        for position in positions {
            self.vcpus[*position].known_pages.renew(&self.frames);
        }
        let (calls, count) = self.context_calls(positions);
        self.calls.prepare_pause(&calls[..count]);
        let start_ns = monotonic_ns();
        let copied = match self.calls.make_prepared(count) {
            Err(error) => Err(failed("hold the domain", error)),
            Ok(()) if code.is_some_and(|code| self.copy_known(positions, &code)) => Ok(None),
            Ok(()) => self.copy(positions, &mut rooms, true).map(Some),
        };
        // Whatever the result is, the domain is resumed.
        let resumed = self.calls.resume();
        let time_ns = monotonic_ns() - start_ns;
        let samples = match (copied, resumed) {
            (Err(GuestError::System { error, .. }), _) | (Ok(_), Err(error)) if is_gone(&error) => {
                return Ok((Held::Gone, time_ns));
            }
            (Ok(_), Err(error)) => return Err(failed("resume the domain", error)),
            (copied, _) => copied?,
        };
        let samples = match samples {
            Some(samples) => {
                self.learn(positions, &samples)?;
                Some(samples)
            }
            None => self.finish_known(positions, &mut rooms)?,
        };
        Ok((samples.map_or(Held::Useless, Held::Samples), time_ns))
    }

    /// Samples of a domain that is held for them; `None` if it has ended.
    fn sample_held(&mut self, is_paused: bool) -> Result<Option<Vec<RawSample>>, GuestError> {
        let unknown: Vec<usize> = (0..self.vcpus.len()).filter(|at| self.vcpus[*at].is_unknown()).collect();
        let (mut held, mut frozen_ns) = self.hold_for(&unknown, true)?;
        if let Held::Useless = held {
            let (again, time_ns) = self.hold_for(&unknown, false)?;
            (held, frozen_ns) = (again, frozen_ns + time_ns);
        }
        let Held::Samples(copied) = held else { return Ok(None) };
        // One that others have paused loses nothing.
        let frozen_ns = if is_paused { 0 } else { frozen_ns };
        let mut copied = unknown.iter().copied().zip(copied).peekable();
        let mut samples = Vec::with_capacity(self.vcpus.len());
        for (at, vcpu) in self.vcpus.iter().enumerate() {
            let sample = match copied.next_if(|(position, _)| *position == at) {
                Some((_, sample)) => sample,
                None => vcpu.known().cloned().unwrap_or_else(|| never_started(vcpu.index)),
            };
            samples.push(RawSample { frozen_ns, ..sample });
        }
        Ok(Some(samples))
    }

    /// What uniprof does for a trace, without its reading of the stack: a pause, the registers and the end of the pause, each
    /// by a hypercall of its own. Returns how long that took; for measurements.
    #[doc(hidden)]
    pub fn uniprof_sequence(&mut self) -> Result<Duration, GuestError> {
        let context = Call::Context { vcpu: self.vcpus[0].index, place: 0 };
        let start_ns = monotonic_ns();
        for call in [Call::Pause, context, Call::Unpause] {
            self.calls.make_one(call).map_err(|error| failed("make a hypercall", error))?;
        }
        Ok(Duration::from_nanos(monotonic_ns() - start_ns))
    }

    /// Holds the domain, and leaves it so until the next sample or our end; for tests of what happens then.
    #[doc(hidden)]
    pub fn hold(&mut self) -> Result<(), GuestError> {
        self.calls.pause_and_make(&[]).map_err(|error| failed("hold the domain", error))
    }

    /// How long a hypercall takes that does nothing; for measurements.
    #[doc(hidden)]
    pub fn null_hypercall(&mut self) -> Result<Duration, GuestError> {
        let start_ns = monotonic_ns();
        self.calls.xen_version().map_err(|error| failed("make a hypercall", error))?;
        Ok(Duration::from_nanos(monotonic_ns() - start_ns))
    }
}

fn never_started(track: u32) -> RawSample {
    RawSample { track, state: State::NeverStarted, ..Default::default() }
}

impl Guest for XenDomain {
    fn announce(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        self.warnings.drain(..).for_each(|text| sink(Event::Warning(text)));
        let frozen_ns = std::mem::take(&mut self.frozen_ns);
        if frozen_ns > 0 {
            sink(Event::Frozen { tracks_ns: self.vcpus.iter().map(|vcpu| (vcpu.index, frozen_ns)).collect() });
        }
        Ok(())
    }

    fn sample(&mut self, _all: usize) -> Result<Attempt, GuestError> {
        let time_ns = monotonic_ns();
        let Some(info) = self.look()? else { return Ok(Attempt::Ended) };
        let waits = |vcpu: &Vcpu| vcpu.info.is_blocked || !vcpu.info.is_online;
        let waiting = if !info.is_paused && self.vcpus.iter().all(waits) { self.sample_waiting()? } else { None };
        let Some(mut samples) = (match waiting {
            Some(samples) => Some(samples),
            None => self.sample_held(info.is_paused)?,
        }) else {
            return Ok(Attempt::Ended);
        };
        if info.is_paused {
            self.paused_samples += 1;
            let started = samples.iter_mut().filter(|sample| sample.state != State::NeverStarted);
            started.for_each(|sample| sample.state = State::Paused);
        }
        samples.iter_mut().for_each(|sample| sample.time_ns = time_ns);
        Ok(Attempt::of(samples))
    }

    fn rest(&mut self, until_ns: u64) -> Result<Option<(usize, Taken)>, GuestError> {
        self.guardian.look_after();
        self.frames.renew();
        std::thread::sleep(Duration::from_nanos(until_ns.saturating_sub(monotonic_ns())));
        Ok(None)
    }

    fn remark(&self) -> Option<String> {
        (self.paused_samples > 0).then(|| {
            format!(
                "the domain was paused by others at {} samples of each vCPU: they are shown as paused, where it stood",
                self.paused_samples
            )
        })
    }

    fn tracks(&self) -> u64 {
        self.vcpus.len() as u64
    }

    fn detach(&mut self) -> Result<(), GuestError> {
        self.frames.forget();
        let resumed = self.calls.resume();
        if resumed.is_ok() {
            self.guardian.dismiss();
        }
        match resumed {
            Err(error) if !is_gone(&error) => Err(failed("resume the domain", error)),
            _ => Ok(()),
        }
    }
}

impl Drop for XenDomain {
    fn drop(&mut self) {
        // If this fails, the guardian tries once more.
        let _ = self.calls.resume();
    }
}
