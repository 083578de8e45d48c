//! Functions: how often they were called, how long they took with and without those that they called.

use glass_profile::trace::model::{Call, Trace};

use super::Settings;
use super::calls::hidden;
use super::label::duration;
use super::table::Table;
use crate::format::{count, percent};
use crate::names::{printable, short};

#[derive(Debug, Clone, Default)]
pub(super) struct Total {
    pub(super) function: u32,
    pub(super) calls: u64,
    /// Time in it and what it called; a call of itself does not count twice.
    pub(super) total_ns: u64,
    pub(super) self_ns: u64,
    pub(super) max_ns: u64,
}

/// The functions that are not hidden, with the most own time first. Own time of hidden ones counts for the nearest that
/// is not and called them.
pub(super) fn totals(trace: &Trace, hide: &[String]) -> Vec<Total> {
    let hidden = hidden(trace, hide);
    let mut totals: Vec<Total> =
        (0..trace.functions.len() as u32).map(|function| Total { function, ..Total::default() }).collect();
    let mut children_ns = vec![0u64; trace.calls.len()];
    let mut counts_for: Vec<Option<u32>> = vec![None; trace.calls.len()];
    for (index, call) in trace.calls.iter().enumerate() {
        let own = (!hidden[call.function as usize]).then_some(call.function);
        counts_for[index] = own.or_else(|| call.parent.and_then(|parent| counts_for[parent as usize]));
        if let Some(parent) = call.parent {
            let children_ns = &mut children_ns[parent as usize];
            *children_ns = children_ns.saturating_add(call.end_ns - call.start_ns);
        }
    }
    // The calls of one task, or of one core outside of tasks, are in the order of a walk through their tree.
    let owner = |call: &Call| (call.task, if call.task.is_some() { 0 } else { call.core });
    let mut order: Vec<u32> = (0..trace.calls.len() as u32).collect();
    order.sort_by_key(|index| owner(&trace.calls[*index as usize]));
    let mut open: Vec<u32> = Vec::new();
    let mut open_count = vec![0u32; trace.functions.len()];
    for index in order {
        let call = &trace.calls[index as usize];
        while open.last().is_some_and(|last| Some(*last) != call.parent) {
            let closed = open.pop().map_or(0, |last| trace.calls[last as usize].function);
            open_count[closed as usize] -= 1;
        }
        let took_ns = call.end_ns - call.start_ns;
        let total = &mut totals[call.function as usize];
        total.calls += 1;
        total.max_ns = total.max_ns.max(took_ns);
        if open_count[call.function as usize] == 0 {
            total.total_ns = total.total_ns.saturating_add(took_ns);
        }
        open_count[call.function as usize] += 1;
        open.push(index);
        if let Some(function) = counts_for[index as usize] {
            let own_ns = took_ns.saturating_sub(children_ns[index as usize]);
            let total = &mut totals[function as usize];
            total.self_ns = total.self_ns.saturating_add(own_ns);
        }
    }
    totals.retain(|total| !hidden[total.function as usize] && total.calls > 0);
    totals.sort_by_key(|total| std::cmp::Reverse((total.self_ns, total.total_ns)));
    totals
}

pub(super) fn text(trace: &Trace, settings: &Settings) -> String {
    let totals = totals(trace, &settings.hide);
    let all_ns = totals.iter().fold(0u64, |sum, total| sum.saturating_add(total.self_ns));
    let mut out = format!("Functions: {} calls of {}", count(trace.calls.len() as u64), count(totals.len() as u64));
    if !settings.hide.is_empty() {
        out.push_str(&format!(", time of {} counts for their callers", settings.hide.join(", ")));
    }
    out.push('\n');
    let mut table = Table::new(&["calls", "self", "self %", "total", "mean", "max", "<function"]);
    for total in totals.iter().filter(|total| total.total_ns >= settings.min_ns) {
        let name = trace.functions.get(total.function as usize).map_or("", |function| function.name.as_str());
        table.row(vec![
            count(total.calls),
            duration(total.self_ns),
            percent(total.self_ns, all_ns),
            duration(total.total_ns),
            duration(total.total_ns / total.calls.max(1)),
            duration(total.max_ns),
            short(&printable(name)),
        ]);
    }
    out.push_str(&table.lines());
    out
}
