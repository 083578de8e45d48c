//! Functions: how often they were called, how long they took with and without those that they called.

use glass_profiler_core::trace::model::{Call, Trace};

#[derive(Debug, Clone, Default)]
pub(super) struct Total {
    pub(super) function: u32,
    pub(super) calls: u64,
    /// Time in it and what it called; a call of itself does not count twice.
    pub(super) total_ns: u64,
    pub(super) self_ns: u64,
    pub(super) max_ns: u64,
    /// The longest call: index into `Trace::calls`.
    pub(super) longest: u32,
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
        let own = hidden.get(call.function as usize).is_some_and(|hidden| !hidden).then_some(call.function);
        let parent = call.parent.filter(|parent| (*parent as usize) < trace.calls.len());
        counts_for[index] = own.or_else(|| parent.and_then(|parent| counts_for[parent as usize]));
        if let Some(parent) = parent {
            let children_ns = &mut children_ns[parent as usize];
            *children_ns = children_ns.saturating_add(call.end_ns.saturating_sub(call.start_ns));
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
        let took_ns = call.end_ns.saturating_sub(call.start_ns);
        let Some(total) = totals.get_mut(call.function as usize) else { continue };
        total.calls += 1;
        if total.calls == 1 || took_ns > total.max_ns {
            (total.max_ns, total.longest) = (took_ns, index);
        }
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

/// Which functions are left out.
pub(super) fn hidden(trace: &Trace, hide: &[String]) -> Vec<bool> {
    trace.functions.iter().map(|function| hide.contains(&function.library)).collect()
}
