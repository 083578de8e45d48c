//! Where the time of a span went, for the longest spans and some typical ones.

use std::collections::HashMap;

use glass_profile::trace::model::BlockKind;
use glass_profile::trace::path::{self, Index, What};
use serde::Serialize;

use super::book::Book;
use super::kinds::{self, IDLE, READY, RUN, TASK_ON_CORE};
use crate::names::printable;

/// Names of spans that are followed; those that took most time together are kept.
const NAMES_MAX: usize = 6;
/// Spans of a name: the longest.
const LONGEST: usize = 6;
/// Parts of a path that a page keeps one by one, the longest; those between two of them are one.
const PARTS_MAX: usize = 750;
/// Sums of a path that a page keeps, the largest.
const SUMS_MAX: usize = 60;

/// A part of a path.
#[derive(Debug, Serialize)]
pub struct Part {
    start_ns: u64,
    end_ns: u64,
    /// Place in `KINDS`.
    kind: u8,
    what: String,
    /// The lane where it can be seen.
    lane: Option<u32>,
}

/// What all parts of a path that are the same took.
#[derive(Debug, Serialize)]
pub struct Sum {
    kind: u8,
    what: String,
    ns: u64,
    count: u64,
}

/// The way through one span.
#[derive(Debug, Serialize)]
pub struct Path {
    name: String,
    lane: u32,
    start_ns: u64,
    end_ns: u64,
    /// Why it is shown: "longest", "typical".
    why: &'static str,
    /// Of all parts, the largest first.
    sums: Vec<Sum>,
    parts: Vec<Part>,
}

pub fn all(book: &Book) -> Vec<Path> {
    let trace = book.trace;
    let mut totals: HashMap<u32, u64> = HashMap::new();
    for span in &trace.spans {
        if let Some(took_ns) = span.duration_ns() {
            let total = totals.entry(span.name).or_default();
            *total = total.saturating_add(took_ns);
        }
    }
    if totals.is_empty() {
        return Vec::new();
    }
    let mut names: Vec<(u64, u32)> = totals.into_iter().map(|(name, total)| (total, name)).collect();
    names.sort_unstable_by_key(|&(total, name)| (std::cmp::Reverse(total), name));
    let index = Index::new(trace);
    let mut made = Vec::new();
    for (_, name) in names.into_iter().take(NAMES_MAX) {
        let spans = path::spans_by_duration(trace, trace.name(name));
        let mut chosen: Vec<(u32, &'static str)> =
            spans.iter().take(LONGEST).map(|&span| (span, "among the longest")).collect();
        for (part, why) in
            [(50, "typical: the median"), (75, "faster than three of four"), (10, "slower than nine of ten")]
        {
            let place = spans.len() * part / 100;
            if place >= LONGEST {
                chosen.push((spans[place], why));
            }
        }
        for (span, why) in chosen {
            let Some(found) = path::Path::find(trace, &index, span) else { continue };
            made.push(shown(book, &found, why));
        }
    }
    made
}

fn shown(book: &Book, path: &path::Path, why: &'static str) -> Path {
    let trace = book.trace;
    let span = path.span as usize;
    let part = |of: &path::Part| {
        let (kind, what, lane) = describe(book, of.what);
        Part { start_ns: book.time(of.start_ns), end_ns: book.time(of.end_ns), kind, what, lane }
    };
    let parts: Vec<Part> = path.parts.iter().map(part).collect();
    let sums = sums(&parts);
    let parts = longest(parts);
    let of = &trace.spans[span];
    Path {
        name: format!("{} {}", printable(trace.name(of.name)), of.number),
        lane: book.plan.span[span],
        start_ns: book.time(path.start_ns),
        end_ns: book.time(path.end_ns),
        why,
        sums,
        parts,
    }
}

fn sums(parts: &[Part]) -> Vec<Sum> {
    let mut sums: HashMap<&str, Sum> = HashMap::new();
    for part in parts {
        let new = || Sum { kind: part.kind, what: part.what.clone(), ns: 0, count: 0 };
        let sum = sums.entry(&part.what).or_insert_with(new);
        sum.ns = sum.ns.saturating_add(part.end_ns.saturating_sub(part.start_ns));
        sum.count += 1;
    }
    let mut sums: Vec<Sum> = sums.into_values().collect();
    sums.sort_by(|a, b| b.ns.cmp(&a.ns).then_with(|| a.what.cmp(&b.what)));
    let rest = sums.split_off(sums.len().min(SUMS_MAX));
    if !rest.is_empty() {
        let (ns, count) = rest.iter().fold((0, 0), |(ns, count), sum| (ns + sum.ns, count + sum.count));
        sums.push(Sum { kind: kinds::wait(BlockKind::Other), what: "everything else".into(), ns, count });
    }
    sums
}

/// The longest parts one by one, those between two of them as one, in their order.
fn longest(parts: Vec<Part>) -> Vec<Part> {
    let length = |part: &Part| part.end_ns.saturating_sub(part.start_ns);
    if parts.len() <= PARTS_MAX {
        return parts;
    }
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(length(&parts[index])));
    let mut is_kept = vec![false; parts.len()];
    order[..PARTS_MAX].iter().for_each(|&index| is_kept[index] = true);
    let mut shown: Vec<Part> = Vec::new();
    // How many parts the last one that is shown stands for, if it does, and the longest of them.
    let mut merged: Option<(u64, u64)> = None;
    for (part, is_kept) in parts.into_iter().zip(is_kept) {
        let ns = length(&part);
        match (merged, shown.last_mut()) {
            (Some((count, most_ns)), Some(last)) if !is_kept => {
                last.end_ns = part.end_ns;
                last.kind = if ns > most_ns { part.kind } else { last.kind };
                last.what = format!("{} short parts", crate::format::count(count + 1));
                last.lane = None;
                merged = Some((count + 1, most_ns.max(ns)));
            }
            _ => {
                merged = (!is_kept).then_some((1, ns));
                shown.push(part);
            }
        }
    }
    shown
}

