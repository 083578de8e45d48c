//! What the threads of a Linux guest wait for: the stacks of all that do not run, several times a second, read from its RAM. No vCPU is stopped.
//!
//! A thread that has not run since it was read last still has the same stack, so only how often it was switched is read of it. Threads of the kernel
//! count while they run or cannot be interrupted: without work they keep no program waiting.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::Duration;

use glass_profiler_core::event::{Event, NumberedWait, RawSample};
use glass_profiler_core::guest::Mode;
use glass_profiler_core::images::Images;
use glass_profiler_core::linux::tasks::{Task, TaskState};
use glass_profiler_core::linux::waits::{Wait, WaitFunctions};
use glass_profiler_core::model::State;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::error::GuestError;
use crate::files::HostFiles;
use crate::find::Vm;
use crate::sys::monotonic_ns;
use crate::systems::linux_guest::{Access, LinuxGuest, Stack};
use crate::systems::plan::GUEST;
use crate::{Counts, Flow, Source};

/// Samples of each thread per second, if the user does not choose: a wait that is shorter than the time between two is seen by chance.
pub const DEFAULT_RATE_HZ: u32 = 49;
/// Lists of tasks in a row that cannot be read before the guest is given up.
const UNREAD_MAX: u32 = 100;

/// By what a thread is known: its ID, and when it started, since IDs are used again.
type Key = (u32, u64);

/// A thread that has a track.
struct Known {
    track: u32,
    /// As it was when its stack was read.
    task: Task,
    /// The number of its last sample.
    number: u32,
    /// The round in which it was there last.
    round: u64,
}

/// The threads of a Linux guest.
pub struct OffCpu {
    guest: LinuxGuest,
    /// Readable when the VMM has ended.
    vmm: OwnedFd,
    /// To unwind stacks of the kernel, whose functions show what is waited for.
    kernel: Images,
    functions: WaitFunctions,
    period_ns: u64,
    next_ns: u64,
    threads: HashMap<Key, Known>,
    tracks: u32,
    round: u64,
    /// Lists that could not be read since the last one that could.
    unread: u32,
    counts: Counts,
}

impl OffCpu {
    /// The guest of a VMM, with so many samples of each thread per second.
    ///
    /// # Errors
    /// The RAM cannot be read, or has no Linux kernel that describes its structures.
    pub fn open(vm: &Vm, rate_hz: u32, access: Access) -> Result<OffCpu, GuestError> {
        let gone = || GuestError::Unsupported(format!("process {} has ended", vm.pid));
        let pid = i32::try_from(vm.pid).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
        // Before this process gives up its rights.
        let vmm = pidfd_open(pid, PidfdFlags::empty()).map_err(|_| gone())?;
        let guest = LinuxGuest::of_vmm(vm.pid, &vm.name, access)?;
        let functions = guest.symbol_map().map(WaitFunctions::of).unwrap_or_default();
        let mut kernel = Images::default();
        guest.announce(&mut |event| kernel.learn(&event, &mut HostFiles::default()));
        Ok(OffCpu {
            guest,
            vmm,
            kernel,
            functions,
            period_ns: 1_000_000_000 / u64::from(rate_hz.max(1)),
            next_ns: 0,
            threads: HashMap::new(),
            tracks: 0,
            round: 0,
            unread: 0,
            counts: Counts::default(),
        })
    }

    /// Samples every thread once.
    fn sample_all(&mut self, sink: &mut dyn FnMut(Event)) {
        self.round += 1;
        let Some(tasks) = self.guest.tasks() else {
            self.unread += 1;
            self.counts.losses.not_stopped += self.threads.len() as u64;
            return;
        };
        self.unread = 0;
        let time_ns = monotonic_ns();
        let mut still = Vec::new();
        for task in tasks.tasks.into_iter().filter(is_wanted) {
            let known = self.threads.get_mut(&(task.tid, task.start_ns));
            match known.filter(|known| known.task.name == task.name) {
                Some(known) if still_waits(&known.task, &task) => {
                    known.round = self.round;
                    still.push((known.track, known.number));
                }
                _ => self.sample(task, sink),
            }
        }
        self.counts.delivered += still.len() as u64;
        if !still.is_empty() {
            sink(Event::StillWaits { time_ns, tracks: still });
        }
        self.threads.retain(|_, known| {
            let is_there = known.round == self.round;
            if !is_there {
                sink(Event::TrackEnd(known.track));
            }
            is_there
        });
    }

