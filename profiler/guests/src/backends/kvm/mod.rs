//! A VM under KVM, whichever program runs it: each vCPU's thread is stopped by ptrace, its registers
//! are read from the page that KVM shares with the VMM, its RAM from the file that backs it or out of
//! the VMM's memory. The VMM does not cooperate and is not affected.
//!
//! What happens to the guest if we die at any moment, also by SIGKILL:
//! - The kernel resumes all threads that we trace when our thread ends. None stays stopped, and a
//!   signal that one was about to receive is received.
//! - A thread that had not been put back in front of `KVM_RUN` sees the call return `EINTR` without a
//!   signal. That is a result that `KVM_RUN` may have at any time; VMMs enter the guest again (QEMU:
//!   `kvm_cpu_exec` runs its loop once). One that had been put back enters it by itself.
//! - `kvm_valid_regs` stays set: from then on KVM writes registers into the shared page when `KVM_RUN`
//!   returns, which is harmless. The next recording finds it set and leaves it so.
//!
//! The only visible effect on a VMM: a system call of a vCPU's thread other than `KVM_RUN` may fail
//! with `EINTR`, if it is one that does so after any stop (signal(7) lists them).

mod affinity;
mod attach;
mod halt;
mod page;
pub(crate) mod permission;
mod polling;
mod schedule;
mod threads;
mod vcpu;
pub(crate) mod vmm;
mod waiting;
mod whole;

use std::fs::File;
use std::time::Duration;

use glass_profiler_core::event::{Event, RawSample};
use glass_profiler_core::model::State;
use glass_profiler_core::remarks;

use crate::arch::CoreState;
use crate::backends::sleeper::{Sleeper, idle_sample};
use crate::backends::thread_stat::{ThreadStat, ran_ns, waited_ns};
use crate::error::GuestError;
use crate::find::vcpus;
use crate::memory::AddressSpace;
use crate::memory::Physical;
use crate::memory::{Ram, Translator};
use crate::sys::{ChildSignals, monotonic_ns, rest_for, set_quiet};
use crate::systems::plan::{self, CopyPlan, HeldCore, Room, TaskPlan};
use crate::{Attempt, Guest, Taken};
use affinity::Affinity;
use page::RunPage;
use rustix::thread::sched_getcpu;
use schedule::WasWaiting;
pub(crate) use vcpu::is_run;
use vcpu::{Call, Hold, Thread};
use vmm::VmmStacks;
use waiting::Waiting;

/// Limit of the wait for a vCPU: it may be stuck in the kernel, or wait for a CPU of a loaded host.
const STOP_TIMEOUT: Duration = Duration::from_millis(500);
/// The same for a detach.
const DETACH_TIMEOUT: Duration = Duration::from_secs(5);
/// How soon a vCPU that was requested to stop is looked at, in case that SIGCHLD was swallowed; later each time after half as long again as it has taken. One
/// that waits for a CPU for long costs few of our wake-ups.
const LOOK_NS_MIN: u64 = 1_000_000;

/// An attached VM.
pub struct KvmVm {
    // Threads that are dropped before the detach need the signals: declared after them.
    vcpus: Vec<Vcpu>,
    memory: Ram,
    /// What may be the RAM, until one is chosen.
    candidates: Vec<Ram>,
    plan: CopyPlan,
    signals: ChildSignals,
    affinity: Affinity,
    /// Also samples what the VMM does for a vCPU.
    vmm: Option<VmmStacks>,
    warnings: Vec<String>,
}

/// A sample that was begun: what is known of it before the vCPU stops.
struct Pending {
    start_ns: u64,
    /// For how long the thread has waited for a CPU until then, if that is known.
    waited_ns: Option<u64>,
    /// The thread sleeps.
    sleeps: bool,
    /// The CPU on which our thread runs.
    cpu: usize,
    /// Room for what it copies, allocated while the guest runs.
    room: Room,
}

