//! What the threads of a Linux guest wait for: the stacks of all that do not run, several times a second, read from its RAM. No vCPU is stopped.
//!
//! A thread that has not run since it was read last still has the same stack, so only what shows that is read of it: how often it was switched, its
//! state and its stack pointer. The kernel's lists of tasks are read again when it has started a task. Threads of the kernel count while they run or
//! cannot be interrupted: without work they keep no program waiting.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::Duration;

use glass_profiler_core::event::{Event, NumberedWait, RawSample};
use glass_profiler_core::guest::Mode;
use glass_profiler_core::images::Images;
use glass_profiler_core::linux::tasks::{Activity, Task, TaskState};
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

/// How long a list of tasks is taken for whole while no task is started: a task that changes its ID, or is renamed by another one, is seen then.
const LIST_AGE_MAX_NS: u64 = 1_000_000_000;

/// Events of a round that are passed on at once: for each by itself, who takes them would be woken.
const EVENTS_MAX: usize = 64;

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

/// The tasks as the guest's kernel listed them.
struct List {
    /// How many tasks the guest had started before.
    started: u64,
    time_ns: u64,
    tasks: Vec<Listed>,
}

/// A task of a list.
struct Listed {
    key: Key,
    address: u64,
    is_kernel_thread: bool,
}

/// What a task that is wanted does in a round.
enum Seen {
    /// What it did in its last sample.
    Still(Key),
    /// Something else, perhaps.
    Task(Task),
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
    list: Option<List>,
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
            list: None,
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
        let time_ns = monotonic_ns();
        let Some(seen) = self.look(time_ns).or_else(|| self.list(time_ns)) else {
            self.unread += 1;
            self.counts.losses.not_stopped += self.threads.len() as u64;
            return;
        };
        self.unread = 0;
        let mut still = Vec::with_capacity(seen.len());
        for seen in seen {
            let (key, task) = match seen {
                Seen::Still(key) => (key, None),
                Seen::Task(task) => ((task.tid, task.start_ns), Some(task)),
            };
            let is_still = |known: &&mut Known| {
                task.as_ref().is_none_or(|task| {
                    known.task.name == task.name && still_waits(&known.task.activity(), &task.activity())
                })
            };
            match (self.threads.get_mut(&key).filter(is_still), task) {
                (Some(known), _) => {
                    known.round = self.round;
                    still.push((known.track, known.number));
                }
                (None, Some(task)) => self.sample(task, sink),
                (None, None) => {}
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

    /// What the tasks of the last list do. `None` if there may be others by now.
    fn look(&self, time_ns: u64) -> Option<Vec<Seen>> {
        let list = self.list.as_ref().filter(|list| time_ns - list.time_ns < LIST_AGE_MAX_NS)?;
        if self.guest.tasks_started()? != list.started {
            return None;
        }
        let activity = self.guest.activities();
        let mut seen = Vec::with_capacity(list.tasks.len());
        for Listed { key, address, is_kernel_thread } in &list.tasks {
            let is_same = |now: &Activity| (now.tid, now.start_ns) == *key;
            let Some(now) = activity(*address, *is_kernel_thread)? else { continue };
            if !is_same(&now) {
                return None;
            }
            if !is_wanted(&now, *is_kernel_thread) {
                continue;
            }
            // One on a CPU may do anything, such as to start a program under another name.
            let known = self.threads.get(key).filter(|_| !now.is_on_cpu);
            seen.push(match known.filter(|known| still_waits(&known.task.activity(), &now)) {
                Some(_) => Seen::Still(*key),
                None => Seen::Task(self.guest.read(*address).filter(|task| is_same(&task.activity()))?),
            });
        }
        Some(seen)
    }

    /// What the tasks do that there are now. `None` if the guest's lists cannot be read.
    fn list(&mut self, time_ns: u64) -> Option<Vec<Seen>> {
        // Before the lists, so all tasks that it counts are in them.
        let started = self.guest.tasks_started();
        let mut tasks = self.guest.tasks()?;
        let listed = |task: &Task| Listed {
            key: (task.tid, task.start_ns),
            address: task.address,
            is_kernel_thread: task.is_kernel_thread,
        };
        let is_there = |task: &&Task| !matches!(task.state, TaskState::Zombie | TaskState::Dead);
        self.list = started.filter(|_| tasks.left_out == 0).map(|started| List {
            started,
            time_ns,
            tasks: tasks.tasks.iter().filter(is_there).map(listed).collect(),
        });
        tasks.tasks.retain(|task| is_wanted(&task.activity(), task.is_kernel_thread));
        Some(tasks.tasks.into_iter().map(Seen::Task).collect())
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
fn is_wanted(task: &Activity, is_kernel_thread: bool) -> bool {
    match task.state {
        TaskState::Zombie | TaskState::Dead => false,
        TaskState::Runnable | TaskState::Blocked => true,
        _ => !is_kernel_thread || task.is_on_cpu,
    }
}

/// Whether a task does what it did when it was read before.
fn still_waits(before: &Activity, now: &Activity) -> bool {
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
            let mut waiting = Vec::new();
            self.sample_all(&mut |event| {
                waiting.push(event);
                if waiting.len() == EVENTS_MAX {
                    waiting.drain(..).for_each(&mut *sink);
                }
            });
            waiting.into_iter().for_each(&mut *sink);
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

    fn detach(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        self.guest.remark().into_iter().for_each(|remark| sink(Event::Warning(remark)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(state: TaskState, switches: [u64; 2], is_on_cpu: bool) -> Activity {
        Activity { state, switches, is_on_cpu, ..Activity::default() }
    }

    #[test]
    fn threads_of_the_kernel_count_while_they_do_something() {
        use TaskState::*;
        let of = |is_kernel_thread| {
            let is_wanted = |state: &TaskState| is_wanted(&task(*state, [0, 0], false), is_kernel_thread);
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
