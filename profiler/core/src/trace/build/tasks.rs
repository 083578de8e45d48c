//! Tasks: their polls, the waits between them, and the causes that end these.

use std::collections::HashMap;

use glass_formats::trace::{BlockKind, Outcome};

use super::At;
use super::names::{Names, Role};
use crate::trace::model::{Cause, NameId, Poll, Reason, Task, Trace, Wait, Wake};

/// Reasons of one poll that are kept; a poll that waits for more has the first ones.
const REASONS_MAX: usize = 64;

/// The open polls and waits.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    by_number: HashMap<u32, u32>,
    states: Vec<TaskState>,
    cores: Vec<CoreState>,
    /// Tasks that may be in a wait.
    waiting: Vec<u32>,
    /// Polls are not in the order of their start.
    needs_sort: bool,
    /// Events of a poll where none was open.
    pub(super) misplaced: u64,
}

/// State of a task in addition to its entry in the table.
#[derive(Debug, Clone, Copy, Default)]
struct TaskState {
    /// Index of the wait that it is in.
    wait: Option<u32>,
    /// The core that it was last seen on, and how often events of it had been missing then.
    core: u32,
    cuts: u32,
    /// A wake before the end of the poll.
    early_wake: Option<u32>,
    /// It is in [`Tasks::waiting`].
    is_listed: bool,
}

#[derive(Debug, Default)]
struct CoreState {
    /// Index of the open poll.
    poll: Option<u32>,
    /// The reasons of its next wait.
    reasons: Vec<Reason>,
    /// The end of the last loss.
    known_since_ns: u64,
    /// How often events were missing.
    cuts: u32,
    /// The last task seen and its index.
    last: Option<(u32, u32)>,
}

impl Tasks {
    pub(super) fn new(cores: usize) -> Tasks {
        let mut tasks = Tasks::default();
        tasks.cores.resize_with(cores, CoreState::default);
        tasks
    }

    /// The task that is being polled on a core.
    pub(super) fn current(&self, core: u32, trace: &Trace) -> Option<u32> {
        self.cores[core as usize].poll.map(|poll| trace.polls[poll as usize].task)
    }

    /// The index of the task with this number, which is added if it is new.
    fn index(&mut self, core: u32, number: u32, trace: &mut Trace) -> u32 {
        if let Some((last, index)) = self.cores[core as usize].last
            && last == number
        {
            return index;
        }
        let next = trace.tasks.len() as u32;
        let index = *self.by_number.entry(number).or_insert(next);
        if index == next {
            trace.tasks.push(Task { number, ..Task::default() });
            self.states.push(TaskState { core, cuts: self.cores[core as usize].cuts, ..TaskState::default() });
        }
        self.cores[core as usize].last = Some((number, index));
        index
    }

    fn set_name(&self, task: u32, name: u32, names: &mut Names, trace: &mut Trace) {
        let task = &mut trace.tasks[task as usize];
        if task.name == 0 {
            task.name = names.id(name, Role::Task(task.number));
        }
    }

    pub(super) fn spawn(
        &mut self,
        at: At,
        (number, name, parent): (u32, u32, u32),
        was_there: bool,
        names: &mut Names,
        trace: &mut Trace,
    ) {
        let parent = (parent != 0).then(|| self.index(at.core, parent, trace));
        let index = self.index(at.core, number, trace);
        self.set_name(index, name, names, trace);
        let task = &mut trace.tasks[index as usize];
        task.parent = task.parent.or(parent.filter(|parent| *parent != index));
        let is_known = self.states[index as usize].wait.is_some() || self.is_polled(index, trace);
        if !was_there {
            trace.tasks[index as usize].spawned_ns.get_or_insert(at.time_ns);
        }
        if !is_known {
            // A new task is polled next; what an older one waits for is unknown.
            let wake = (!was_there).then_some(at.time_ns);
            self.begin_wait(at, index, Wait { woken_ns: wake, is_cut: was_there, ..Wait::default() }, trace);
        }
    }

    fn is_polled(&self, task: u32, trace: &Trace) -> bool {
        let core = self.states[task as usize].core;
        self.current(core, trace) == Some(task)
    }

    fn begin_wait(&mut self, at: At, task: u32, wait: Wait, trace: &mut Trace) {
        // Only where events are missing or wrong is it in another.
        self.end_wait(at.time_ns, task, true, trace);
        let state = &mut self.states[task as usize];
        state.wait = Some(trace.waits.len() as u32);
        state.core = at.core;
        state.cuts = self.cores[at.core as usize].cuts;
        if !state.is_listed {
            state.is_listed = true;
            self.waiting.push(task);
        }
        trace.waits.push(Wait { task, start_ns: at.time_ns, end_ns: at.time_ns, ..wait });
    }

    fn end_wait(&mut self, time_ns: u64, task: u32, is_cut: bool, trace: &mut Trace) {
        let state = &mut self.states[task as usize];
        let Some(wait) = state.wait.take() else { return };
        let wait = &mut trace.waits[wait as usize];
        wait.end_ns = time_ns.max(wait.start_ns);
        // A poll whose start is missing may have started before the recorded wake-up.
        wait.woken_ns = wait.woken_ns.map(|woken_ns| woken_ns.min(wait.end_ns));
        // Where events are missing there may have been polls.
        wait.is_cut |= is_cut || self.cores[state.core as usize].cuts != state.cuts;
    }

