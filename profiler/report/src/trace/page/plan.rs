//! Which track holds what, known before any track is made: tracks refer to each other.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use glass_profiler_core::trace::model::{Call, Cause, Connection, Trace};

/// Requests, spans or calls that lie above each other.
const DEPTH_MAX: usize = 96;
/// Tasks of one name, connections of one client: if there are more, those that follow each other share a track.
const ALONE_MAX: u32 = 24;
/// Tracks for tasks, and for connections; what goes beyond lies in the last one of its name. Calls of tasks for which
/// as many tracks are not enough are in those of the cores only.
const SHARED_TRACKS_MAX: usize = 20_000;

/// Numbers of tracks.
pub struct Plan {
    /// By core.
    pub core: Vec<u32>,
    /// By visit of a span.
    pub visit: Vec<u32>,
    /// By core: first track of visits of spans and how many; a span within a span lies in the next one.
    pub visits: Vec<(u32, u32)>,
    /// By core, for those that have any.
    pub interrupts: Vec<Option<u32>>,
    /// By task.
    pub task: Vec<u32>,
    /// By task: place in `task_tracks`.
    pub task_place: Vec<u32>,
    /// Tasks of each of their tracks, and tracks for the calls of these below it.
    pub task_tracks: Vec<(Shared, u32)>,
    /// By request.
    pub request: Vec<u32>,
    /// By device: first track and how many.
    pub device: Vec<(u32, u32)>,
    /// By device, for those that have any.
    pub kicks: Vec<Option<u32>>,
    /// By connection.
    pub connection: Vec<u32>,
    pub connection_tracks: Vec<Shared>,
    /// By span.
    pub span: Vec<u32>,
    pub span_tracks: (u32, u32),
    /// By core: first track and how many.
    pub calls: Vec<(u32, u32)>,
    /// By call: its track below the first of its core.
    pub call_level: Vec<u8>,
    pub tracks: u32,
    /// Slices that found no track of their own.
    pub squeezed: u64,
}

/// A track of tasks or connections that follow each other.
#[derive(Debug, Clone, Default)]
pub struct Shared {
    pub first: u32,
    pub count: u32,
}

impl Plan {
    /// The track of a call among those of its core.
    pub fn track_of_call(&self, trace: &Trace, call: u32) -> Option<u32> {
        let core = trace.calls.get(call as usize)?.core;
        Some(self.calls.get(core as usize)?.0 + u32::from(*self.call_level.get(call as usize)?))
    }

