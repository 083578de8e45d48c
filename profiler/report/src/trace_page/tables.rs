//! Sums of a trace as tables: tasks, waits by reason, devices, spans, functions.
//!
//! A cell that refers to a moment holds lane and time, so that the page can go there.

use std::collections::HashMap;

use glass_profile::model::Distribution;
use glass_profile::trace::model::Operation;
use serde::Serialize;
use serde_json::{Value, json};

use super::book::Book;
use super::kinds::{self, wait_word};

/// Rows of a table; those that took longest are kept.
const ROWS_MAX: usize = 2_000;

/// How the page shows a column.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Cell {
    Text,
    Count,
    Bytes,
    /// Nanoseconds.
    Time,
    /// `[nanoseconds, lane, start]`.
    Moment,
}

/// A table.
#[derive(Debug, Serialize)]
pub struct Table {
    pub name: &'static str,
    pub columns: Vec<(&'static str, Cell)>,
    pub rows: Vec<Vec<Value>>,
    /// Rows that there was no room for.
    pub rows_left_out: usize,
    /// The column that it is sorted by at first, the largest on top.
    pub sort: usize,
}

impl Table {
    fn new(name: &'static str, sort: usize, columns: &[(&'static str, Cell)], mut rows: Vec<Vec<Value>>) -> Table {
        let key = |row: &Vec<Value>| row[sort].as_u64().or_else(|| row[sort][0].as_u64()).unwrap_or(0);
        rows.sort_by_key(|row| std::cmp::Reverse(key(row)));
        let rows_left_out = rows.len().saturating_sub(ROWS_MAX);
        rows.truncate(ROWS_MAX);
        Table { name, columns: columns.to_vec(), rows, rows_left_out, sort }
    }
}

/// The longest of some intervals, and where it is.
#[derive(Debug, Clone, Copy, Default)]
struct Longest {
    ns: u64,
    lane: u32,
    start_ns: u64,
}

impl Longest {
    fn see(&mut self, ns: u64, lane: u32, start_ns: u64) {
        if ns >= self.ns {
            *self = Longest { ns, lane, start_ns };
        }
    }

    fn value(&self, book: &Book) -> Value {
        json!([self.ns, self.lane, book.time(self.start_ns)])
    }
}

/// The tables that have rows.
pub fn all(book: &Book) -> Vec<Table> {
    let tables = [tasks(book), waits(book), devices(book), spans(book), functions(book)];
    tables.into_iter().filter(|table| !table.rows.is_empty()).collect()
}

fn tasks(book: &Book) -> Table {
    #[derive(Clone, Default)]
    struct Sum {
        polls: u64,
        running_ns: u64,
        ready_ns: u64,
        waiting_ns: u64,
        longest: Longest,
        longest_ready: Longest,
    }
    let trace = book.trace;
    let mut sums = vec![Sum::default(); trace.tasks.len()];
    for poll in &trace.polls {
        let Some(sum) = sums.get_mut(poll.task as usize) else { continue };
        let ns = poll.end_ns.saturating_sub(poll.start_ns);
        sum.polls += 1;
        sum.running_ns = sum.running_ns.saturating_add(ns);
        sum.longest.see(ns, book.plan.task[poll.task as usize], poll.start_ns);
    }
    for wait in &trace.waits {
        let Some(sum) = sums.get_mut(wait.task as usize) else { continue };
        let woken = wait.woken_ns.unwrap_or(wait.end_ns);
        let ready = wait.end_ns.saturating_sub(woken);
        sum.ready_ns = sum.ready_ns.saturating_add(ready);
        sum.waiting_ns = sum.waiting_ns.saturating_add(woken.saturating_sub(wait.start_ns));
        sum.longest_ready.see(ready, book.plan.task[wait.task as usize], woken);
    }
    let row = |(task, sum): (usize, &Sum)| {
        let of = &trace.tasks[task];
        vec![
            json!(crate::names::printable(trace.name(of.name))),
            json!(of.number),
            json!(sum.polls),
            json!(sum.running_ns),
            json!(sum.ready_ns),
            json!(sum.waiting_ns),
            sum.longest.value(book),
            sum.longest_ready.value(book),
        ]
    };
    let columns = [
        ("Task", Cell::Text),
        ("Number", Cell::Count),
        ("Polls", Cell::Count),
        ("Runs", Cell::Time),
        ("Waits for its turn", Cell::Time),
        ("Waits", Cell::Time),
        ("Longest poll", Cell::Moment),
        ("Longest for its turn", Cell::Moment),
    ];
    Table::new("Tasks", 3, &columns, sums.iter().enumerate().map(row).collect())
}

