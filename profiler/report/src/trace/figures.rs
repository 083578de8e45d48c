//! What a trace adds up to, as numbers. The text, the page and the difference of two traces print these and no others, so that
//! they agree.

use std::collections::BTreeMap;

use glass_profiler_core::model::Distribution;
use glass_profiler_core::trace::model::{BlockKind, Cause, Direction, NameId, Operation, Request, Trace, Wait};

use super::label;

/// All spans of one name.
#[derive(Debug, Clone, Default)]
pub struct SpanFigures {
    /// Their name.
    pub name: NameId,
    /// How many there are, those without a start or an end included.
    pub count: u64,
    /// Those whose end is not in the trace.
    pub open: u64,
    /// Durations of those whose start and end are in the trace.
    pub durations: Distribution,
    /// The longest of these: index into `Trace::spans`.
    pub longest: Option<u32>,
}

/// Spans by name, those with most time in total first.
pub fn spans(trace: &Trace) -> Vec<SpanFigures> {
    let mut by_name: BTreeMap<NameId, (SpanFigures, Vec<u64>)> = BTreeMap::new();
    for (index, span) in (0u32..).zip(&trace.spans) {
        let (figures, durations) = by_name.entry(span.name).or_default();
        figures.count += 1;
        figures.open += u64::from(span.end_ns.is_none());
        let Some(ns) = span.duration_ns() else { continue };
        let known = figures.longest.and_then(|longest| trace.spans[longest as usize].duration_ns());
        if known.is_none_or(|longest_ns| ns > longest_ns) {
            figures.longest = Some(index);
        }
        durations.push(ns);
    }
    let mut spans: Vec<SpanFigures> = by_name
        .into_iter()
        .map(|(name, (figures, mut ns))| SpanFigures { name, durations: Distribution::of(&mut ns), ..figures })
        .collect();
    spans.sort_by_key(|span| std::cmp::Reverse(span.durations.sum_ns));
    spans
}

/// What ended a wait: kind and name of the resource, none if it is not known.
pub type Why = Option<(u16, NameId)>;

/// See [`Why`].
pub fn why(trace: &Trace, wait: &Wait) -> Why {
    trace.reason_of(wait).map(|reason| (reason.kind as u16, reason.name))
}

/// The resource of a [`Why`] in words.
pub fn why_text(trace: &Trace, why: Why) -> String {
    let (kind, name) = why.unwrap_or((BlockKind::Other as u16, 0));
    glass_profiler_core::words::resource(BlockKind::from_number(kind), trace.name(name))
}

/// Time until a task was woken, and from then until it ran.
pub fn split(wait: &Wait) -> (u64, u64) {
    let woken_ns = wait.woken_ns.unwrap_or(wait.end_ns).clamp(wait.start_ns, wait.end_ns.max(wait.start_ns));
    (woken_ns - wait.start_ns, wait.end_ns.saturating_sub(woken_ns))
}

/// All waits of the tasks of one name for one resource.
#[derive(Debug, Clone, Default)]
pub struct WaitFigures {
    /// Name of the tasks.
    pub task: NameId,
    /// What they wait for.
    pub why: Why,
    /// How long, without the scheduling delay after it.
    pub durations: Distribution,
    /// What ended most of them, and how many.
    pub ended_by: (String, u64),
    /// The longest: index into `Trace::waits`.
    pub longest: u32,
}

/// Waits by task name and resource, those with most time in total first.
pub fn waits(trace: &Trace) -> Vec<WaitFigures> {
    #[derive(Default)]
    struct Row {
        durations: Vec<u64>,
        /// How many, and one of them.
        causes: BTreeMap<(u8, u32, u16), (u64, Cause)>,
        longest: (u64, u32),
    }
    let mut rows: BTreeMap<(NameId, Why), Row> = BTreeMap::new();
    for (index, wait) in (0u32..).zip(&trace.waits) {
        let (ns, _) = split(wait);
        if ns == 0 {
            continue;
        }
        let task = trace.tasks.get(wait.task as usize).map_or(0, |task| task.name);
        let row = rows.entry((task, why(trace, wait))).or_default();
        row.durations.push(ns);
        if ns > row.longest.0 {
            row.longest = (ns, index);
        }
        let wake = wait.wake.and_then(|wake| trace.wakes.get(wake as usize));
        let cause = wake.map_or(Cause::Unknown, |wake| wake.cause);
        row.causes.entry(cause_key(trace, cause)).or_insert((0, cause)).0 += 1;
    }
    let mut waits: Vec<WaitFigures> = rows
        .into_iter()
        .map(|((task, why), mut row)| WaitFigures {
            task,
            why,
            durations: Distribution::of(&mut row.durations),
            ended_by: row
                .causes
                .into_values()
                .max_by_key(|(count, _)| *count)
                .map(|(count, cause)| (label::cause(trace, cause), count))
                .unwrap_or_default(),
            longest: row.longest.1,
        })
        .collect();
    waits.sort_by_key(|wait| std::cmp::Reverse(wait.durations.sum_ns));
    waits
}