    pub fn new(trace: &Trace) -> Plan {
        let mut next = 0;
        let mut take = |count: usize| {
            let first = next;
            next += count as u32;
            first
        };
        let mut squeezed = 0;
        let cores = trace.cores.len();
        let (mut core, mut interrupts) = (Vec::new(), vec![false; cores]);
        let mut visit_stacks = vec![Stack::default(); cores];
        let mut visit: Vec<u32> = trace
            .span_visits
            .iter()
            .map(|visit| {
                let of = visit.interval;
                visit_stacks.get_mut(of.core as usize).map_or(0, |stack| stack.place(0, of.start_ns, of.end_ns))
            })
            .collect();
        squeezed += visit_stacks.iter().map(|stack| stack.squeezed).sum::<u64>();
        trace.interrupts.iter().for_each(|interrupt| mark(&mut interrupts, interrupt.core));
        let mut visit_tracks = Vec::new();
        let mut interrupt_tracks = Vec::new();
        for index in 0..cores {
            core.push(take(1));
            let levels = visit_stacks[index].ends.len();
            visit_tracks.push((take(levels), levels as u32));
            interrupt_tracks.push(interrupts[index].then(|| take(1)));
        }
        for (track, of) in visit.iter_mut().zip(&trace.span_visits) {
            *track += visit_tracks.get(of.interval.core as usize).map_or(0, |&(first, _)| first);
        }
        let (task_place, shared) = share_tasks(trace, &mut squeezed);
        let depths = call_depths(trace, &task_place, shared.len());
        let task_tracks: Vec<(Shared, u32)> = shared.into_iter().zip(depths).collect();
        let firsts: Vec<u32> = task_tracks.iter().map(|(_, depth)| take(1 + *depth as usize)).collect();
        let task = task_place.iter().map(|place| firsts[*place as usize]).collect();

        let mut stacks = vec![Stack::default(); trace.devices.len()];
        let mut request: Vec<u32> = trace
            .requests
            .iter()
            .map(|request| {
                let end = trace.request_end_ns(request);
                stacks.get_mut(request.device as usize).map_or(0, |stack| stack.place(0, request.submit_ns, end))
            })
            .collect();
        let mut has_kicks = vec![false; trace.devices.len()];
        trace.kicks.iter().for_each(|kick| mark(&mut has_kicks, kick.device));
        let mut device = Vec::new();
        let mut kicks = Vec::new();
        for (stack, has_kicks) in stacks.iter().zip(has_kicks) {
            let levels = stack.ends.len().max(1);
            device.push((take(levels), levels as u32));
            kicks.push(has_kicks.then(|| take(1)));
        }
        squeezed += stacks.iter().map(|stack| stack.squeezed).sum::<u64>();
        for (track, of) in request.iter_mut().zip(&trace.requests) {
            *track += device.get(of.device as usize).map_or(0, |&(first, _)| first);
        }
        let (mut connection, connection_tracks) = share_connections(trace, &mut squeezed);
        let first = take(connection_tracks.len());
        connection.iter_mut().for_each(|track| *track += first);

        let mut stack = Stack::default();
        let mut span: Vec<u32> = Vec::with_capacity(trace.spans.len());
        for of in &trace.spans {
            let above = of.parent.and_then(|parent| span.get(parent as usize)).map_or(0, |track| *track as usize + 1);
            span.push(stack.place(above, of.start_ns, trace.span_end_ns(of)));
        }
        squeezed += stack.squeezed;
        let span_tracks = (take(stack.ends.len()), stack.ends.len() as u32);
        span.iter_mut().for_each(|track| *track += span_tracks.0);

        let call_level = core_levels(trace);
        let mut depth = vec![0; cores];
        for (call, level) in trace.calls.iter().zip(&call_level) {
            if let Some(depth) = depth.get_mut(call.core as usize) {
                *depth = (*depth).max(usize::from(*level) + 1);
            }
        }
        let calls = depth.iter().map(|&depth| (take(depth), depth as u32)).collect();
        take(trace.counters.len());
        take(usize::from(!trace.messages.is_empty()));
        take(usize::from(!trace.switches.is_empty()));
        Plan {
            core,
            visit,
            visits: visit_tracks,
            interrupts: interrupt_tracks,
            task,
            task_place,
            task_tracks,
            request,
            device,
            kicks,
            connection,
            connection_tracks,
            span,
            span_tracks,
            calls,
            call_level,
            tracks: next,
            squeezed,
        }
    }

    /// Number of a core's track and one, 0 for none.
    pub fn core_link(&self, core: u32) -> u64 {
        self.core.get(core as usize).map_or(0, |&track| u64::from(track) + 1)
    }

    /// Index of a task and one, 0 for none.
    pub fn task_index(&self, task: Option<u32>) -> u64 {
        task.filter(|task| (*task as usize) < self.task.len()).map_or(0, |task| u64::from(task) + 1)
    }

    /// Number of a task's track and one, 0 for none.
    pub fn task_track_link(&self, task: u32) -> u64 {
        self.task.get(task as usize).map_or(0, |&track| u64::from(track) + 1)
    }

    /// Track and moment of what woke a task.
    pub fn cause(&self, trace: &Trace, wake: u32) -> Option<(u32, u64)> {
        let wake = trace.wakes.get(wake as usize)?;
        let core = || self.core.get(wake.core as usize).map(|&track| (track, wake.time_ns));
        match wake.cause {
            Cause::Unknown => None,
            Cause::Task(task) => self.task.get(task as usize).map(|&track| (track, wake.time_ns)),
            Cause::Request(index) => {
                let request = trace.requests.get(index as usize)?;
                Some((*self.request.get(index as usize)?, request.submit_ns))
            }
            Cause::Segment(index) => {
                let segment = trace.segments.get(index as usize)?;
                Some((*self.connection.get(segment.connection as usize)?, segment.time_ns))
            }
            Cause::Timer => core(),
            Cause::Interrupt(index) => {
                let interrupt = trace.interrupts.get(index as usize)?;
                let track = self.interrupts.get(interrupt.core as usize).copied().flatten();
                track.map(|track| (track, interrupt.time_ns)).or_else(core)
            }
        }
    }
}