fn waits(book: &Book) -> Table {
    let trace = book.trace;
    let mut sums: HashMap<(u8, u32, u32), (u64, u64, Longest)> = HashMap::new();
    for wait in &trace.waits {
        let reason = trace.reason_of(wait);
        if reason.is_none() && wait.woken_ns == Some(wait.start_ns) {
            // A new task waits for nothing but its turn.
            continue;
        }
        let (kind, name) = reason.map_or((0, 0), |reason| (reason.kind as u8, reason.name));
        let task_name = trace.tasks.get(wait.task as usize).map_or(0, |task| task.name);
        let (count, total, longest) = sums.entry((kind, name, task_name)).or_default();
        let ns = wait.woken_ns.unwrap_or(wait.end_ns).saturating_sub(wait.start_ns);
        *count += 1;
        *total = total.saturating_add(ns);
        longest.see(ns, book.plan.task.get(wait.task as usize).copied().unwrap_or(0), wait.start_ns);
    }
    let row = |(&(kind, name, task), &(count, total, longest)): (&(u8, u32, u32), &(u64, u64, Longest))| {
        let kind = glass_profile::trace::model::BlockKind::from_number(u16::from(kind));
        let what = kinds::KINDS[kinds::wait(kind) as usize].label;
        let name = if trace.name(name) == wait_word(kind) { "" } else { trace.name(name) };
        vec![
            json!(what),
            json!(if name.is_empty() { String::new() } else { crate::names::printable(name) }),
            json!(crate::names::printable(trace.name(task))),
            json!(count),
            json!(total),
            json!(total / count.max(1)),
            longest.value(book),
        ]
    };
    let columns = [
        ("Reason", Cell::Text),
        ("Of", Cell::Text),
        ("Tasks named", Cell::Text),
        ("Waits", Cell::Count),
        ("Total", Cell::Time),
        ("Mean", Cell::Time),
        ("Longest", Cell::Moment),
    ];
    Table::new("Waits", 4, &columns, sums.iter().map(row).collect())
}

fn devices(book: &Book) -> Table {
    #[derive(Default)]
    struct Sum {
        bytes: u64,
        times: Vec<u64>,
        longest: Longest,
        depth: u32,
        failed: u64,
        open: u64,
    }
    let trace = book.trace;
    let mut sums: HashMap<(u32, Operation), Sum> = HashMap::new();
    for (index, request) in trace.requests.iter().enumerate() {
        let sum = sums.entry((request.device, request.operation)).or_default();
        sum.bytes += u64::from(request.bytes);
        sum.depth = sum.depth.max(request.depth);
        sum.failed += u64::from(request.has_failed);
        let Some(end) = request.complete_ns else {
            sum.open += 1;
            continue;
        };
        let ns = end.saturating_sub(request.submit_ns);
        sum.times.push(ns);
        sum.longest.see(ns, book.plan.request[index], request.submit_ns);
    }
    let row = |((device, operation), mut sum): ((u32, Operation), Sum)| {
        let times = Distribution::of(&mut sum.times);
        let name = trace.devices.get(device as usize).map_or("", |device| trace.name(device.name));
        vec![
            json!(crate::names::printable(name)),
            json!(kinds::KINDS[kinds::operation(operation) as usize].label),
            json!(times.count + sum.open),
            json!(sum.bytes),
            json!(times.median_ns),
            json!(times.p99_ns),
            sum.longest.value(book),
            json!(times.sum_ns),
            json!(sum.depth),
            json!(sum.failed),
            json!(sum.open),
        ]
    };
    let columns = [
        ("Device", Cell::Text),
        ("Operation", Cell::Text),
        ("Requests", Cell::Count),
        ("Bytes", Cell::Bytes),
        ("Median", Cell::Time),
        ("99 %", Cell::Time),
        ("Longest", Cell::Moment),
        ("Total", Cell::Time),
        ("Most under way", Cell::Count),
        ("Failed", Cell::Count),
        ("Not complete", Cell::Count),
    ];
    Table::new("Devices", 2, &columns, sums.into_iter().map(row).collect())
}

