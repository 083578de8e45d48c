//! Tasks by name: how often and how long they ran, and what they waited for.

use std::collections::BTreeMap;

use glass_profile::model::Distribution;
use glass_profile::trace::model::{BlockKind, Cause, NameId, Trace, Wait};

use super::label::{self, duration};
use super::table::{ROWS_MAX, Table};
use crate::format::{count, percent};
use crate::names::printable;

/// What all tasks of one name did.
#[derive(Debug, Clone, Default)]
struct Total {
    tasks: u64,
    polls: u64,
    run_ns: u64,
    longest_ns: u64,
    ready_ns: u64,
    wait_ns: u64,
    /// Time by reason.
    reasons: BTreeMap<Why, u64>,
}

/// What a wait was for: kind and name of the reason that ended it, none if it has none.
type Why = Option<(u16, NameId)>;

pub(super) fn why(trace: &Trace, wait: &Wait) -> Why {
    trace.reason_of(wait).map(|reason| (reason.kind as u16, reason.name))
}

pub(super) fn why_text(trace: &Trace, why: Why) -> String {
    match why {
        Some((kind, name)) => label::reason(trace, BlockKind::from_number(kind), name),
        None => "not said".into(),
    }
}

/// Time until it was woken, and from then until its turn.
pub(super) fn split(wait: &Wait) -> (u64, u64) {
    let woken_ns = wait.woken_ns.unwrap_or(wait.end_ns).clamp(wait.start_ns, wait.end_ns);
    (woken_ns - wait.start_ns, wait.end_ns - woken_ns)
}

fn totals(trace: &Trace) -> Vec<(NameId, Total)> {
    let mut totals: BTreeMap<NameId, Total> = BTreeMap::new();
    let name = |task: u32| trace.tasks.get(task as usize).map_or(0, |task| task.name);
    for task in &trace.tasks {
        totals.entry(task.name).or_default().tasks += 1;
    }
    for poll in &trace.polls {
        let total = totals.entry(name(poll.task)).or_default();
        let took_ns = poll.end_ns - poll.start_ns;
        total.polls += 1;
        total.run_ns = total.run_ns.saturating_add(took_ns);
        total.longest_ns = total.longest_ns.max(took_ns);
    }
    for wait in &trace.waits {
        let total = totals.entry(name(wait.task)).or_default();
        let (waited_ns, ready_ns) = split(wait);
        total.wait_ns = total.wait_ns.saturating_add(waited_ns);
        total.ready_ns = total.ready_ns.saturating_add(ready_ns);
        if waited_ns > 0 {
            let sum_ns = total.reasons.entry(why(trace, wait)).or_default();
            *sum_ns = sum_ns.saturating_add(waited_ns);
        }
    }
    let mut totals: Vec<(NameId, Total)> = totals.into_iter().collect();
    totals.sort_by_key(|(_, total)| std::cmp::Reverse((total.run_ns, total.wait_ns)));
    totals
}

/// A row for each name of tasks.
pub(super) fn text(trace: &Trace) -> String {
    let mut out = format!("Tasks: {}\n", count(trace.tasks.len() as u64));
    let mut table = Table::new(&["<task", "tasks", "polls", "ran", "longest", "ready", "waited", "<mostly for"]);
    for (name, total) in totals(trace) {
        let most = total.reasons.iter().max_by_key(|(_, ns)| **ns);
        let mostly = most
            .map_or(String::new(), |(why, ns)| format!("{} {}", percent(*ns, total.wait_ns), why_text(trace, *why)));
        table.row(vec![
            printable(trace.name(name)),
            count(total.tasks),
            count(total.polls),
            duration(total.run_ns),
            duration(total.longest_ns),
            duration(total.ready_ns),
            duration(total.wait_ns),
            mostly,
        ]);
    }
    out.push_str(&table.lines());
    out
}

/// A row for each name of tasks and what they waited for.
pub(super) fn waits(trace: &Trace) -> String {
    struct Row {
        durations: Vec<u64>,
        causes: BTreeMap<String, u64>,
        cut: u64,
    }
    let mut rows: BTreeMap<(NameId, Why), (u64, u64)> = BTreeMap::new();
    let key = |wait: &Wait| (trace.tasks.get(wait.task as usize).map_or(0, |task| task.name), why(trace, wait));
    for wait in &trace.waits {
        let (waited_ns, _) = split(wait);
        if waited_ns > 0 {
            let sum = rows.entry(key(wait)).or_default();
            *sum = (sum.0 + 1, sum.1.saturating_add(waited_ns));
        }
    }
    let all = rows.len();
    let mut order: Vec<_> = rows.into_iter().collect();
    order.sort_by_key(|(_, (_, ns))| std::cmp::Reverse(*ns));
    order.truncate(ROWS_MAX);
    // Histograms only for the rows that are shown.
    let mut shown: BTreeMap<(NameId, Why), Row> =
        order.iter().map(|(key, _)| (*key, Row { durations: Vec::new(), causes: BTreeMap::new(), cut: 0 })).collect();
    for wait in &trace.waits {
        let (waited_ns, _) = split(wait);
        let Some(row) = shown.get_mut(&key(wait)).filter(|_| waited_ns > 0) else { continue };
        row.durations.push(waited_ns);
        row.cut += u64::from(wait.is_cut);
        let cause = wait.wake.and_then(|wake| trace.wakes.get(wake as usize)).map_or(Cause::Unknown, |wake| wake.cause);
        let cause = label::cause(trace, cause);
        *row.causes.entry(cause).or_default() += 1;
    }
    let mut out = format!("Waits: {}\n", count(trace.waits.len() as u64));
    let mut table = Table::new(&["<task", "<waited for", "times", "together", "median", "p99", "max", "<ended by"]);
    for (key, (times, together_ns)) in &order {
        let Some(row) = shown.get_mut(key) else { continue };
        let most = row.causes.iter().max_by_key(|(_, count)| **count);
        let distribution = Distribution::of(&mut row.durations);
        table.row(vec![
            printable(trace.name(key.0)),
            why_text(trace, key.1),
            count(*times),
            duration(*together_ns),
            duration(distribution.median_ns),
            duration(distribution.p99_ns),
            duration(distribution.max_ns),
            most.map_or(String::new(), |(cause, count)| {
                format!("{:.0} % {cause}", *count as f64 * 100.0 / *times as f64)
            }),
        ]);
    }
    out.push_str(&table.lines());
    if all > order.len() {
        out.push_str(&format!("  … and {} more\n", count((all - order.len()) as u64)));
    }
    out
}