    /// Reads the stack of a thread that is new, or has run since it was read last.
    fn sample(&mut self, task: Task, sink: &mut dyn FnMut(Event)) {
        let (mut sample, wait) = match self.guest.stack(&task, sink) {
            Stack::Stood(sample) => {
                let wait = self.wait(task.state, &sample);
                (*sample, wait)
            }
            Stack::OnCpu => (self.guest.running(&task, sink), Wait::OnCpu),
            Stack::Ran => {
                self.counts.losses.not_stopped += 1;
                return;
            }
            Stack::Gone => return,
        };
        let (next, round) = (self.tracks, self.round);
        let known = self.threads.entry((task.tid, task.start_ns)).or_insert_with(|| Known {
            track: next,
            task: Task::default(),
            number: 0,
            round,
        });
        let is_new = known.track == next;
        self.tracks += u32::from(is_new);
        if is_new || known.task.name != task.name {
            let name = self.guest.shown_name(&task);
            sink(Event::Track { track: known.track, guest: GUEST, id: task.tid.into(), name });
        }
        known.number = known.number.wrapping_add(1);
        known.round = round;
        known.task = task;
        sample.track = known.track;
        sample.state = if wait == Wait::OnCpu { State::Running } else { State::Waiting };
        sample.wait = Some(NumberedWait { wait, number: known.number });
        self.counts.delivered += 1;
        sink(Event::Sample(sample));
    }

    /// What a thread waits for, by the functions of the kernel that it waits in.
    fn wait(&mut self, state: TaskState, sample: &RawSample) -> Wait {
        let of_kernel = sample.segments.iter().filter(|segment| segment.mode == Mode::Kernel).cloned().collect();
        let stack = self.kernel.unwind_code(&RawSample { segments: of_kernel, ..RawSample::default() });
        self.functions.wait(state, stack.calls.iter().map(|call| call.address))
    }

    /// Waits until a time; returns whether the VMM has ended.
    fn has_ended_until(&self, until_ns: u64) -> bool {
        let left = Duration::from_nanos(until_ns.saturating_sub(monotonic_ns()));
        let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut polled = [PollFd::new(&self.vmm, PollFlags::IN)];
        poll(&mut polled, Some(&limit)).is_ok() && !polled[0].revents().is_empty()
    }
}

/// Whether a task has a track: one of a process, or one of the kernel that does something.
fn is_wanted(task: &Task) -> bool {
    match task.state {
        TaskState::Zombie | TaskState::Dead => false,
        TaskState::Runnable | TaskState::Blocked => true,
        _ => !task.is_kernel_thread || task.is_on_cpu,
    }
}

/// Whether a task does what it did when it was read before.
fn still_waits(before: &Task, now: &Task) -> bool {
    (before.is_on_cpu && now.is_on_cpu) || (before.state == now.state && before.stood_still(now))
}

impl Source for OffCpu {
    fn announce(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        self.guest.take_warnings().into_iter().for_each(|text| sink(Event::Warning(text)));
        self.guest.announce(sink);
        self.next_ns = monotonic_ns();
        Ok(())
    }

    fn collect(&mut self, wait: Duration, sink: &mut dyn FnMut(Event)) -> Result<Flow, GuestError> {
        let end_ns = monotonic_ns() + wait.as_nanos() as u64;
        loop {
            if self.has_ended_until(self.next_ns.min(end_ns)) {
                return Ok(Flow::Ended);
            }
            if self.next_ns > end_ns {
                return Ok(Flow::More);
            }
            self.sample_all(sink);
            if self.unread > UNREAD_MAX {
                return Err(GuestError::KernelNotFound(
                    "the tasks of the guest cannot be read any more: if it has started again, start a new recording"
                        .to_owned(),
                ));
            }
            self.next_ns += self.period_ns;
            let behind = monotonic_ns().saturating_sub(self.next_ns) / self.period_ns;
            self.counts.losses.overdue += behind * self.threads.len() as u64;
            self.next_ns += behind * self.period_ns;
        }
    }

    fn counts(&self) -> Counts {
        self.counts
    }

    fn detach(&mut self, _sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(state: TaskState, switches: [u64; 2], is_on_cpu: bool) -> Task {
        let mut task = Task::default();
        (task.state, task.switches, task.is_on_cpu) = (state, switches, is_on_cpu);
        task
    }

    #[test]
    fn threads_of_the_kernel_count_while_they_do_something() {
        use TaskState::*;
        let of = |is_kernel_thread| {
            let is_wanted = |state: &TaskState| {
                let mut task = task(*state, [0, 0], false);
                task.is_kernel_thread = is_kernel_thread;
                is_wanted(&task)
            };
            let all = [Runnable, Sleeping, Blocked, Stopped, Traced, Idle, Zombie, Dead];
            all.into_iter().filter(is_wanted).collect::<Vec<_>>()
        };
        assert_eq!(of(true), [Runnable, Blocked]);
        assert_eq!(of(false), [Runnable, Sleeping, Blocked, Stopped, Traced, Idle]);
    }

    #[test]
    fn a_thread_that_was_switched_is_read_again() {
        let before = task(TaskState::Sleeping, [3, 4], false);
        assert!(still_waits(&before, &before));
        assert!(!still_waits(&before, &task(TaskState::Sleeping, [4, 4], false)));
        // It was woken, and waits for a CPU.
        assert!(!still_waits(&before, &task(TaskState::Runnable, [3, 4], false)));
        let running = task(TaskState::Runnable, [3, 4], true);
        assert!(!still_waits(&before, &running));
        assert!(still_waits(&running, &task(TaskState::Runnable, [9, 9], true)));
    }
}