/// A vCPU and its thread.
struct Vcpu {
    /// Its number, which is also that of its track.
    index: u32,
    /// The page with its registers, until it is restored, before the thread is resumed.
    page: Option<RunPage>,
    thread: Thread,
    /// `KVM_RUN` has returned since registers were requested.
    is_synced: bool,
    /// `/proc/PID/task/TID/stat`: its CPU, and for guests that do not report it, whether it sleeps.
    stat: Option<File>,
    /// `/proc/PID/task/TID/schedstat`: for how long it waited for a CPU.
    schedule: Option<File>,
    /// `/proc/PID/task/TID/syscall`: whether it is in `KVM_RUN`.
    call: Option<File>,
    /// What it is while it sleeps there, once that is known: idle, or never started.
    rests_as: Option<State>,
    /// How it sleeps there.
    sleeper: Sleeper,
    /// The registers at the last sample.
    last: Option<CoreState>,
    /// `thread` is known to run this vCPU; else it has only its name.
    is_certain: bool,
    /// The VMM's descriptor of this vCPU.
    descriptor: i32,
    /// The sample for which it was requested to stop, until it does.
    pending: Option<Pending>,
    /// The guest did not report the state of this vCPU, the last time.
    is_silent: bool,
    /// Where a guest that does not report it was when the thread slept in `KVM_RUN`, the last time.
    slept_at: Option<u64>,
    waiting: Waiting,
    /// The thread was outside of `KVM_RUN`, the last time.
    is_outside: bool,
    /// Samples for which its VM was paused.
    paused_samples: u64,
}

impl Vcpu {
    /// Exchanges what belongs to the threads.
    fn exchange_threads(&mut self, other: &mut Vcpu) {
        use std::mem::swap;
        swap(&mut self.thread, &mut other.thread);
        swap(&mut self.stat, &mut other.stat);
        swap(&mut self.schedule, &mut other.schedule);
        swap(&mut self.call, &mut other.call);
        swap(&mut self.waiting, &mut other.waiting);
        // Of the other thread's time.
        self.sleeper.wake();
        other.sleeper.wake();
    }

    /// The registers of a stopped vCPU, once they are known.
    fn registers(&mut self, call: Call) -> Option<CoreState> {
        self.is_synced |= call.interrupted;
        self.known_registers()
    }

    /// Those that KVM has written when the thread left `KVM_RUN` last.
    fn known_registers(&self) -> Option<CoreState> {
        self.page.as_ref().filter(|_| self.is_synced).map(RunPage::registers)
    }

    /// The state of a vCPU whose thread sleeps in `KVM_RUN`, without stopping it; `None` if it has to be stopped for that.
    fn at_rest(&self) -> Option<State> {
        let state = self.rests_as?;
        let is_asleep = self.stat.as_ref().and_then(ThreadStat::read)?.is_asleep;
        (is_asleep && self.call.as_ref().is_some_and(waiting::is_in_kvm_run)).then_some(state)
    }

    fn ran_ns(&self) -> Option<u64> {
        self.schedule.as_ref().and_then(ran_ns)
    }

    /// The sample of a vCPU that is [at rest](Vcpu::at_rest) in this state; `Attempt::Pending` if those that follow can be known later.
    fn rest(&mut self, state: State) -> Attempt {
        let now_ns = monotonic_ns();
        let may_wait = self.ran_ns().is_some_and(|ran_ns| self.sleeper.sleeps(state, now_ns, ran_ns));
        if may_wait { Attempt::Pending } else { Attempt::of(vec![idle_sample(self.index, state, now_ns)]) }
    }

    /// The samples of a vCPU that was not looked at while it slept, for some time or until the end.
    fn look_at_sleep(&mut self, is_end: bool) -> Option<Taken> {
        let now_ns = monotonic_ns();
        if !self.sleeper.is_due(now_ns, is_end) {
            return None;
        }
        // Without its time it has ended.
        let ran_ns = self.ran_ns();
        Some(self.sleeper.samples(now_ns, ran_ns, std::iter::once(self.index)))
    }

    /// The CPU on which its thread runs, or ran last.
    fn cpu(&self) -> Option<usize> {
        self.stat.as_ref().and_then(ThreadStat::read).map(|stat| stat.cpu)
    }

    /// Whether the registers are those of a guest that the guest runs.
    fn is_nested(&self) -> bool {
        self.page.as_ref().is_some_and(RunPage::is_nested)
    }

