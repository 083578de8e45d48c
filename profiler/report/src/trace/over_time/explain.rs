//! What happened in a gap: what tasks waited for, what devices and cores did.

use std::collections::BTreeMap;

use glass_profiler_core::trace::model::{BlockKind, Cause, NameId, Trace};

use super::overlap::Overlap;
use crate::trace::label::{self, duration};
use glass_profiler_core::format::{count, percent};

/// A wait is reported if, together with others for the same, it is like the gap at least to this part: 0.5 means that gap
/// and wait overlap in half of the time that either takes.
const LIKENESS_MIN: f64 = 0.5;
/// Waits that are reported.
const WAITS_MAX: usize = 3;

/// Explains gaps of one trace.
#[derive(Debug)]
pub struct Explainer<'a> {
    trace: &'a Trace,
    waits: Overlap,
    polls: Overlap,
    requests: Overlap,
    idles: Overlap,
    losses: Overlap,
}

/// The waits of one task for one thing, as far as they touch a gap.
#[derive(Debug, Default)]
struct Waited {
    /// Time in the gap, and of these waits in all.
    inside_ns: u64,
    all_ns: u64,
    times: u64,
    /// What ended the last.
    cause: Cause,
    ended_ns: u64,
}

impl<'a> Explainer<'a> {
    /// Takes time and memory in proportion to the trace.
    pub fn new(trace: &'a Trace) -> Explainer<'a> {
        Explainer {
            trace,
            waits: Overlap::new(trace.waits.iter().map(|wait| (wait.start_ns, wait.end_ns))),
            polls: Overlap::new(trace.polls.iter().map(|poll| (poll.start_ns, poll.end_ns))),
            requests: Overlap::new(
                trace.requests.iter().map(|request| (request.submit_ns, trace.request_end_ns(request))),
            ),
            idles: Overlap::new(trace.idles.iter().map(|idle| (idle.interval.start_ns, idle.interval.end_ns))),
            losses: Overlap::new(trace.losses.iter().map(|loss| (loss.interval.start_ns, loss.interval.end_ns))),
        }
    }

    /// What happened from one moment to the other, in one line: "task `writer` waited for `console: no room`, until ...; core 0 was
    /// idle for 98 %".
    pub fn explain(&self, start_ns: u64, end_ns: u64) -> String {
        let mut said = self.waits(start_ns, end_ns);
        let is_known = !said.is_empty();
        if let Some(ran) = self.ran(start_ns, end_ns, is_known) {
            said.push(ran);
        }
        said.extend(self.devices(start_ns, end_ns));
        said.extend(self.cores(start_ns, end_ns));
        let lost: u64 = self
            .losses
            .find(start_ns, end_ns)
            .places
            .iter()
            .map(|place| self.trace.losses[*place as usize].events)
            .fold(0, u64::saturating_add);
        if lost > 0 {
            said.push(format!("{} events of this time are lost", count(lost)));
        }
        if said.is_empty() { "unknown".into() } else { said.join("; ") }
    }

    /// The waits that are most like the gap.
    fn waits(&self, start_ns: u64, end_ns: u64) -> Vec<String> {
        let trace = self.trace;
        let gap_ns = end_ns.saturating_sub(start_ns);
        let mut waited: BTreeMap<(u32, u16, NameId), Waited> = BTreeMap::new();
        for (place, weight) in self.waits.find(start_ns, end_ns).weighted() {
            let wait = &trace.waits[place as usize];
            let until_ns = wait.woken_ns.unwrap_or(wait.end_ns).clamp(wait.start_ns, wait.end_ns);
            let inside_ns = until_ns.min(end_ns).saturating_sub(wait.start_ns.max(start_ns));
            let reason = trace.reason_of(wait);
            let (kind, name) = reason.map_or((BlockKind::Other as u16, 0), |reason| (reason.kind as u16, reason.name));
            let sum = waited.entry((wait.task, kind, name)).or_default();
            sum.inside_ns = sum.inside_ns.saturating_add(inside_ns.saturating_mul(weight));
            sum.all_ns = sum.all_ns.saturating_add((until_ns - wait.start_ns).saturating_mul(weight));
            sum.times += weight;
            let cause = wait.wake.and_then(|wake| trace.wakes.get(wake as usize)).map(|wake| wake.cause);
            (sum.cause, sum.ended_ns) = (cause.unwrap_or_default(), until_ns);
        }
        let through: BTreeMap<_, u64> = waited.iter().map(|(key, sum)| (*key, sum.inside_ns)).collect();
        let likeness = |sum: &Waited| {
            let either_ns = gap_ns.saturating_add(sum.all_ns).saturating_sub(sum.inside_ns);
            sum.inside_ns as f64 / either_ns.max(1) as f64
        };
        let mut alike: Vec<(f64, (u32, u16, NameId), Waited)> = waited
            .into_iter()
            .map(|(key, sum)| (likeness(&sum), key, sum))
            .filter(|(likeness, ..)| *likeness >= LIKENESS_MIN)
            .collect();
        alike.sort_by(|a, b| b.0.total_cmp(&a.0));
        let more = alike.len().saturating_sub(WAITS_MAX);
        alike.truncate(WAITS_MAX);
        let mut said: Vec<String> = alike
            .iter()
            .map(|(_, (task, kind, name), sum)| {
                let reason = label::reason(trace, BlockKind::from_number(*kind), *name);
                let share = match sum.inside_ns.saturating_mul(100) >= gap_ns.saturating_mul(99) {
                    true => String::new(),
                    false => format!(" for {}", duration(sum.inside_ns)),
                };
                let times = if sum.times > 1 { format!(" ({} times)", count(sum.times)) } else { String::new() };
                format!(
                    "task `{}` waited for `{reason}`{share}{times}{}",
                    label::task(trace, *task),
                    self.ended(sum, end_ns)
                )
            })
            .collect();
        if more > 0 {
            said.push(format!("{} more tasks waited in the same way", count(more as u64)));
        }
        if said.is_empty() { self.many(&through, gap_ns) } else { said }
    }

    /// Tasks that waited for most of the gap, though not for it alone, by name and what they waited for.
    fn many(&self, through: &BTreeMap<(u32, u16, NameId), u64>, gap_ns: u64) -> Vec<String> {
        let trace = self.trace;
        let mut tasks: BTreeMap<(NameId, u16, NameId), u64> = BTreeMap::new();
        for ((task, kind, name), inside_ns) in through {
            if inside_ns.saturating_mul(2) >= gap_ns {
                let task_name = trace.tasks.get(*task as usize).map_or(0, |task| task.name);
                *tasks.entry((task_name, *kind, *name)).or_default() += 1;
            }
        }
        let mut tasks: Vec<_> = tasks.into_iter().collect();
        tasks.sort_by_key(|(_, number)| std::cmp::Reverse(*number));
        let said = tasks.iter().take(WAITS_MAX).map(|((task, kind, name), number)| {
            let reason = label::reason(trace, BlockKind::from_number(*kind), *name);
            let task = label::quoted(trace, *task);
            match number {
                1 => format!("a task {task} waited for `{reason}`"),
                number => format!("{} tasks {task} waited for `{reason}`", count(*number)),
            }
        });
        said.collect()
    }

    /// Who ended the wait, if that was at the end of the gap.
    fn ended(&self, sum: &Waited, end_ns: u64) -> String {
        if sum.ended_ns > end_ns {
            return String::new();
        }
        match sum.cause {
            Cause::Unknown => String::new(),
            Cause::Request(index) => {
                let Some(request) = self.trace.requests.get(index as usize) else { return String::new() };
                let device = label::device(self.trace, request.device, request.operation);
                format!(" until {} request {} completed", device.trim_end_matches(" request"), request.number)
            }
            Cause::Segment(_) => " until a segment was received".into(),
            Cause::Timer => " until a timer".into(),
            Cause::Interrupt(index) => {
                let device = self.trace.interrupts.get(index as usize).map_or(0, |interrupt| interrupt.device);
                let of = if device == 0 { "the timer".into() } else { label::quoted(self.trace, device) };
                format!(" until an interrupt of {of}")
            }
            Cause::Task(task) => format!(" until task `{}` woke it", label::task(self.trace, task)),
        }
    }

    /// Tasks that ran for a good part of the gap.
    fn ran(&self, start_ns: u64, end_ns: u64, is_known: bool) -> Option<String> {
        let gap_ns = end_ns.saturating_sub(start_ns).max(1);
        let mut ran: BTreeMap<u32, u64> = BTreeMap::new();
        for (place, weight) in self.polls.find(start_ns, end_ns).weighted() {
            let poll = &self.trace.polls[place as usize];
            let inside_ns = poll.end_ns.min(end_ns).saturating_sub(poll.start_ns.max(start_ns));
            let sum_ns = ran.entry(poll.task).or_default();
            *sum_ns = sum_ns.saturating_add(inside_ns.saturating_mul(weight));
        }
        let (task, ns) = ran.into_iter().max_by_key(|(_, ns)| *ns)?;
        // A task that runs explains much, unless another is known to have waited.
        let part = if is_known { 2 } else { 10 };
        (ns.saturating_mul(part) >= gap_ns)
            .then(|| format!("task `{}` ran for {}", label::task(self.trace, task), percent(ns.min(gap_ns), gap_ns)))
    }

    /// Devices that had requests in flight.
    fn devices(&self, start_ns: u64, end_ns: u64) -> Vec<String> {
        let trace = self.trace;
        let mut devices: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for (place, weight) in self.requests.find(start_ns, end_ns).weighted() {
            let request = &trace.requests[place as usize];
            let spans_it = request.submit_ns <= start_ns && trace.request_end_ns(request) >= end_ns;
            let sum = devices.entry(request.device).or_default();
            *sum = (sum.0 + weight, sum.1 + u64::from(spans_it));
        }
        let said = devices.iter().take(WAITS_MAX).map(|(device, (requests, through))| {
            let name = trace.devices.get(*device as usize).map_or(0, |device| device.name);
            let through = match through {
                0 => String::new(),
                number => format!(", {} all the time", count(*number)),
            };
            let plural = if *requests == 1 { "request" } else { "requests" };
            format!("{} had {} {plural} in flight{through}", label::quoted(trace, name), count(*requests))
        });
        said.collect()
    }

    /// How long the cores were idle.
    fn cores(&self, start_ns: u64, end_ns: u64) -> Option<String> {
        let trace = self.trace;
        let gap_ns = end_ns.saturating_sub(start_ns).max(1);
        let mut idle = vec![0u64; trace.cores.len()];
        for (place, weight) in self.idles.find(start_ns, end_ns).weighted() {
            let interval = trace.idles[place as usize].interval;
            let inside_ns = interval.end_ns.min(end_ns).saturating_sub(interval.start_ns.max(start_ns));
            if let Some(sum_ns) = idle.get_mut(interval.core as usize) {
                *sum_ns = sum_ns.saturating_add(inside_ns.saturating_mul(weight));
            }
        }
        let parts: Vec<String> = trace
            .cores
            .iter()
            .zip(&idle)
            .filter(|(_, ns)| **ns > 0)
            .take(4)
            .map(|(core, ns)| {
                format!("{} {}", glass_profiler_core::names::printable(&core.name), percent((*ns).min(gap_ns), gap_ns))
            })
            .collect();
        (!parts.is_empty()).then(|| format!("idle: {}", parts.join(", ")))
    }
}
