//! What is in a trace, in one screen or two.

use glass_profiler_core::trace::model::Trace;

use super::headed;
use super::path::dominating_wait;
use crate::trace::label::duration;
use crate::trace::table::wrap;
use crate::trace::{figures, sheets};
use glass_profiler_core::format::count;
use glass_profiler_core::names::printable;

/// Names of spans that get a paragraph of their own.
const PARAGRAPHS_MAX: usize = 3;
/// Messages that are shown.
const MESSAGES_MAX: usize = 5;
/// Level of messages that are worth showing: errors and warnings.
const LEVEL_MAX: u8 = 2;

/// What is in a trace: cores, tasks, devices, network, counters, spans, which wait dominates, and what is missing.
pub fn summary(trace: &Trace) -> String {
    let mut out = format!(
        "Trace of {}: {} events on {} {}\n",
        duration(trace.end_ns.saturating_sub(trace.start_ns)),
        count(trace.event_count),
        count(trace.cores.len() as u64),
        if trace.cores.len() == 1 { "core or thread" } else { "cores or threads" },
    );
    if !trace.warnings.is_empty() {
        out.push_str("\nWarnings\n");
        for warning in &trace.warnings {
            let said = wrap(4, &printable(warning));
            out.push_str(&format!("  !{}", &said[3..]));
        }
    }
    // Of calls of MPI there is a table: no task made them.
    let is_mpi = |span: &figures::SpanFigures| trace.mpi_calls.iter().any(|call| call.name == span.name);
    let known = figures::spans(trace).into_iter().filter(|span| span.durations.count > 0 && !is_mpi(span));
    for span in known.take(PARAGRAPHS_MAX) {
        if let Some(said) = dominating_wait(trace, trace.name(span.name)) {
            out.push_str(&format!("\n{}", wrap(0, &said)));
        }
    }
    for (is_there, part) in [
        (!trace.cores.is_empty(), (|trace| headed(&sheets::cores(trace), trace.cores.len())) as fn(&Trace) -> String),
        (!trace.tasks.is_empty(), super::tasks),
        (!trace.requests.is_empty(), super::devices),
        (!trace.segments.is_empty(), network),
        (!trace.counters.is_empty(), |trace| headed(&sheets::counters(trace), trace.counters.len())),
        (!trace.spans.is_empty(), |trace| headed(&sheets::spans(trace), trace.spans.len())),
        (!trace.mpi_calls.is_empty(), super::mpi_waits),
        (!trace.mpi_parts.is_empty(), super::mpi_collectives),
        (!trace.functions.is_empty(), functions),
        (!trace.messages.is_empty(), messages),
    ] {
        if is_there {
            out.push_str(&format!("\n{}", part(trace)));
        }
    }
    out
}

fn network(trace: &Trace) -> String {
    format!("Network: {}\n{}", many(trace.connections.len(), "connection"), sheets::network(trace).lines())
}

/// "1 connection", "2 connections".
fn many(number: usize, one: &str) -> String {
    format!("{} {one}{}", count(number as u64), if number == 1 { "" } else { "s" })
}

fn functions(trace: &Trace) -> String {
    format!(
        "Functions: {} calls of {} functions (--view cumulative and --view calls show them)\n",
        count(trace.calls.len() as u64),
        count(trace.functions.len() as u64)
    )
}

fn messages(trace: &Trace) -> String {
    let mut out = format!("Messages: {}\n", count(trace.messages.len() as u64));
    let bad: Vec<_> = trace.messages.iter().filter(|message| (1..=LEVEL_MAX).contains(&message.level)).collect();
    for message in bad.iter().take(MESSAGES_MAX) {
        let level = if message.level == 1 { "error" } else { "warning" };
        let said = format!(
            "{} {level}, {}: {}",
            crate::trace::label::moment(message.time_ns),
            printable(trace.name(message.place)),
            printable(&message.text)
        );
        out.push_str(&wrap(2, &said));
    }
    if bad.len() > MESSAGES_MAX {
        out.push_str(&format!("  … and {} more errors and warnings\n", count((bad.len() - MESSAGES_MAX) as u64)));
    }
    out
}
