//! What is in a trace, in one screen or two.

use std::collections::BTreeMap;

use glass_profile::model::Distribution;
use glass_profile::trace::model::{Direction, NameId, Trace};

use super::label::duration;
use super::path::dominating_wait;
use super::table::{Table, wrap};
use super::{cores, devices, tasks};
use crate::format::count;
use crate::names::printable;

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
        duration(trace.end_ns - trace.start_ns),
        count(trace.event_count),
        count(trace.cores.len() as u64),
        if trace.cores.len() == 1 { "core or thread" } else { "cores or threads" }
    );
    if !trace.warnings.is_empty() {
        out.push_str("\nWarnings\n");
        for warning in &trace.warnings {
            let said = wrap(4, &printable(warning));
            out.push_str(&format!("  !{}", &said[3..]));
        }
    }
    let spans = spans_by_time(trace);
    for name in spans.iter().take(PARAGRAPHS_MAX) {
        if let Some(said) = dominating_wait(trace, trace.name(*name)) {
            out.push_str(&format!("\n{}", wrap(0, &said)));
        }
    }
    for (is_there, part) in [
        (!trace.cores.is_empty(), cores::text as fn(&Trace) -> String),
        (!trace.tasks.is_empty(), tasks::text),
        (!trace.requests.is_empty(), devices::text),
        (!trace.segments.is_empty(), network),
        (!trace.counters.is_empty(), counters),
        (!trace.spans.is_empty(), span_table),
        (!trace.functions.is_empty(), functions),
        (!trace.messages.is_empty(), messages),
    ] {
        if is_there {
            out.push_str(&format!("\n{}", part(trace)));
        }
    }
    out
}

/// Names of spans whose begin and end are known, those that took most together first.
fn spans_by_time(trace: &Trace) -> Vec<NameId> {
    let mut sums: BTreeMap<NameId, u64> = BTreeMap::new();
    for span in &trace.spans {
        if let Some(took_ns) = span.duration_ns() {
            let sum_ns = sums.entry(span.name).or_default();
            *sum_ns = u64::saturating_add(*sum_ns, took_ns);
        }
    }
    let mut names: Vec<NameId> = sums.keys().copied().collect();
    names.sort_by_key(|name| std::cmp::Reverse(sums[name]));
    names
}

fn network(trace: &Trace) -> String {
    let mut out = format!("Network: {} connections\n", count(trace.connections.len() as u64));
    let mut table = Table::new(&["<segments", "number", "bytes"]);
    for (direction, name) in [(Direction::In, "came"), (Direction::Out, "left"), (Direction::Again, "left again")] {
        let of_it = trace.segments.iter().filter(|segment| segment.direction == direction);
        let (number, bytes) = of_it.fold((0, 0), |(n, bytes), segment| (n + 1, bytes + u64::from(segment.bytes)));
        table.row(vec![name.into(), count(number), count(bytes)]);
    }
    out.push_str(&table.lines());
    out
}

fn counters(trace: &Trace) -> String {
    let mut out = format!("Counters: {}\n", count(trace.counters.len() as u64));
    let mut table = Table::new(&["<name", "values", "first", "last", "least", "most", "per second"]);
    let seconds = (trace.end_ns - trace.start_ns) as f64 / 1e9;
    for counter in &trace.counters {
        let values = || counter.points.iter().map(|(_, value)| *value);
        let (first, last) = (values().next().unwrap_or(0), values().next_back().unwrap_or(0));
        let rate = match counter.is_gauge || seconds <= 0.0 {
            true => String::new(),
            false => format!("{:.0}", (last as f64 - first as f64) / seconds),
        };
        table.row(vec![
            printable(trace.name(counter.name)),
            count(counter.points.len() as u64),
            first.to_string(),
            last.to_string(),
            values().min().unwrap_or(0).to_string(),
            values().max().unwrap_or(0).to_string(),
            rate,
        ]);
    }
    out.push_str(&table.lines());
    out
}

fn span_table(trace: &Trace) -> String {
    let mut out = format!("Spans: {}\n", count(trace.spans.len() as u64));
    let mut table = Table::new(&["<name", "number", "not over", "together", "median", "p99", "max"]);
    let names = spans_by_time(trace);
    for name in names.iter().take(super::table::ROWS_MAX) {
        let mut durations = Vec::new();
        let (mut number, mut open) = (0, 0);
        for span in trace.spans.iter().filter(|span| span.name == *name) {
            number += 1;
            durations.extend(span.duration_ns());
            open += u64::from(span.end_ns.is_none());
        }
        let distribution = Distribution::of(&mut durations);
        table.row(vec![
            printable(trace.name(*name)),
            count(number),
            count(open),
            duration(distribution.sum_ns),
            duration(distribution.median_ns),
            duration(distribution.p99_ns),
            duration(distribution.max_ns),
        ]);
    }
    out.push_str(&table.lines());
    out
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
            super::label::moment(trace, message.time_ns),
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
