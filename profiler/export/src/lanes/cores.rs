//! Tracks of cores: polls of tasks, idle times, interrupts, functions and spans, and missing events.

use std::io;

use glass_formats::trace::WakeSource;
use glass_profiler_core::format::count;
use glass_profiler_core::names::printable;
use glass_profiler_core::trace::model::{Trace, Value};

use super::flows::{Step, Wakes, messages};
use super::{Board, Lane, Mark, by_time, core_name, list, task_name, text};

const CUT: &[(&str, Value)] = &[("is_cut", Value::Bool(true))];

#[derive(Clone, Copy)]
enum Item {
    Poll(usize),
    Idle(usize),
    Spin(usize),
}

pub(super) fn draw(board: &mut Board<'_>) -> io::Result<()> {
    let trace = board.trace;
    // In the order of the cores, not of their first events.
    for core in 0..trace.cores.len() as u32 {
        board.describe(Lane::Core(core), || core_name(trace, core), false)?;
    }
    let polls = trace.polls.iter().enumerate().map(|(index, poll)| (poll.start_ns, poll.end_ns, Item::Poll(index)));
    let idles = trace
        .idles
        .iter()
        .enumerate()
        .map(|(index, idle)| (idle.interval.start_ns, idle.interval.end_ns, Item::Idle(index)));
    let spins = trace.spins.iter().enumerate().map(|(index, spin)| (spin.start_ns, spin.end_ns, Item::Spin(index)));
    for item in by_time(vec![list(idles), list(spins), list(polls)]) {
        slice(board, item)?;
    }
    interrupts(board)?;
    calls(board)?;
    let mut ends = messages(trace).into_iter().peekable();
    for (index, visit) in (0u32..).zip(&trace.span_visits) {
        let steps: Vec<Step> =
            std::iter::from_fn(|| ends.next_if(|(of, _)| *of <= index)).map(|(_, step)| step).collect();
        let span = trace.spans.get(visit.span as usize);
        let name = span.map_or_else(String::new, |span| printable(trace.name(span.name)));
        let details = [("span", Value::Unsigned(span.map_or(0, |span| span.number)))];
        let lane = Lane::CoreSpans(visit.interval.core);
        let mark = Mark::new(lane, visit.interval.start_ns, visit.interval.end_ns, "span", &name);
        board.slice(&Mark { details: &details, steps: &steps, ..mark }, || "spans".to_owned())?;
    }
    for loss in &trace.losses {
        let name = format!("{} events are missing", count(loss.events));
        let lane = Lane::CoreMissing(loss.interval.core);
        let details = [("events", Value::Unsigned(loss.events))];
        let mark = Mark::new(lane, loss.interval.start_ns, loss.interval.end_ns, "missing", &name);
        board.slice(&Mark { details: &details, ..mark }, || "missing events".to_owned())?;
    }
    Ok(())
}

fn slice(board: &mut Board<'_>, item: Item) -> io::Result<()> {
    let trace = board.trace;
    let (core, mark_start, mark_end, category, name, details): (_, _, _, _, _, &[(&str, Value)]) = match item {
        Item::Poll(index) => {
            let poll = &trace.polls[index];
            let cut = if poll.is_cut { CUT } else { &[] };
            (poll.core, poll.start_ns, poll.end_ns, "poll", task_name(trace, poll.task), cut)
        }
        Item::Idle(index) => {
            let idle = &trace.idles[index];
            let ended_by = ended_by(trace, idle.source, idle.device);
            let details = [("ended_by", text(ended_by))];
            let mark =
                Mark::new(Lane::Core(idle.interval.core), idle.interval.start_ns, idle.interval.end_ns, "idle", "idle");
            return board.slice(&Mark { details: &details, ..mark }, || core_name(trace, idle.interval.core));
        }
        Item::Spin(index) => {
            let spin = &trace.spins[index];
            (spin.core, spin.start_ns, spin.end_ns, "spin", "spinning".to_owned(), &[])
        }
    };
    let mark = Mark::new(Lane::Core(core), mark_start, mark_end, category, &name);
    board.slice(&Mark { details, ..mark }, || core_name(trace, core))
}

fn ended_by(trace: &Trace, source: WakeSource, device: u32) -> String {
    match (source, trace.name(device)) {
        (WakeSource::Timer, _) => "a deadline".to_owned(),
        (WakeSource::Core, _) => "another core".to_owned(),
        (WakeSource::Device, "") => "a device".to_owned(),
        (WakeSource::Device, name) => printable(name),
        (WakeSource::Other, _) => "something else".to_owned(),
    }
}

fn interrupts(board: &mut Board<'_>) -> io::Result<()> {
    let trace = board.trace;
    let wakes = Wakes::new(trace);
    let mut steps = Vec::new();
    for (index, interrupt) in (0u32..).zip(&trace.interrupts) {
        steps.clear();
        wakes.of_interrupt(index, &mut steps);
        let device = trace.name(interrupt.device);
        let name = if device.is_empty() { "interrupt: timer".to_owned() } else { format!("interrupt: {device}") };
        let name = printable(&name);
        let details = [("vector", Value::Unsigned(interrupt.vector))];
        let mark = Mark::moment(Lane::Core(interrupt.core), interrupt.time_ns, "interrupt", &name);
        let mark = Mark { steps: &steps, details: &details, ..mark };
        board.instant(&mark, || core_name(trace, interrupt.core))?;
    }
    Ok(())
}

fn calls(board: &mut Board<'_>) -> io::Result<()> {
    let trace = board.trace;
    let names: Vec<String> = trace.functions.iter().map(|function| printable(&function.name)).collect();
    let mut details = Vec::new();
    for call in &trace.calls {
        details.clear();
        let function = trace.functions.get(call.function as usize);
        if let Some(file) = function.and_then(|function| function.file.as_deref()) {
            let line = function.and_then(|function| function.line).unwrap_or(0);
            details.push(("place", text(format!("{file}:{line}"))));
        }
        for (name, is_so) in [("is_tail", call.is_tail), ("is_cut", call.is_cut)] {
            if is_so {
                details.push((name, Value::Bool(true)));
            }
        }
        let name = names.get(call.function as usize).map_or("function", String::as_str);
        let mark = Mark::new(Lane::CoreFunctions(call.core), call.start_ns, call.end_ns, "function", name);
        board.slice(&Mark { details: &details, ..mark }, || "functions".to_owned())?;
    }
    Ok(())
}