/// The same for causes that have the same words.
fn cause_key(trace: &Trace, cause: Cause) -> (u8, u32, u16) {
    match cause {
        Cause::Unknown => (0, 0, 0),
        Cause::Task(task) => (1, trace.tasks.get(task as usize).map_or(0, |task| task.name), 0),
        Cause::Request(request) => {
            let request = trace.requests.get(request as usize);
            request.map_or((2, u32::MAX, 0), |request| (2, request.device, request.operation as u16))
        }
        Cause::Segment(_) => (3, 0, 0),
        Cause::Timer => (4, 0, 0),
        Cause::Interrupt(_) => (5, 0, 0),
    }
}

/// All requests of one kind to one device.
#[derive(Debug, Clone)]
pub struct DeviceFigures {
    /// Index into `Trace::devices`.
    pub device: u32,
    /// What was requested.
    pub operation: Operation,
    /// How many.
    pub requests: u64,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Those that the device reported as failed.
    pub failed: u64,
    /// Those whose completion is not in the trace.
    pub open: u64,
    /// The most that were in flight at a time.
    pub depth_max: u32,
    /// Latencies of those whose submission and completion are in the trace.
    pub latency: Distribution,
    /// Time in which at least one was in flight; none if no latency is known.
    pub busy_ns: Option<u64>,
    /// The slowest: index into `Trace::requests`.
    pub longest: Option<u32>,
}

/// Requests by device and operation, in their order.
pub fn devices(trace: &Trace) -> Vec<DeviceFigures> {
    let mut rows: BTreeMap<(u32, u16), Vec<u32>> = BTreeMap::new();
    for (index, request) in (0u32..).zip(&trace.requests) {
        rows.entry((request.device, request.operation as u16)).or_default().push(index);
    }
    rows.into_iter().map(|((device, operation), requests)| of_device(trace, device, operation, &requests)).collect()
}

fn of_device(trace: &Trace, device: u32, operation: u16, indices: &[u32]) -> DeviceFigures {
    let requests = || indices.iter().map(|index| (*index, &trace.requests[*index as usize]));
    let count = |is: fn(&Request) -> bool| requests().filter(|(_, request)| is(request)).count() as u64;
    let mut latency: Vec<u64> = requests().filter_map(|(_, request)| request.latency_ns()).collect();
    let (mut busy_ns, mut busy_until_ns) = (0u64, 0);
    // Requests are in the order of their submission.
    for (_, request) in requests() {
        let end_ns = trace.request_end_ns(request);
        busy_ns = busy_ns.saturating_add(end_ns.saturating_sub(request.submit_ns.max(busy_until_ns)));
        busy_until_ns = end_ns.max(busy_until_ns);
    }
    DeviceFigures {
        device,
        operation: Operation::from_number(operation),
        requests: indices.len() as u64,
        bytes: requests().fold(0, |sum: u64, (_, request)| sum.saturating_add(request.bytes.into())),
        failed: count(|request| request.has_failed),
        open: count(|request| request.complete_ns.is_none()),
        depth_max: requests().map(|(_, request)| request.depth).max().unwrap_or(0),
        busy_ns: (busy_ns > 0).then_some(busy_ns),
        longest: requests()
            .filter(|(_, request)| request.latency_ns().is_some())
            .max_by_key(|(_, request)| request.latency_ns())
            .map(|(index, _)| index),
        latency: Distribution::of(&mut latency),
    }
}

/// All tasks of one name.
#[derive(Debug, Clone, Default)]
pub struct TaskFigures {
    /// Their name.
    pub name: NameId,
    /// How many.
    pub tasks: u64,
    /// How often they were polled.
    pub polls: u64,
    /// Time in polls.
    pub running_ns: u64,
    /// Scheduling delay: woken, but not yet running.
    pub runnable_ns: u64,
    /// Time until they were woken.
    pub waiting_ns: u64,
    /// The longest poll: index into `Trace::polls`.
    pub longest_poll: Option<u32>,
    /// What they waited for longest in total, and how long.
    pub mostly: Option<(Why, u64)>,
}

