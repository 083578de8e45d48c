//! The tree of calls as it happened: when each began, how deep it is, how long it took.

use glass_profiler_core::trace::model::{Call, Trace};

use super::Settings;
use super::path::chosen_span;
use crate::trace::functions;
use crate::trace::label::{self, duration};
use crate::trace::table::COLUMNS;
use glass_profiler_core::format::{count, cut_end, pad};
use glass_profiler_core::names::printable;

/// Libraries that are left out unless a reader wants them.
pub const HIDDEN_DEFAULT: [&str; 4] = ["core", "alloc", "std", "smoltcp"];
/// Lines of calls.
const LINES_MAX: usize = 2_000;
/// Levels that are indented; deeper ones say how deep.
const INDENT_LEVELS: u32 = 16;

/// Who makes calls: a task, or a core outside of any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    Task(u32),
    Core(u32),
}

/// How a call is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    /// At this level.
    Level(u32),
    /// Left out; those that it calls stand at this level.
    Hidden(u32),
    /// Too short, with all that it calls.
    Pruned,
}

fn owner(call: &Call) -> Owner {
    call.task.map_or(Owner::Core(call.core), Owner::Task)
}

pub(super) fn text(trace: &Trace, settings: &Settings) -> Result<String, String> {
    if trace.calls.is_empty() {
        return Err("no function was traced: build the image with --trace-functions and trace with --functions".into());
    }
    let span = settings.span.as_deref().map(|span| chosen_span(trace, span)).transpose()?;
    let range = span.map(|span| {
        let span = &trace.spans[span as usize];
        (span.task, span.start_ns, trace.span_end_ns(span))
    });
    let is_wanted = |call: &Call| {
        range.is_none_or(|(task, from, to)| call.task == task && call.start_ns < to && call.end_ns > from)
    };
    let hidden = functions::hidden(trace, &settings.hide);
    let mut shown = vec![Shown::Pruned; trace.calls.len()];
    let mut lines: Vec<(Owner, u32)> = Vec::new();
    let mut pruned = 0u64;
    for (index, call) in trace.calls.iter().enumerate() {
        let level = match call.parent.map(|parent| shown[parent as usize]) {
            None => Some(0),
            Some(Shown::Level(level)) => Some(level + 1),
            Some(Shown::Hidden(level)) => Some(level),
            Some(Shown::Pruned) => None,
        };
        let Some(level) = level.filter(|_| call.end_ns - call.start_ns >= settings.min_ns && is_wanted(call)) else {
            pruned += u64::from(is_wanted(call));
            continue;
        };
        shown[index] = match hidden.get(call.function as usize) {
            Some(true) => Shown::Hidden(level),
            _ => Shown::Level(level),
        };
        if matches!(shown[index], Shown::Level(_)) {
            lines.push((owner(call), index as u32));
        }
    }
    // The calls of one owner are in the order of a walk through their tree.
    lines.sort_by_key(|(owner, _)| *owner);
    Ok(render(trace, settings, &shown, &lines, pruned))
}

fn render(trace: &Trace, settings: &Settings, shown: &[Shown], lines: &[(Owner, u32)], pruned: u64) -> String {
    let mut out = format!("Calls of at least {}", duration(settings.min_ns));
    if !settings.hide.is_empty() {
        out.push_str(&format!(", without functions of {}", settings.hide.join(", ")));
    }
    out.push_str(&format!("\n{:>14}  {} {:>10}\n", "start", pad("function", COLUMNS - 30), "duration"));
    let mut last = None;
    for (owner, index) in &lines[..lines.len().min(LINES_MAX)] {
        if last != Some(*owner) {
            last = Some(*owner);
            let name = match owner {
                Owner::Task(task) => label::task(trace, *task),
                Owner::Core(core) => format!(
                    "{}, outside of any task",
                    trace.cores.get(*core as usize).map_or("", |core| core.name.as_str())
                ),
            };
            out.push_str(&format!("{}\n", cut_end(&printable(&name), COLUMNS)));
        }
        let Shown::Level(level) = shown[*index as usize] else { continue };
        out.push_str(&line(trace, &trace.calls[*index as usize], level));
    }
    if lines.len() > LINES_MAX {
        let more = count((lines.len() - LINES_MAX) as u64);
        out.push_str(&format!("… and {more} more calls: give a larger --min, or one --span\n"));
    }
    if pruned > 0 {
        out.push_str(&format!("{} shorter calls are left out\n", count(pruned)));
    }
    out
}

fn line(trace: &Trace, call: &Call, level: u32) -> String {
    let name = trace.functions.get(call.function as usize).map_or("", |function| function.name.as_str());
    let mut text = " ".repeat(2 * level.min(INDENT_LEVELS) as usize);
    if level > INDENT_LEVELS {
        text.push_str(&format!("({level}) "));
    }
    text.push_str(&printable(name));
    for (is_it, mark) in [(call.is_tail, " →"), (call.is_cut, " (cut)")] {
        text.push_str(if is_it { mark } else { "" });
    }
    let width = COLUMNS - 30;
    let start = label::moment(call.start_ns);
    let took = duration(call.end_ns - call.start_ns);
    format!("{start:>14}  {} {took:>10}\n", pad(&cut_end(&text, width), width))
}
