//! The tables of a trace as the page has them: those that the text prints too, and one of every task.
//!
//! A cell that refers to a moment holds track and time, so that the page can go there.

use serde::Serialize;
use serde_json::{Value, json};

use super::book::Book;
use crate::trace::figures::split;
use crate::trace::sheets::{self, Cell, Column, Place, Sheet};
use glass_profiler_core::names::printable;

/// Rows of a table; those that took longest are kept.
const ROWS_MAX: usize = 2_000;

/// A table.
#[derive(Debug, Serialize)]
pub struct Table {
    name: &'static str,
    columns: Vec<(&'static str, Column)>,
    rows: Vec<Vec<Value>>,
    /// Rows that there was no room for.
    rows_left_out: usize,
    /// The column that it is sorted by at first, the largest on top.
    sort: usize,
}

/// The tables that have rows.
pub fn all(book: &Book) -> Vec<Table> {
    let trace = book.trace;
    let sheets = [
        sheets::spans(trace),
        sheets::waits(trace),
        sheets::mpi_waits(trace),
        sheets::mpi_collectives(trace),
        sheets::devices(trace),
        sheets::tasks(trace),
        every_task(book),
        sheets::cores(trace),
        sheets::network(trace),
        sheets::counters(trace),
        sheets::functions(trace, &[], 0),
    ];
    sheets.into_iter().filter(|sheet| !sheet.rows.is_empty()).map(|sheet| table(book, sheet)).collect()
}

fn table(book: &Book, mut sheet: Sheet) -> Table {
    let key = |row: &Vec<Cell>| match row[sheet.sort] {
        Cell::Count(value) => u64::try_from(value).unwrap_or(0),
        Cell::Percent(part, _) => part,
        Cell::Time(ns) => ns.unwrap_or(0),
        Cell::Moment(moment) => moment.map_or(0, |(ns, _)| ns),
        Cell::Text(_) => 0,
    };
    sheet.rows.sort_by_key(|row| std::cmp::Reverse(key(row)));
    let rows_left_out = sheet.rows.len().saturating_sub(ROWS_MAX);
    sheet.rows.truncate(ROWS_MAX);
    let rows = sheet.rows.iter().map(|row| row.iter().map(|cell| value(book, cell)).collect()).collect();
    Table { name: sheet.name, columns: sheet.columns, rows, rows_left_out, sort: sheet.sort }
}

fn value(book: &Book, cell: &Cell) -> Value {
    match cell {
        Cell::Text(text) => json!(text),
        Cell::Count(value) => json!(value),
        Cell::Percent(part, whole) => json!([part, whole]),
        Cell::Time(ns) => json!(ns),
        Cell::Moment(None) => Value::Null,
        Cell::Moment(Some((ns, place))) => match track_and_start(book, *place) {
            Some((track, start_ns)) => json!([ns, track, book.time(start_ns)]),
            None => json!([ns]),
        },
    }
}

/// Where on the page something is; `None` if it has no track.
fn track_and_start(book: &Book, place: Place) -> Option<(u32, u64)> {
    let (trace, plan) = (book.trace, &book.plan);
    let track = |tracks: &[u32], index: u32| tracks.get(index as usize).copied();
    match place {
        Place::Span(span) => Some((track(&plan.span, span)?, trace.spans.get(span as usize)?.start_ns)),
        Place::Wait(wait) => {
            let wait = trace.waits.get(wait as usize)?;
            Some((track(&plan.task, wait.task)?, wait.start_ns))
        }
        Place::Delay(wait) => {
            let wait = trace.waits.get(wait as usize)?;
            Some((track(&plan.task, wait.task)?, wait.woken_ns?))
        }
        Place::Request(request) => {
            Some((track(&plan.request, request)?, trace.requests.get(request as usize)?.submit_ns))
        }
        Place::Poll(poll) => {
            let poll = trace.polls.get(poll as usize)?;
            Some((track(&plan.task, poll.task)?, poll.start_ns))
        }
        Place::Call(call) => Some((plan.track_of_call(trace, call)?, trace.calls.get(call as usize)?.start_ns)),
    }
}

/// A row for each task.
fn every_task(book: &Book) -> Sheet {
    #[derive(Clone, Default)]
    struct Sum {
        polls: u64,
        running_ns: u64,
        runnable_ns: u64,
        waiting_ns: u64,
        longest_poll: Option<(u64, Place)>,
        longest_delay: Option<(u64, Place)>,
    }
    let trace = book.trace;
    let mut sums = vec![Sum::default(); trace.tasks.len()];
    let longer = |known: &mut Option<(u64, Place)>, ns: u64, place: Place| {
        if known.is_none_or(|(longest_ns, _)| ns > longest_ns) {
            *known = Some((ns, place));
        }
    };
    for (index, poll) in (0u32..).zip(&trace.polls) {
        let Some(sum) = sums.get_mut(poll.task as usize) else { continue };
        let ns = poll.end_ns.saturating_sub(poll.start_ns);
        sum.polls += 1;
        sum.running_ns = sum.running_ns.saturating_add(ns);
        longer(&mut sum.longest_poll, ns, Place::Poll(index));
    }
    for (index, wait) in (0u32..).zip(&trace.waits) {
        let Some(sum) = sums.get_mut(wait.task as usize) else { continue };
        let (waiting_ns, runnable_ns) = split(wait);
        sum.runnable_ns = sum.runnable_ns.saturating_add(runnable_ns);
        sum.waiting_ns = sum.waiting_ns.saturating_add(waiting_ns);
        if wait.woken_ns.is_some() {
            longer(&mut sum.longest_delay, runnable_ns, Place::Delay(index));
        }
    }
    let row = |(task, sum): (&glass_profiler_core::trace::model::Task, &Sum)| {
        vec![
            Cell::Text(printable(trace.name(task.name))),
            Cell::Text(format!("#{}", task.number)),
            Cell::Count(sum.polls as i64),
            Cell::Time(Some(sum.running_ns)),
            Cell::Time(Some(sum.runnable_ns)),
            Cell::Time(Some(sum.waiting_ns)),
            Cell::Moment(sum.longest_poll),
            Cell::Moment(sum.longest_delay),
        ]
    };
    let columns = [
        ("task", Column::Text),
        ("ID", Column::Text),
        ("polls", Column::Count),
        ("running", Column::Time),
        ("runnable", Column::Time),
        ("waiting", Column::Time),
        ("max poll", Column::Moment),
        ("max delay", Column::Moment),
    ];
    let rows = trace.tasks.iter().zip(&sums).map(row).collect();
    Sheet { name: "Every task", columns: columns.to_vec(), rows, sort: 3 }
}