    /// Whether the thread has left `KVM_RUN` because the guest halts.
    fn has_exited_to_halt(&self) -> bool {
        self.is_synced && self.page.as_ref().is_some_and(RunPage::has_exited_to_halt)
    }

    /// The sample while its VM is paused; `there` is where it is, if that is known.
    fn paused(&mut self, there: Option<RawSample>) -> RawSample {
        let sample = there.unwrap_or_else(|| RawSample { track: self.index, ..Default::default() });
        if sample.state == State::NeverStarted {
            return sample;
        }
        self.paused_samples += 1;
        RawSample { state: State::Paused, ..sample }
    }
}

/// Whether a vCPU is halted whose guest does not report it.
#[derive(Debug, Clone, Copy, Default)]
struct Rest {
    /// It is, by what its thread does.
    is_halted: bool,
    /// It may be, if it is behind the code of a halt: its instruction pointer, and whether the thread has slept there before.
    at: Option<(u64, bool)>,
}

/// A stopped vCPU.
struct Core<'a> {
    memory: &'a Ram,
    translator: Translator,
    rest: Rest,
    /// Whether that was requested.
    was_asked: bool,
}

impl AddressSpace for Core<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<usize, GuestError> {
        Ok(self.translator.read(self.memory, address, into))
    }
}

impl HeldCore for Core<'_> {
    fn is_halted(&mut self) -> Result<bool, GuestError> {
        self.was_asked = true;
        let Some((address, has_slept_here)) = self.rest.at.filter(|_| !self.rest.is_halted) else {
            return Ok(self.rest.is_halted);
        };
        let mut code = [0; halt::CODE_BYTES];
        self.read(address.wrapping_sub(halt::BYTES_BEFORE), &mut code)?;
        Ok(halt::is_behind_halt(&code, has_slept_here))
    }

    fn read_physical(&mut self, address: u64, into: &mut [u8]) -> bool {
        self.memory.read(address, into)
    }
}

/// Whether a process runs a VM by KVM, as far as we may inspect it.
pub fn is_vmm(pid: u32) -> bool {
    vcpus::count(pid).is_ok_and(|count| count > 0)
}

impl KvmVm {
    /// Requests a vCPU to stop; `Attempt::Pending` if it does not at once.
    fn begin(&mut self, position: usize) -> Result<Attempt, GuestError> {
        if self.vcpus[position].is_outside
            && let Some(waited) = self.sample_waiting(position)?
        {
            return Ok(Attempt::of(waited.into_iter().collect()));
        }
        if self.plan.leaves_sleepers {
            let vcpu = &mut self.vcpus[position];
            match vcpu.at_rest() {
                Some(state) => return Ok(vcpu.rest(state)),
                None => vcpu.sleeper.wake(),
            }
        }
        self.warm(position);
        let vcpu = &mut self.vcpus[position];
        let room = self.plan.room();
        // A thread that sleeps in KVM_RUN waits for its guest to be woken, or started.
        let sleeps = vcpu.is_silent && vcpu.stat.as_ref().and_then(ThreadStat::read).is_some_and(|stat| stat.is_asleep);
        let waited_ns = vcpu.schedule.as_ref().and_then(waited_ns);
        let pending = Pending { start_ns: monotonic_ns(), waited_ns, sleeps, cpu: sched_getcpu(), room };
        match vcpu.thread.hold_at_once(&self.signals)? {
            Hold::Yes(call) => Ok(Attempt::Taken(self.finish(position, call, pending)?)),
            Hold::Ended => Ok(Attempt::Taken(Taken::default())),
            Hold::Late => {
                vcpu.pending = Some(pending);
                Ok(Attempt::Pending)
            }
        }
    }

    /// Copies what the last sample would now, for nothing: while the vCPU stands, what is copied is then in the caches of this CPU. It takes from the
    /// pause what it adds to our time.
    fn warm(&self, position: usize) {
        let vcpu = &self.vcpus[position];
        let Some(state) = vcpu.last.filter(|_| self.plan.tasks().is_some()) else { return };
        let rest = Rest { is_halted: false, at: None };
        let mut core = Core { memory: &self.memory, translator: Translator::new(state.paging), rest, was_asked: false };
        // The vCPU runs: whatever is found is no sample.
        let _ = std::hint::black_box(self.plan.sample(vcpu.index as usize, state, &mut core, self.plan.room()));
    }