/// How many tracks the calls of each track of tasks take.
fn call_depths(trace: &Trace, place: &[u32], tracks: usize) -> Vec<u32> {
    let mut depths = vec![0_u32; tracks];
    for call in &trace.calls {
        if let Some(place) = call.task.and_then(|task| place.get(task as usize)) {
            let depth = &mut depths[*place as usize];
            *depth = (*depth).max(call_level(call.depth) as u32 + 1);
        }
    }
    let mut left = SHARED_TRACKS_MAX as u32;
    for depth in &mut depths {
        *depth = if *depth <= left { *depth } else { 0 };
        left -= *depth;
    }
    depths
}

/// A call's track below the first of its task.
pub fn call_level(depth: u32) -> usize {
    (depth as usize).min(DEPTH_MAX - 1)
}

/// The track of each call below the first of its core. Calls of tasks lie below those that the core is in while it polls them.
fn core_levels(trace: &Trace) -> Vec<u8> {
    let mut open: Vec<Vec<u64>> = vec![Vec::new(); trace.cores.len()];
    let level = |call: &Call| {
        let mut depth = call.depth as usize;
        if let Some(open) = open.get_mut(call.core as usize) {
            open.truncate(open.partition_point(|end_ns| *end_ns > call.start_ns));
            match call.task {
                Some(_) => depth = depth.saturating_add(open.len()),
                None => {
                    open.truncate(depth);
                    open.push(call.end_ns);
                }
            }
        }
        depth.min(DEPTH_MAX - 1) as u8
    };
    trace.calls.iter().map(level).collect()
}

fn mark(flags: &mut [bool], core: u32) {
    if let Some(flag) = flags.get_mut(core as usize) {
        *flag = true;
    }
}

/// Intervals above each other, each in the lowest place that is free.
#[derive(Debug, Clone, Default)]
struct Stack {
    ends: Vec<u64>,
    squeezed: u64,
}

impl Stack {
    fn place(&mut self, above: usize, start_ns: u64, end_ns: u64) -> u32 {
        let above = above.min(DEPTH_MAX - 1);
        if self.ends.len() <= above {
            self.ends.resize(above + 1, 0);
        }
        let free = (above..self.ends.len()).find(|&level| self.ends[level] <= start_ns);
        let level = match free {
            Some(level) => level,
            None if self.ends.len() < DEPTH_MAX => {
                self.ends.push(0);
                self.ends.len() - 1
            }
            None => {
                self.squeezed += 1;
                DEPTH_MAX - 1
            }
        };
        self.ends[level] = self.ends[level].max(end_ns).max(start_ns);
        level as u32
    }
}

/// The track of each task from 0 on, and what the tracks hold.
fn share_tasks(trace: &Trace, squeezed: &mut u64) -> (Vec<u32>, Vec<Shared>) {
    let mut lives = vec![(u64::MAX, 0_u64); trace.tasks.len()];
    let mut lives_in = |task: u32, from: u64, to: u64| {
        if let Some(life) = lives.get_mut(task as usize) {
            *life = (life.0.min(from), life.1.max(to));
        }
    };
    trace.polls.iter().for_each(|poll| lives_in(poll.task, poll.start_ns, poll.end_ns));
    trace.waits.iter().for_each(|wait| lives_in(wait.task, wait.start_ns, wait.end_ns));
    let names: Vec<u64> = trace.tasks.iter().map(|task| u64::from(task.name)).collect();
    share(&lives, &names, squeezed)
}