    pub(super) fn poll_begin(&mut self, at: At, number: u32, name: u32, names: &mut Names, trace: &mut Trace) {
        if self.cores[at.core as usize].poll.is_some() {
            self.misplaced += 1;
            self.cut_poll(at.core, at.time_ns, trace);
        }
        let task = self.index(at.core, number, trace);
        self.set_name(task, name, names, trace);
        self.end_wait(at.time_ns, task, false, trace);
        let state = &mut self.states[task as usize];
        (state.core, state.early_wake) = (at.core, None);
        let core = &mut self.cores[at.core as usize];
        core.reasons.clear();
        core.poll = Some(trace.polls.len() as u32);
        trace.polls.push(Poll { task, core: at.core, start_ns: at.time_ns, end_ns: at.time_ns, ..Poll::default() });
    }

    pub(super) fn poll_end(&mut self, at: At, number: u32, outcome: u16, trace: &mut Trace) {
        let task = self.index(at.core, number, trace);
        let is_last = outcome == Outcome::Ready as u16;
        match self.cores[at.core as usize].poll {
            Some(poll) if trace.polls[poll as usize].task == task => {
                let poll = &mut trace.polls[poll as usize];
                (poll.end_ns, poll.is_last) = (at.time_ns, is_last);
            }
            other => {
                // Its start is missing: it ran at least since the last loss on the core, or since the
                // other poll that is still open.
                let start_ns = match other {
                    Some(_) => at.time_ns,
                    None => self.cores[at.core as usize].known_since_ns,
                };
                self.misplaced += u64::from(other.is_some());
                self.cut_poll(at.core, at.time_ns, trace);
                self.end_wait(start_ns, task, true, trace);
                self.needs_sort |= trace.polls.last().is_some_and(|last| last.start_ns > start_ns);
                let (core, end_ns) = (at.core, at.time_ns);
                trace.polls.push(Poll { task, core, start_ns, end_ns, is_last, is_cut: true });
            }
        }
        let core = &mut self.cores[at.core as usize];
        core.poll = None;
        core.known_since_ns = at.time_ns;
        if is_last {
            core.reasons.clear();
            trace.tasks[task as usize].ended_ns = Some(at.time_ns);
            return;
        }
        let first_reason = trace.reasons.len() as u32;
        let reason_count = core.reasons.len() as u32;
        trace.reasons.append(&mut core.reasons);
        let wake = self.states[task as usize].early_wake.take();
        let woken_ns = wake.map(|_| at.time_ns);
        self.begin_wait(at, task, Wait { first_reason, reason_count, wake, woken_ns, ..Wait::default() }, trace);
    }

    pub(super) fn block(&mut self, at: At, kind: u16, name: NameId, object: u64) {
        let core = &mut self.cores[at.core as usize];
        if core.poll.is_none() {
            self.misplaced += 1;
            return;
        }
        let reason = Reason { kind: BlockKind::from_number(kind), name, object };
        if core.reasons.len() < REASONS_MAX && !core.reasons.contains(&reason) {
            core.reasons.push(reason);
        }
    }

    pub(super) fn wake(&mut self, at: At, number: u32, cause: Cause, trace: &mut Trace) {
        let task = self.index(at.core, number, trace);
        let index = trace.wakes.len() as u32;
        trace.wakes.push(Wake { time_ns: at.time_ns, core: at.core, task, cause });
        let is_polled = self.is_polled(task, trace);
        let state = &mut self.states[task as usize];
        match state.wait {
            Some(wait) => {
                let wait = &mut trace.waits[wait as usize];
                if wait.woken_ns.is_none() {
                    (wait.woken_ns, wait.wake) = (Some(at.time_ns), Some(index));
                }
            }
            None if is_polled => state.early_wake = state.early_wake.or(Some(index)),
            None => {}
        }
    }

    /// Ends the open poll of a core, which has no end event.
    fn cut_poll(&mut self, core: u32, time_ns: u64, trace: &mut Trace) {
        let core = &mut self.cores[core as usize];
        core.reasons.clear();
        if let Some(poll) = core.poll.take() {
            let poll = &mut trace.polls[poll as usize];
            (poll.end_ns, poll.is_cut) = (time_ns.max(poll.start_ns), true);
        }
    }

    /// Events of a core are missing from `from_ns` to `to_ns`.
    pub(super) fn cut(&mut self, core: u32, from_ns: u64, to_ns: u64, trace: &mut Trace) {
        self.cut_poll(core, from_ns, trace);
        let core = &mut self.cores[core as usize];
        core.cuts += 1;
        core.known_since_ns = to_ns;
    }

    /// The first event of a core.
    pub(super) fn begin_core(&mut self, at: At) {
        self.cores[at.core as usize].known_since_ns = at.time_ns;
    }

    /// Ends the open polls and waits at this moment: later events are missing.
    pub(super) fn stop(&mut self, time_ns: u64, trace: &mut Trace) -> u64 {
        let polls = self.cores.iter().filter(|core| core.poll.is_some()).count() as u64;
        for core in 0..self.cores.len() as u32 {
            self.cut_poll(core, time_ns, trace);
        }
        for task in std::mem::take(&mut self.waiting) {
            self.states[task as usize].is_listed = false;
            self.end_wait(time_ns, task, true, trace);
        }
        polls
    }

    /// Ends the open polls and waits at the end of the trace; returns how many polls were open.
    pub(super) fn finish(&mut self, trace: &mut Trace) -> u64 {
        let polls = self.stop(trace.end_ns, trace);
        if self.needs_sort {
            trace.polls.sort_by_key(|poll| poll.start_ns);
        }
        // A wait may start where a poll without a start ended, so it is never before the last one: they are in order.
        polls
    }
}