    /// The sample of a vCPU that was requested to stop, if it has: without one if that took too long.
    fn look_at_pending(&mut self, position: usize) -> Result<Option<Taken>, GuestError> {
        let vcpu = &mut self.vcpus[position];
        let Some(pending) = vcpu.pending.take() else { return Ok(None) };
        match vcpu.thread.has_stopped(&self.signals)? {
            Hold::Yes(call) => Ok(Some(self.finish(position, call, pending)?)),
            Hold::Late if monotonic_ns() - pending.start_ns < STOP_TIMEOUT.as_nanos() as u64 => {
                vcpu.pending = Some(pending);
                Ok(None)
            }
            Hold::Late | Hold::Ended => Ok(Some(Taken::default())),
        }
    }

    /// The sample of a stopped vCPU, which resumes.
    fn finish(&mut self, position: usize, call: vcpu::Call, pending: Pending) -> Result<Taken, GuestError> {
        let Pending { start_ns, waited_ns, sleeps, cpu, room } = pending;
        if !self.check_thread(position, call)? {
            return Ok(Taken::default());
        }
        let vcpu = &mut self.vcpus[position];
        let stop_ns = monotonic_ns();
        let was_waiting = schedule::was_waiting(vcpu.schedule.as_ref(), waited_ns, start_ns..stop_ns);
        let mut was_stolen = was_waiting == WasWaiting::Yes;
        vcpu.is_outside = call.run_on.is_none();
        // Another process has stopped all of the VMM.
        let is_stopped = vcpu.thread.held().is_some_and(|(signal, _)| signal != libc::SIGTRAP);
        let state = vcpu.registers(call);
        vcpu.last = state;
        let sample = (|| {
            let Some(state) = state else { return Ok(is_stopped.then(|| vcpu.paused(None))) };
            let translator = Translator::new(state.paging);
            let rip = state.registers.ip();
            let is_asleep = sleeps && call.run_on.is_some();
            let rest = Rest {
                is_halted: is_asleep || (!call.interrupted && vcpu.has_exited_to_halt()),
                // Code without privileges cannot halt.
                at: (call.run_on.is_some() && state.is_privileged).then(|| (rip, vcpu.slept_at == Some(rip))),
            };
            let mut core = Core { memory: &self.memory, translator, rest, was_asked: false };
            let sample = match vcpu.is_nested() {
                true => plan::nested(vcpu.index, state),
                false => self.plan.sample(vcpu.index as usize, state, &mut core, room)?,
            };
            vcpu.is_silent = core.was_asked;
            if is_asleep {
                vcpu.slept_at = Some(rip);
            }
            let may_be_stolen = was_waiting == WasWaiting::IfRunnable && !vcpu.is_outside && is_executing(&sample);
            was_stolen |= may_be_stolen && vcpu.cpu().is_some_and(|own| own != cpu);
            let sample = match (self.vmm, vcpu.thread.held()) {
                (Some(vmm), Some((_, registers))) if vcpu.is_outside => vmm.above(sample, &registers),
                _ => sample,
            };
            Ok(Some(match (is_stopped, was_stolen) {
                (true, _) => vcpu.paused(Some(sample)),
                (false, true) => in_state(sample, State::Stolen),
                (false, false) if vcpu.is_outside => in_the_vmm(sample),
                (false, false) => sample,
            }))
        })();
        if was_stolen {
            vcpu.thread.stood_until(stop_ns);
        }
        // Whatever the result, it resumes.
        vcpu.thread.release()?;
        let frozen_ns = vcpu.thread.take_frozen_ns();
        if let Ok(Some(sample)) = &sample {
            let is_started = sample.state != State::NeverStarted;
            vcpu.rests_as = Some(if is_started { State::Idle } else { State::NeverStarted });
        }
        let samples = sample?.map(|sample| RawSample { time_ns: start_ns, frozen_ns, ..sample }).into_iter().collect();
        Ok(Taken { samples, stood_until_ns: was_stolen.then_some(stop_ns), ran_ns: 0 })
    }