/// Kind, words and lane of what a part is.
fn describe(book: &Book, what: What) -> (u8, String, Option<u32>) {
    let trace = book.trace;
    let task_name =
        |task: u32| trace.tasks.get(task as usize).map_or(String::new(), |task| printable(trace.name(task.name)));
    let task_lane = |task: u32| book.plan.task.get(task as usize).copied();
    let wait_name = |wait: u32| {
        let wait = trace.waits.get(wait as usize)?;
        let reason = trace.reason_of(wait)?;
        Some((reason.kind, trace.name(reason.name)))
    };
    let wait_lane = |wait: u32| trace.waits.get(wait as usize).and_then(|wait| task_lane(wait.task));
    match what {
        What::Run { task, .. } => (RUN, format!("{} runs", task_name(task)), task_lane(task)),
        What::Core { core } => {
            let lane = book.plan.core.get(core as usize).copied();
            (TASK_ON_CORE, "runs outside of any task".into(), lane)
        }
        What::Ready { task } => (READY, format!("{} is ready, waits for its turn", task_name(task)), task_lane(task)),
        What::Request { request } => match trace.requests.get(request as usize) {
            Some(of) => {
                let kind = kinds::operation(of.operation);
                let device = trace.devices.get(of.device as usize).map_or("", |device| trace.name(device.name));
                let what = format!("{} {}", printable(device), kinds::KINDS[kind as usize].label);
                (kind, what, book.plan.request.get(request as usize).copied())
            }
            None => (IDLE, "a request".into(), None),
        },
        What::Network { connection, .. } => {
            let lane = book.plan.connection.get(connection as usize).copied();
            (kinds::wait(BlockKind::Receive), "waits for the other side of the connection".into(), lane)
        }
        What::Timer { wait } => {
            let name = wait_name(wait).map_or("", |(_, name)| name);
            let what = if name.is_empty() {
                "waits for a time".into()
            } else {
                format!("waits for a time: {}", printable(name))
            };
            (kinds::wait(BlockKind::Timer), what, wait_lane(wait))
        }
        What::Wait { wait } => {
            let (kind, name) = wait_name(wait).unwrap_or((BlockKind::Other, ""));
            let kind = kinds::wait(kind);
            let label = kinds::KINDS[kind as usize].label;
            let what = if name.is_empty() { label.to_string() } else { format!("{label}: {}", printable(name)) };
            (kind, what, wait_lane(wait))
        }
        What::Unknown => (kinds::wait(BlockKind::Other), "the trace does not tell".into(), None),
    }
}