/// Tasks by name, those that ran longest first.
pub fn tasks(trace: &Trace) -> Vec<TaskFigures> {
    let mut by_name: BTreeMap<NameId, TaskFigures> = BTreeMap::new();
    let mut reasons: BTreeMap<(NameId, Why), u64> = BTreeMap::new();
    let name = |task: u32| trace.tasks.get(task as usize).map_or(0, |task| task.name);
    for task in &trace.tasks {
        by_name.entry(task.name).or_default().tasks += 1;
    }
    let poll_ns =
        |poll: u32| trace.polls.get(poll as usize).map_or(0, |poll| poll.end_ns.saturating_sub(poll.start_ns));
    for (index, poll) in (0u32..).zip(&trace.polls) {
        let figures = by_name.entry(name(poll.task)).or_default();
        figures.polls += 1;
        figures.running_ns = figures.running_ns.saturating_add(poll_ns(index));
        if figures.longest_poll.is_none_or(|longest| poll_ns(index) > poll_ns(longest)) {
            figures.longest_poll = Some(index);
        }
    }
    for wait in &trace.waits {
        let figures = by_name.entry(name(wait.task)).or_default();
        let (waiting_ns, runnable_ns) = split(wait);
        figures.waiting_ns = figures.waiting_ns.saturating_add(waiting_ns);
        figures.runnable_ns = figures.runnable_ns.saturating_add(runnable_ns);
        if waiting_ns > 0 {
            let sum_ns = reasons.entry((name(wait.task), why(trace, wait))).or_default();
            *sum_ns = sum_ns.saturating_add(waiting_ns);
        }
    }
    for ((name, why), ns) in reasons {
        let mostly = &mut by_name.entry(name).or_default().mostly;
        if mostly.is_none_or(|(_, most_ns)| ns > most_ns) {
            *mostly = Some((why, ns));
        }
    }
    let mut tasks: Vec<TaskFigures> =
        by_name.into_iter().map(|(name, figures)| TaskFigures { name, ..figures }).collect();
    tasks.sort_by_key(|task| std::cmp::Reverse((task.running_ns, task.waiting_ns)));
    tasks
}

/// One core or thread.
#[derive(Debug, Clone, Copy, Default)]
pub struct CoreFigures {
    /// Time in polls of tasks.
    pub running_ns: u64,
    /// Time in which it polled its devices for work.
    pub spinning_ns: u64,
    /// Time in which it was halted.
    pub idle_ns: u64,
    /// Polls of tasks.
    pub polls: u64,
    /// Interrupts taken.
    pub interrupts: u64,
}

/// In the order of `Trace::cores`.
pub fn cores(trace: &Trace) -> Vec<CoreFigures> {
    let mut cores = vec![CoreFigures::default(); trace.cores.len()];
    let add = |sum: &mut u64, start_ns: u64, end_ns: u64| *sum = sum.saturating_add(end_ns.saturating_sub(start_ns));
    for poll in &trace.polls {
        if let Some(core) = cores.get_mut(poll.core as usize) {
            add(&mut core.running_ns, poll.start_ns, poll.end_ns);
            core.polls += 1;
        }
    }
    for idle in &trace.idles {
        if let Some(core) = cores.get_mut(idle.interval.core as usize) {
            add(&mut core.idle_ns, idle.interval.start_ns, idle.interval.end_ns);
        }
    }
    for spin in &trace.spins {
        if let Some(core) = cores.get_mut(spin.core as usize) {
            add(&mut core.spinning_ns, spin.start_ns, spin.end_ns);
        }
    }
    for interrupt in &trace.interrupts {
        if let Some(core) = cores.get_mut(interrupt.core as usize) {
            core.interrupts += 1;
        }
    }
    cores
}

/// Segments by direction: received, sent, retransmitted, with their number and payload.
pub fn segments(trace: &Trace) -> [(&'static str, u64, u64); 3] {
    [(Direction::In, "received"), (Direction::Out, "sent"), (Direction::Again, "retransmitted")].map(
        |(direction, name)| {
            let of_it = trace.segments.iter().filter(|segment| segment.direction == direction);
            of_it
                .fold((name, 0, 0), |(name, count, bytes), segment| (name, count + 1, bytes + u64::from(segment.bytes)))
        },
    )
}