    /// Whether a thread that has stopped runs the vCPU whose name it has. If not it is released, and the two vCPUs exchange their threads.
    fn check_thread(&mut self, position: usize, call: Call) -> Result<bool, GuestError> {
        let vcpu = &mut self.vcpus[position];
        // Outside of KVM_RUN nothing shows it.
        let Some(number) = call.run_on.filter(|_| !vcpu.is_certain) else { return Ok(true) };
        let number = number as u32 as i32;
        if number == vcpu.descriptor {
            vcpu.is_certain = true;
            return Ok(true);
        }
        vcpu.thread.release()?;
        let other = self.vcpus.iter().position(|vcpu| vcpu.descriptor == number && !vcpu.is_certain);
        let Some(Ok([vcpu, other])) = other.map(|other| self.vcpus.get_disjoint_mut([position, other])) else {
            let sentence = "a thread of the VMM has the name of a vCPU that it does not run: sample all vCPUs (without --vcpu), or use --backend gdbstub";
            return Err(GuestError::Unsupported(sentence.to_owned()));
        };
        vcpu.exchange_threads(other);
        other.is_certain = true;
        if other.pending.is_some() {
            // The thread that was requested to stop is the other one's.
            other.thread.hold_at_once(&self.signals)?;
        }
        Ok(false)
    }

    /// One sample of a vCPU whose thread waits for another thread of the VMM, without stopping it: see [`waiting`]. `Ok(None)` if it does not wait,
    /// `Ok(Some(None))` if no sample is possible while it does.
    fn sample_waiting(&mut self, position: usize) -> Result<Option<Option<RawSample>>, GuestError> {
        let vcpu = &mut self.vcpus[position];
        let start_ns = monotonic_ns();
        let Some(waits_long) = vcpu.waiting.look(start_ns) else { return Ok(None) };
        let is_halted = vcpu.has_exited_to_halt();
        let sample = match vcpu.known_registers() {
            None => None,
            Some(state) => {
                let (translator, rest) = (Translator::new(state.paging), Rest { is_halted, at: None });
                let mut core = Core { memory: &self.memory, translator, rest, was_asked: false };
                let sample = self.plan.sample(vcpu.index as usize, state, &mut core, self.plan.room())?;
                Some(match self.vmm {
                    Some(vmm) => vmm.above_waiting(sample, &vcpu.waiting),
                    None => sample,
                })
            }
        };
        if !vcpu.waiting.is_unchanged() {
            // The vCPU may have run while it was copied from.
            return Ok(None);
        }
        let sample = if waits_long && !is_halted { Some(vcpu.paused(sample)) } else { sample.map(in_the_vmm) };
        Ok(Some(sample.map(|sample| RawSample { time_ns: start_ns, ..sample })))
    }

    /// Stops and resumes each vCPU without reading anything: the lower bound that samples are compared with, which is not part of the
    /// next sample's pause. Returns, for the one that took longest, the time until it was stopped and that until it was resumed.
    pub fn hold_and_release(&mut self) -> Result<Option<(Duration, Duration)>, GuestError> {
        let mut longest = (Duration::ZERO, Duration::ZERO);
        for vcpu in &mut self.vcpus {
            let start_ns = monotonic_ns();
            let held = vcpu.thread.hold(&self.signals, STOP_TIMEOUT)?;
            let held_ns = monotonic_ns();
            vcpu.thread.release()?;
            vcpu.thread.take_frozen_ns();
            if held == Hold::Ended {
                return Ok(None);
            }
            let times = (held_ns - start_ns, monotonic_ns() - start_ns);
            longest = longest.max((Duration::from_nanos(times.0), Duration::from_nanos(times.1)));
        }
        Ok(Some(longest))
    }

    /// Exchanges how the tasks of a Linux are found for samples; without that these have none. It shows what tasks cost.
    pub fn swap_tasks(&mut self, tasks: &mut Option<TaskPlan>) {
        if let Some(linux) = &mut self.plan.linux {
            std::mem::swap(&mut linux.tasks, tasks);
        }
    }

    /// The number of signals that were passed on to the VMM.
    pub fn signals_handed_on(&self) -> u64 {
        self.vcpus.iter().map(|vcpu| vcpu.thread.signals()).sum()
    }

