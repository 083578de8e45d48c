//! Two traces side by side: durations of spans, waits by resource, latencies of devices, and which changes may be chance.

use std::collections::BTreeMap;

use glass_profiler_core::trace::model::Trace;

use super::figures::{split, why, why_text};
use super::label;
use super::sheets::{Cell, Column, Sheet};
use glass_profiler_core::format::{count, duration};
use glass_profiler_core::names::printable;

/// Rows of a table; those whose total changed most are kept.
const ROWS_MAX: usize = 200;
/// Standard errors of a rank on either side of a quantile: 95 of 100 intervals contain the true one.
const ERRORS: f64 = 1.96;

/// Durations by what they are of: one or two texts.
type Durations = BTreeMap<Vec<String>, Vec<u64>>;

/// Tables of what changed from `a` to `b`, without those that are empty. A change that is marked with `~` is within noise: the 95 %
/// intervals of the two quantiles overlap.
pub fn sheets(a: &Trace, b: &Trace) -> Vec<Sheet> {
    let sheets = [
        compared("Spans", &["span"], spans(a), spans(b)),
        compared("Waits", &["task", "waits on"], waits(a), waits(b)),
        compared("Device requests", &["device"], devices(a), devices(b)),
    ];
    sheets.into_iter().filter(|sheet| !sheet.rows.is_empty()).collect()
}

/// The same for a terminal, in lines of at most 100 columns.
pub fn text(a: &Trace, b: &Trace) -> String {
    let side = |trace: &Trace| {
        let length = trace.end_ns.saturating_sub(trace.start_ns);
        format!("{} events in {}", count(trace.event_count), duration(length))
    };
    let mut out = format!("Difference of two traces: A {}, B {}\n", side(a), side(b));
    out.push_str("~ marks a change within noise: the 95 % intervals of both quantiles overlap\n");
    for sheet in sheets(a, b) {
        out.push_str(&format!("\n{}\n{}", sheet.name, sheet.lines()));
    }
    out
}

fn spans(trace: &Trace) -> Durations {
    let mut durations = Durations::new();
    for span in &trace.spans {
        if let Some(ns) = span.duration_ns() {
            durations.entry(vec![printable(trace.name(span.name))]).or_default().push(ns);
        }
    }
    durations
}

fn waits(trace: &Trace) -> Durations {
    let mut durations = Durations::new();
    for wait in &trace.waits {
        let (ns, _) = split(wait);
        if ns > 0 {
            let task = trace.tasks.get(wait.task as usize).map_or("", |task| trace.name(task.name));
            let key = vec![printable(task), why_text(trace, why(trace, wait))];
            durations.entry(key).or_default().push(ns);
        }
    }
    durations
}

fn devices(trace: &Trace) -> Durations {
    let mut durations = Durations::new();
    for request in &trace.requests {
        if let Some(ns) = request.latency_ns() {
            durations.entry(vec![label::device(trace, request.device, request.operation)]).or_default().push(ns);
        }
    }
    durations
}

/// A row for each key of either side, those whose total changed most first.
fn compared(name: &'static str, keys: &[&'static str], mut a: Durations, mut b: Durations) -> Sheet {
    let mut names: Vec<Vec<String>> = a.keys().chain(b.keys()).cloned().collect();
    names.sort();
    names.dedup();
    let mut rows: Vec<(u64, Vec<Cell>)> = Vec::new();
    for key in names {
        let [a, b] = [&mut a, &mut b].map(|side| side.remove(&key).unwrap_or_default());
        let [a, b] = [a, b].map(|mut side| {
            side.sort_unstable();
            side
        });
        let total = |side: &[u64]| side.iter().fold(0u64, |sum, ns| sum.saturating_add(*ns));
        let changed = total(&a).abs_diff(total(&b));
        let number = |side: &[u64]| Cell::Count(side.len() as i64);
        let mut row: Vec<Cell> = key.into_iter().map(Cell::Text).collect();
        row.extend([number(&a), number(&b)]);
        for part in [0.5, 0.99] {
            let [of_a, of_b] = [&a, &b].map(|side| Quantile::of(side, part));
            row.extend([of_a, of_b].map(|of| Cell::Time(of.map(|of| of.at_ns))));
            row.push(Cell::Text(change(of_a, of_b)));
        }
        rows.push((changed, row));
    }
    rows.sort_by_key(|(changed, _)| std::cmp::Reverse(*changed));
    rows.truncate(ROWS_MAX);
    let mut columns: Vec<(&'static str, Column)> = keys.iter().map(|key| (*key, Column::Text)).collect();
    columns.extend([("count A", Column::Count), ("B", Column::Count)]);
    columns.extend([("median A", Column::Time), ("B", Column::Time), ("change", Column::Text)]);
    columns.extend([("p99 A", Column::Time), ("B", Column::Time), ("change", Column::Text)]);
    Sheet { name, columns, rows: rows.into_iter().map(|(_, row)| row).collect(), sort: keys.len() }
}

/// A quantile of some durations, and the values between which the true one lies, by the ranks of a binomial distribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Quantile {
    at_ns: u64,
    low_ns: u64,
    high_ns: u64,
}

impl Quantile {
    /// Of sorted durations; `None` of none.
    fn of(sorted: &[u64], part: f64) -> Option<Quantile> {
        let all = sorted.len() as f64;
        let last = sorted.len().checked_sub(1)?;
        let at = |rank: f64| sorted[(rank.ceil().max(1.0) as usize - 1).min(last)];
        let error = ERRORS * (all * part * (1.0 - part)).sqrt();
        let rank = all * part;
        Some(Quantile { at_ns: at(rank), low_ns: at((rank - error).floor()), high_ns: at(rank + error + 1.0) })
    }
}

/// "+12.3 %", "-4.0 % ~"; "only A" if the other side has none.
fn change(a: Option<Quantile>, b: Option<Quantile>) -> String {
    match (a, b) {
        (Some(a), Some(b)) => {
            let is_noise = a.low_ns <= b.high_ns && b.low_ns <= a.high_ns;
            let percent = (b.at_ns as f64 - a.at_ns as f64) * 100.0 / (a.at_ns.max(1) as f64);
            format!("{percent:+.1} %{}", if is_noise { " ~" } else { "" })
        }
        (Some(_), None) => "only A".into(),
        (None, Some(_)) => "only B".into(),
        (None, None) => "-".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_noise_while_the_intervals_overlap() {
        let of = |from: u64, count: u64| (from..from + count).collect::<Vec<_>>();
        let judged = |a: &[u64], b: &[u64]| change(Quantile::of(a, 0.5), Quantile::of(b, 0.5));
        // The median of 1,000 to 1,099 lies between the ranks 40 and 61.
        assert_eq!(Quantile::of(&of(1_000, 100), 0.5), Some(Quantile { at_ns: 1_049, low_ns: 1_039, high_ns: 1_060 }));
        assert_eq!(judged(&of(1_000, 100), &of(1_015, 100)), "+1.4 % ~");
        assert_eq!(judged(&of(1_000, 100), &of(1_200, 100)), "+19.1 %");
        assert_eq!(judged(&of(1_200, 100), &of(1_000, 100)), "-16.0 %");
        assert_eq!(judged(&[5], &[]), "only A");
        assert_eq!(Quantile::of(&[], 0.99), None);
        // A few say little of their p99.
        assert_eq!(change(Quantile::of(&[1, 2, 3], 0.99), Quantile::of(&[2, 3, 4], 0.99)), "+33.3 % ~");
    }
}