fn spans(book: &Book) -> Table {
    let trace = book.trace;
    let mut sums: HashMap<u32, (Vec<u64>, Longest)> = HashMap::new();
    for (index, span) in trace.spans.iter().enumerate() {
        // The duration of an open span is at least what is known of it; that of a span whose begin was lost is unknown.
        if span.begin_is_lost {
            continue;
        }
        let (times, longest) = sums.entry(span.name).or_default();
        let ns = trace.span_end_ns(span) - span.start_ns;
        times.extend(span.duration_ns());
        longest.see(ns, book.plan.span[index], span.start_ns);
    }
    let row = |(name, (mut times, longest)): (u32, (Vec<u64>, Longest))| {
        let times = Distribution::of(&mut times);
        vec![
            json!(crate::names::printable(trace.name(name))),
            json!(times.count),
            json!(times.sum_ns),
            json!(times.median_ns),
            json!(times.p99_ns),
            longest.value(book),
        ]
    };
    let columns = [
        ("Span", Cell::Text),
        ("Times", Cell::Count),
        ("Total", Cell::Time),
        ("Median", Cell::Time),
        ("99 %", Cell::Time),
        ("Longest", Cell::Moment),
    ];
    Table::new("Spans", 2, &columns, sums.into_iter().map(row).collect())
}

fn functions(book: &Book) -> Table {
    #[derive(Clone, Default)]
    struct Sum {
        calls: u64,
        own_ns: u64,
        below_ns: u64,
        longest: Longest,
    }
    let trace = book.trace;
    let mut sums = vec![Sum::default(); trace.functions.len()];
    for call in &trace.calls {
        let ns = call.end_ns.saturating_sub(call.start_ns);
        if let Some(sum) = sums.get_mut(call.function as usize) {
            sum.calls += 1;
            sum.own_ns = sum.own_ns.saturating_add(ns);
            let lane = book.plan.calls.get(call.core as usize).map_or(0, |&(first, _)| first);
            sum.longest.see(ns, lane + super::plan::call_level(call.depth) as u32, call.start_ns);
        }
        let caller = call.parent.and_then(|parent| trace.calls.get(parent as usize));
        if let Some(sum) = caller.and_then(|caller| sums.get_mut(caller.function as usize)) {
            sum.below_ns = sum.below_ns.saturating_add(ns);
        }
    }
    let row = |(function, sum): (usize, &Sum)| {
        let function = &trace.functions[function];
        vec![
            json!(crate::names::printable(&function.name)),
            json!(if function.library.is_empty() { String::new() } else { crate::names::printable(&function.library) }),
            json!(sum.calls),
            json!(sum.own_ns.saturating_sub(sum.below_ns)),
            json!(sum.own_ns),
            json!(sum.own_ns / sum.calls.max(1)),
            sum.longest.value(book),
        ]
    };
    let columns = [
        ("Function", Cell::Text),
        ("Crate", Cell::Text),
        ("Calls", Cell::Count),
        ("Self", Cell::Time),
        ("Total of calls", Cell::Time),
        ("Mean", Cell::Time),
        ("Longest", Cell::Moment),
    ];
    Table::new("Functions", 3, &columns, sums.iter().enumerate().filter(|(_, sum)| sum.calls > 0).map(row).collect())
}