    /// How often a vCPU was stopped, for samples and for others.
    pub fn stops(&self) -> u64 {
        self.vcpus.iter().map(|vcpu| vcpu.thread.stops()).sum()
    }

    /// A VM has not ended while one of its vCPUs runs.
    fn has_ended(&self) -> bool {
        self.vcpus.iter().all(|vcpu| vcpu.thread.has_ended())
    }
}

/// A sample in a state of its thread, unless the vCPU was never started.
fn in_state(sample: RawSample, state: State) -> RawSample {
    let state = if sample.state == State::NeverStarted { State::NeverStarted } else { state };
    RawSample { state, ..sample }
}

/// A sample of a vCPU whose thread is in the VMM: it is not executing, unless it would wait for work anyway.
fn in_the_vmm(sample: RawSample) -> RawSample {
    if is_executing(&sample) { RawSample { state: State::InVmm, ..sample } } else { sample }
}

/// Whether the guest has code to run there.
fn is_executing(sample: &RawSample) -> bool {
    matches!(sample.state, State::Running | State::Spinning)
}

impl Guest for KvmVm {
    fn announce(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        self.warnings.drain(..).for_each(|text| sink(Event::Warning(text)));
        // Attaching has taken some stops.
        let tracks_ns = self.vcpus.iter_mut().map(|vcpu| (vcpu.index, vcpu.thread.take_frozen_ns())).collect();
        sink(Event::Frozen { tracks_ns });
        Ok(())
    }

    fn parts(&self) -> usize {
        self.vcpus.len()
    }

    fn sample(&mut self, part: usize) -> Result<Attempt, GuestError> {
        if self.has_ended() {
            return Ok(Attempt::Ended);
        }
        let attempt = self.begin(part)?;
        Ok(if self.has_ended() { Attempt::Ended } else { attempt })
    }

    fn rest(&mut self, until_ns: u64) -> Result<Option<(usize, Taken)>, GuestError> {
        self.affinity.look(self.vcpus.iter().filter_map(|vcpu| vcpu.stat.as_ref()));
        if self.vcpus.iter().all(|vcpu| vcpu.sleeper.is_asleep()) {
            set_quiet(true);
        }
        loop {
            for position in 0..self.vcpus.len() {
                if self.vcpus[position].pending.is_none() {
                    self.vcpus[position].thread.settle()?;
                } else if let Some(taken) = self.look_at_pending(position)? {
                    return Ok(Some((position, taken)));
                }
            }
            let left_ns = until_ns.saturating_sub(monotonic_ns());
            if left_ns == 0 {
                let slept = self.vcpus.iter_mut().map(|vcpu| vcpu.look_at_sleep(until_ns == 0)).enumerate();
                let mut slept = slept.filter_map(|(position, taken)| Some((position, taken?)));
                return Ok(slept.next());
            }
            let now_ns = monotonic_ns();
            if self.vcpus.iter().all(|vcpu| vcpu.pending.is_none()) {
                rest_for(Duration::from_nanos(left_ns));
            }
            let pending = self.vcpus.iter().filter_map(|vcpu| vcpu.pending.as_ref());
            let look_ns = pending.map(|pending| (now_ns.saturating_sub(pending.start_ns) / 2).max(LOOK_NS_MIN)).min();
            self.signals.wait(Duration::from_nanos(look_ns.map_or(left_ns, |look_ns| look_ns.min(left_ns))));
        }
    }

    fn remark(&self) -> Option<String> {
        let paused = self.vcpus.iter().map(|vcpu| vcpu.paused_samples).max().filter(|samples| *samples > 0)?;
        Some(remarks::paused(paused))
    }

    fn tracks(&self) -> u64 {
        self.vcpus.len() as u64
    }

    fn detach(&mut self) -> Result<(), GuestError> {
        let mut result = Ok(());
        for vcpu in &mut self.vcpus {
            // Restored first: the thread runs as soon as it is resumed.
            vcpu.page = None;
            let detached = vcpu.thread.detach(&self.signals, DETACH_TIMEOUT);
            result = result.and(detached);
        }
        result
    }
}
