//! Tracks of tasks: when each runs, what it waits on in between, and what wakes it.

use std::collections::HashMap;
use std::io;

use glass_profiler_core::names::printable;
use glass_profiler_core::trace::model::{Cause, Trace, Value, Wait};
use glass_profiler_core::words;

use super::flows::{Place, Step, Wakes, wake_arrow};
use super::{Board, Lane, Mark, by_time, core_name, device_name, list, task_name, text};

/// Reasons of one wait that are named.
const REASONS_MAX: usize = 4;

#[derive(Clone, Copy)]
enum Item {
    Poll(usize),
    Wait(usize),
}

pub(super) fn draw(board: &mut Board<'_>) -> io::Result<()> {
    let trace = board.trace;
    for task in 0..trace.tasks.len() as u32 {
        board.describe(Lane::Task(task), || task_name(trace, task), false)?;
    }
    wakes(board)?;
    let polls = trace.polls.iter().enumerate().map(|(index, poll)| (poll.start_ns, poll.end_ns, Item::Poll(index)));
    let waits = trace.waits.iter().enumerate().map(|(index, wait)| (wait.start_ns, wait.end_ns, Item::Wait(index)));
    // The last wait of each task: its end, and what ended it.
    let mut last: HashMap<u32, (u64, u32)> = HashMap::new();
    for item in by_time(vec![list(waits), list(polls)]) {
        match item {
            Item::Wait(index) => {
                let wait = &trace.waits[index];
                if let Some(wake) = wait.wake {
                    last.insert(wait.task, (wait.end_ns, wake));
                }
                draw_wait(board, wait)?;
            }
            Item::Poll(index) => {
                let poll = &trace.polls[index];
                let wake = last.remove(&poll.task).filter(|(end_ns, _)| *end_ns == poll.start_ns);
                let step = wake.map(|(_, wake)| Step { arrow: wake_arrow(wake), place: Place::End });
                let mut details = vec![("core", text(core_name(trace, poll.core)))];
                for (name, is_so) in [("is_last", poll.is_last), ("is_cut", poll.is_cut)] {
                    if is_so {
                        details.push((name, Value::Bool(true)));
                    }
                }
                let mark = Mark::new(Lane::Task(poll.task), poll.start_ns, poll.end_ns, "poll", "runs");
                let mark = Mark { steps: step.as_slice(), details: &details, ..mark };
                board.slice(&mark, || task_name(trace, poll.task))?;
            }
        }
    }
    Ok(())
}

/// Wake-ups: on the track of the waking task, or of the core.
fn wakes(board: &mut Board<'_>) -> io::Result<()> {
    let trace = board.trace;
    let wakes = Wakes::new(trace);
    for (index, wake) in (0u32..).zip(&trace.wakes) {
        let place = match wake.cause {
            Cause::Request(_) | Cause::Segment(_) | Cause::Interrupt(_) => Place::Pass,
            Cause::Task(_) | Cause::Timer | Cause::Unknown => Place::Begin,
        };
        let step = wakes.is_used(index).then_some(Step { arrow: wake_arrow(index), place });
        let name = format!("wakes {}", task_name(trace, wake.task));
        let cause = cause(trace, wake.cause).map(|cause| ("because_of", text(cause)));
        let (lane, lane_name) = match wake.cause {
            Cause::Task(task) => (Lane::Task(task), task_name(trace, task)),
            _ => (Lane::Core(wake.core), core_name(trace, wake.core)),
        };
        let mark = Mark::moment(lane, wake.time_ns, "wake", &name);
        board.instant(&Mark { steps: step.as_slice(), details: cause.as_slice(), ..mark }, || lane_name)?;
    }
    Ok(())
}

/// The wait until the wake-up, then the scheduling delay until the poll.
fn draw_wait(board: &mut Board<'_>, wait: &Wait) -> io::Result<()> {
    let trace = board.trace;
    let lane = Lane::Task(wait.task);
    let woken_ns = wait.woken_ns.unwrap_or(wait.end_ns).clamp(wait.start_ns, wait.end_ns.max(wait.start_ns));
    if woken_ns > wait.start_ns || wait.woken_ns.is_none() {
        let (name, object) = reasons(trace, wait);
        let mut details = Vec::new();
        if !object.is_empty() {
            details.push(("for", text(object)));
        }
        let wake = wait.wake.and_then(|wake| trace.wakes.get(wake as usize));
        if let Some(cause) = wake.and_then(|wake| cause(trace, wake.cause)) {
            details.push(("woken_by", text(cause)));
        }
        if wait.is_cut {
            details.push(("is_cut", Value::Bool(true)));
        }
        let mark = Mark::new(lane, wait.start_ns, woken_ns, "wait", &name);
        board.slice(&Mark { details: &details, ..mark }, || task_name(trace, wait.task))?;
    }
    if woken_ns < wait.end_ns {
        board.slice(&Mark::new(lane, woken_ns, wait.end_ns, "runnable", "runnable"), || task_name(trace, wait.task))?;
    }
    Ok(())
}

/// What a task waits for: a short name that many waits share, and the details that distinguish this one.
fn reasons(trace: &Trace, wait: &Wait) -> (String, String) {
    let reasons = trace.reasons_of(wait);
    let mut names: Vec<String> = Vec::new();
    let mut objects: Vec<String> = Vec::new();
    for reason in reasons.iter().take(REASONS_MAX) {
        let name = words::wait(reason.kind, trace.name(reason.name));
        let object = words::wait_object(reason.kind, reason.object);
        objects.push(if object.is_empty() { name.clone() } else { format!("{name}, {object}") });
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if reasons.len() > REASONS_MAX {
        objects.push(format!("{} others", reasons.len() - REASONS_MAX));
    }
    match names.is_empty() {
        true => ("waits".to_owned(), String::new()),
        false => (format!("waits on {}", names.join(" or ")), objects.join("; or ")),
    }
}

fn cause(trace: &Trace, cause: Cause) -> Option<String> {
    match cause {
        Cause::Unknown => None,
        Cause::Task(task) => Some(task_name(trace, task)),
        Cause::Request(request) => {
            let request = trace.requests.get(request as usize)?;
            Some(format!("{}: request {}", device_name(trace, request.device), request.number))
        }
        Cause::Segment(segment) => {
            let segment = trace.segments.get(segment as usize)?;
            let connection = trace.connections.get(segment.connection as usize)?;
            Some(format!("a segment of connection {}", connection.number))
        }
        Cause::Timer => Some("a deadline".to_owned()),
        Cause::Interrupt(interrupt) => {
            let device = trace.name(trace.interrupts.get(interrupt as usize)?.device);
            Some(format!("interrupt: {}", if device.is_empty() { "timer".to_owned() } else { printable(device) }))
        }
    }
}
