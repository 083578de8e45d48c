//! The walk back from the end of a span.

use super::{Index, Part, What, path_task};
use crate::trace::model::{Cause, Trace, Wait};

/// Parts of a path that are followed.
const PARTS_MAX: usize = 20_000;
/// Tasks that are followed from one to the next.
const DEPTH_MAX: u32 = 16;

pub(super) struct Walk<'a> {
    trace: &'a Trace,
    index: &'a Index,
    /// From the last to the first.
    parts: Vec<Part>,
    is_cut: bool,
    /// The wait of the span's own task that is being explained.
    own_wait: Option<u32>,
}

/// What a task does just before a moment.
enum Before {
    Poll(u32),
    Wait(u32),
    /// Nothing is known back to this moment.
    Nothing(u64),
}

impl<'a> Walk<'a> {
    pub(super) fn new(trace: &'a Trace, index: &'a Index) -> Walk<'a> {
        Walk { trace, index, parts: Vec::new(), is_cut: false, own_wait: None }
    }

    /// The parts in order of time.
    pub(super) fn finish(mut self) -> (Vec<Part>, bool) {
        self.parts.reverse();
        (self.parts, self.is_cut)
    }

    /// Goes from the end of a span back to its start.
    pub(super) fn through(&mut self, span: u32, start_ns: u64, end_ns: u64) {
        match path_task(self.trace, self.index, span) {
            Some(task) => self.of_task(task, start_ns, end_ns, 0),
            None => self.of_cores(self.index.visits(span), start_ns, end_ns),
        }
    }

    /// A span outside of tasks: it runs while a core is in it.
    fn of_cores(&mut self, visits: &[u32], start_ns: u64, end_ns: u64) {
        let mut now_ns = end_ns;
        for visit in visits.iter().rev() {
            let interval = self.trace.span_visits[*visit as usize].interval;
            let (from_ns, to_ns) = (interval.start_ns.max(start_ns), interval.end_ns.min(now_ns));
            if from_ns < to_ns {
                self.add(to_ns, now_ns, What::Unknown, 0);
                self.add(from_ns, to_ns, What::Core { core: interval.core }, 0);
                now_ns = from_ns;
            }
        }
        self.add(start_ns, now_ns, What::Unknown, 0);
    }

    /// What a task did from `start_ns` to `end_ns`, backwards.
    fn of_task(&mut self, task: u32, start_ns: u64, end_ns: u64, depth: u32) {
        let mut now_ns = end_ns;
        while now_ns > start_ns {
            if self.parts.len() >= PARTS_MAX || depth > DEPTH_MAX {
                self.is_cut = true;
                self.add(start_ns, now_ns, What::Unknown, depth);
                return;
            }
            match self.before(task, now_ns) {
                Before::Poll(poll) => {
                    let poll = self.trace.polls[poll as usize];
                    let from_ns = poll.start_ns.max(start_ns);
                    self.add(poll.end_ns.min(now_ns), now_ns, What::Unknown, depth);
                    self.add(from_ns, poll.end_ns.min(now_ns), What::Run { task, core: poll.core }, depth);
                    now_ns = from_ns;
                }
                Before::Wait(index) => {
                    let wait = self.trace.waits[index as usize];
                    self.add(wait.end_ns.min(now_ns), now_ns, What::Unknown, depth);
                    let (from_ns, to_ns) = (wait.start_ns.max(start_ns), wait.end_ns.min(now_ns));
                    if depth == 0 {
                        self.own_wait = Some(index);
                    }
                    self.of_wait(index, wait, from_ns, to_ns, depth);
                    if depth == 0 {
                        self.own_wait = None;
                    }
                    now_ns = from_ns;
                }
                Before::Nothing(since_ns) => {
                    let born_ns = self.trace.tasks[task as usize].spawned_ns.unwrap_or(0);
                    let parent = self.trace.tasks[task as usize].parent;
                    match parent.filter(|_| born_ns >= now_ns) {
                        // Before it existed, what counts is the task that made it.
                        Some(parent) => self.of_task(parent, start_ns, now_ns, depth + 1),
                        None => {
                            let from_ns = since_ns.max(start_ns);
                            self.add(from_ns, now_ns, What::Unknown, depth);
                            now_ns = from_ns;
                            continue;
                        }
                    }
                    return;
                }
            }
        }
    }

    /// The latest of the task's polls and waits that began before a moment.
    fn before(&self, task: u32, now_ns: u64) -> Before {
        let (polls, waits) = (self.index.polls(task), self.index.waits(task));
        let poll_times = |poll: u32| (self.trace.polls[poll as usize].start_ns, self.trace.polls[poll as usize].end_ns);
        let wait_times = |wait: u32| (self.trace.waits[wait as usize].start_ns, self.trace.waits[wait as usize].end_ns);
        let poll = polls[..polls.partition_point(|poll| poll_times(*poll).0 < now_ns)].last();
        let wait = waits[..waits.partition_point(|wait| wait_times(*wait).0 < now_ns)].last();
        // Of two with one start, one takes no time.
        let (latest, end_ns) = match (poll.copied(), wait.copied()) {
            (Some(poll), Some(wait)) if poll_times(poll) > wait_times(wait) => (Before::Poll(poll), poll_times(poll).1),
            (_, Some(wait)) => (Before::Wait(wait), wait_times(wait).1),
            (Some(poll), None) => (Before::Poll(poll), poll_times(poll).1),
            (None, None) => return Before::Nothing(0),
        };
        if end_ns < now_ns { Before::Nothing(end_ns) } else { latest }
    }

    /// What happened while a task waited, from `start_ns` to `end_ns`, backwards.
    fn of_wait(&mut self, index: u32, wait: Wait, start_ns: u64, end_ns: u64, depth: u32) {
        let woken_ns = wait.woken_ns.unwrap_or(end_ns).clamp(start_ns, end_ns);
        self.add(woken_ns, end_ns, What::Ready { task: wait.task }, depth);
        if woken_ns == start_ns {
            return;
        }
        // The path may begin in the middle of a wait that ended later: then its cause lies in the future, and still is the cause.
        let cause =
            wait.wake.and_then(|wake| self.trace.wakes.get(wake as usize)).map_or(Cause::Unknown, |wake| wake.cause);
        match cause {
            Cause::Request(request) => self.of_request(request, start_ns, woken_ns, depth),
            Cause::Task(other) if other != wait.task => self.of_task(other, start_ns, woken_ns, depth + 1),
            Cause::Segment(segment) => {
                let connection = self.trace.segments.get(segment as usize).map_or(0, |segment| segment.connection);
                self.add(start_ns, woken_ns, What::Network { connection, wait: index }, depth);
            }
            Cause::Timer => self.add(start_ns, woken_ns, What::Timer { wait: index }, depth),
            Cause::Task(_) | Cause::Interrupt(_) | Cause::Unknown => {
                self.add(start_ns, woken_ns, What::Wait { wait: index }, depth);
            }
        }
    }

    /// A request was what counted, since its submission; before, the task that submitted it.
    fn of_request(&mut self, index: u32, start_ns: u64, end_ns: u64, depth: u32) {
        let Some(request) = self.trace.requests.get(index as usize) else { return };
        let submit_ns = request.submit_ns.clamp(start_ns, end_ns);
        self.add(submit_ns, end_ns, What::Request { request: index }, depth);
        match request.task {
            Some(task) => self.of_task(task, start_ns, submit_ns, depth + 1),
            None => self.add(start_ns, submit_ns, What::Unknown, depth),
        }
    }

    /// Adds a part before the others; one of the same topic as the part after it makes that longer.
    fn add(&mut self, start_ns: u64, end_ns: u64, what: What, depth: u32) {
        if start_ns >= end_ns {
            return;
        }
        let part = Part { start_ns, end_ns, what, wait: self.own_wait, depth };
        match self.parts.last_mut() {
            Some(after) if (after.what, after.wait, after.depth) == (what, self.own_wait, depth) => {
                after.start_ns = start_ns;
            }
            _ => self.parts.push(part),
        }
    }
}