/// The same of connections; those of one client to one port belong together.
fn share_connections(trace: &Trace, squeezed: &mut u64) -> (Vec<u32>, Vec<Shared>) {
    let mut lives: Vec<(u64, u64)> = trace
        .connections
        .iter()
        .map(|of| (of.start_ns.unwrap_or(trace.start_ns), trace.connection_end_ns(of)))
        .collect();
    for segment in &trace.segments {
        if let Some(life) = lives.get_mut(segment.connection as usize) {
            *life = (life.0.min(segment.time_ns), life.1.max(segment.time_ns.saturating_add(1)));
        }
    }
    let ends = |of: &Connection| u64::from(of.remote) << 16 | u64::from(of.local_port);
    let names: Vec<u64> = trace.connections.iter().map(ends).collect();
    share(&lives, &names, squeezed)
}

/// Tracks for what lives from a moment to another and has a name.
fn share(lives: &[(u64, u64)], names: &[u64], squeezed: &mut u64) -> (Vec<u32>, Vec<Shared>) {
    let mut named: HashMap<u64, u32> = HashMap::new();
    names.iter().for_each(|&name| *named.entry(name).or_default() += 1);
    let mut order: Vec<u32> = (0..lives.len() as u32).collect();
    order.sort_by_key(|&one| lives[one as usize].0);
    let mut tracks: Vec<Shared> = Vec::new();
    let mut track_of = vec![0; lives.len()];
    // Tracks of each name, and when they are free.
    let mut shared: HashMap<u64, BinaryHeap<Reverse<(u64, u32)>>> = HashMap::new();
    for one in order {
        let (from, to) = lives[one as usize];
        let name = names[one as usize];
        let may_share = named[&name] > ALONE_MAX;
        let heap = shared.entry(name).or_default();
        let is_full = tracks.len() >= SHARED_TRACKS_MAX;
        let free = heap.peek().is_some_and(|Reverse((end, _))| *end <= from);
        let track = if (may_share && free) || (is_full && !heap.is_empty()) {
            *squeezed += u64::from(!free);
            heap.pop().map_or(0, |Reverse((_, track))| track)
        } else if is_full {
            *squeezed += 1;
            tracks.len() as u32 - 1
        } else {
            tracks.push(Shared { first: one, count: 0 });
            tracks.len() as u32 - 1
        };
        tracks[track as usize].count += 1;
        heap.push(Reverse((to, track)));
        track_of[one as usize] = track;
    }
    // Tracks in the order in which their first ones are in the trace.
    let mut order: Vec<u32> = (0..tracks.len() as u32).collect();
    order.sort_by_key(|&track| tracks[track as usize].first);
    let mut place = vec![0; tracks.len()];
    order.iter().enumerate().for_each(|(new, &old)| place[old as usize] = new as u32);
    track_of.iter_mut().for_each(|track| *track = place[*track as usize]);
    let sorted = order.iter().map(|&old| tracks[old as usize].clone()).collect();
    (track_of, sorted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_profiler_core::trace::model::{Poll, Task};

    #[test]
    fn tasks_of_a_name_that_follow_each_other_share_tracks() {
        let mut trace = Trace { end_ns: 1_000, ..Trace::default() };
        for number in 0..100_u32 {
            trace.tasks.push(Task { number, name: u32::from(number != 0), ..Task::default() });
            let start_ns = u64::from(number / 2) * 10;
            trace.polls.push(Poll { task: number, start_ns, end_ns: start_ns + 9, ..Poll::default() });
        }
        let plan = Plan::new(&trace);
        // Number 0 has a name of its own; the others are two at a time.
        assert_eq!(plan.task_tracks.len(), 3);
        assert_eq!(plan.squeezed, 0);
        let mut ends = [0; 3];
        for poll in &trace.polls {
            let track = plan.task[poll.task as usize] as usize;
            assert!(poll.start_ns >= ends[track], "two tasks at once in a track");
            ends[track] = poll.end_ns;
        }
        assert_eq!(plan.task_tracks[0].0.count, 1);
    }

    #[test]
    fn a_stack_is_no_higher_than_it_must_be() {
        let mut stack = Stack::default();
        let placed = [(0, 10), (2, 4), (4, 8), (5, 6), (10, 12)].map(|(from, to)| stack.place(0, from, to));
        assert_eq!(placed, [0, 1, 1, 2, 0]);
        for _ in 0..200 {
            stack.place(0, 20, 30);
        }
        assert_eq!((stack.ends.len(), stack.squeezed), (DEPTH_MAX, 200 - DEPTH_MAX as u64));
    }
}
