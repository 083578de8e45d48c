//! The tables of a trace, as the text and the page show them: the same columns, rows and figures.

use glass_profiler_core::model::Distribution;
use glass_profiler_core::trace::model::Trace;
use serde::Serialize;

use super::figures;
use super::functions::{self, Total};
use super::label;
use super::mpi;
use super::table::Table;
use glass_profiler_core::format::{count, duration, percent};
use glass_profiler_core::names::printable;

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Column {
    /// A text.
    Text,
    /// A number.
    Count,
    /// A share, as part and whole.
    Percent,
    /// Nanoseconds.
    Time,
    /// Nanoseconds of something that has a place in the trace.
    Moment,
}

/// What a [`Cell::Moment`] refers to, by index into the trace's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A span.
    Span(u32),
    /// A wait of a task.
    Wait(u32),
    /// The scheduling delay at the end of a wait.
    Delay(u32),
    /// A request to a device.
    Request(u32),
    /// A poll of a task.
    Poll(u32),
    /// A call of a function.
    Call(u32),
}

/// A cell; times that were not measured are `None`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cell {
    /// See [`Column::Text`].
    Text(String),
    /// See [`Column::Count`].
    Count(i64),
    /// See [`Column::Percent`].
    Percent(u64, u64),
    /// See [`Column::Time`].
    Time(Option<u64>),
    /// See [`Column::Moment`].
    Moment(Option<(u64, Place)>),
}

/// A table.
#[derive(Debug, Clone)]
pub struct Sheet {
    /// Its heading.
    pub name: &'static str,
    /// Headings of the columns and what they hold.
    pub columns: Vec<(&'static str, Column)>,
    /// As many cells each as there are columns.
    pub rows: Vec<Vec<Cell>>,
    /// The column whose largest values come first.
    pub sort: usize,
}

impl Cell {
    /// The cell as a person reads it.
    pub fn text(&self) -> String {
        match self {
            Cell::Text(text) => text.clone(),
            Cell::Count(value) if *value < 0 => format!("-{}", count(value.unsigned_abs())),
            Cell::Count(value) => count(value.unsigned_abs()),
            Cell::Percent(part, whole) => percent(*part, *whole),
            Cell::Time(Some(ns)) | Cell::Moment(Some((ns, _))) => duration(*ns),
            Cell::Time(None) | Cell::Moment(None) => "-".into(),
        }
    }
}

impl Sheet {
    fn new(name: &'static str, sort: usize, columns: &[(&'static str, Column)], rows: Vec<Vec<Cell>>) -> Sheet {
        Sheet { name, columns: columns.to_vec(), rows, sort }
    }

    /// The sheet as lines of text: headings, then rows.
    pub(super) fn lines(&self) -> String {
        let head: Vec<String> = self
            .columns
            .iter()
            .map(|(label, column)| format!("{}{label}", if *column == Column::Text { "<" } else { "" }))
            .collect();
        let mut table = Table::new(&head);
        self.rows.iter().for_each(|row| table.row(row.iter().map(Cell::text).collect()));
        table.lines()
    }
}

fn number(value: u64) -> Cell {
    Cell::Count(i64::try_from(value).unwrap_or(i64::MAX))
}

/// Median and p99; not measured if there is nothing to measure.
fn quantiles(of: &Distribution) -> [Cell; 2] {
    [of.median_ns, of.p99_ns].map(|ns| Cell::Time((of.count > 0).then_some(ns)))
}

/// The longest of some durations, where it is known which it is.
fn longest(of: &Distribution, place: Option<Place>) -> Cell {
    Cell::Moment(place.filter(|_| of.count > 0).map(|place| (of.max_ns, place)))
}

fn sum(of: &Distribution) -> Cell {
    Cell::Time((of.count > 0).then_some(of.sum_ns))
}

/// Cores or threads: what they spend their time on.
pub fn cores(trace: &Trace) -> Sheet {
    let all_ns = trace.end_ns.saturating_sub(trace.start_ns);
    let row = |(core, of): (&glass_profiler_core::trace::model::Core, &figures::CoreFigures)| {
        let known_ns = of.running_ns.saturating_add(of.idle_ns).saturating_add(of.spinning_ns);
        let share = |ns| Cell::Percent(ns, all_ns);
        vec![
            Cell::Text(printable(&core.name)),
            share(of.running_ns),
            share(of.spinning_ns),
            share(of.idle_ns),
            share(all_ns.saturating_sub(known_ns)),
            number(of.polls),
            number(of.interrupts),
        ]
    };
    let columns = [
        ("core", Column::Text),
        ("running", Column::Percent),
        ("spinning", Column::Percent),
        ("idle", Column::Percent),
        ("rest", Column::Percent),
        ("polls", Column::Count),
        ("interrupts", Column::Count),
    ];
    Sheet::new("Cores", 1, &columns, trace.cores.iter().zip(&figures::cores(trace)).map(row).collect())
}

/// Tasks by name.
pub fn tasks(trace: &Trace) -> Sheet {
    let poll_ns =
        |poll: u32| trace.polls.get(poll as usize).map_or(0, |poll| poll.end_ns.saturating_sub(poll.start_ns));
    let row = |of: figures::TaskFigures| {
        let mostly = of.mostly.map_or("-".into(), |(why, ns)| {
            format!("{} {}", percent(ns, of.waiting_ns), figures::why_text(trace, why))
        });
        vec![
            Cell::Text(printable(trace.name(of.name))),
            number(of.tasks),
            number(of.polls),
            Cell::Time(Some(of.running_ns)),
            Cell::Moment(of.longest_poll.map(|poll| (poll_ns(poll), Place::Poll(poll)))),
            Cell::Time(Some(of.runnable_ns)),
            Cell::Time(Some(of.waiting_ns)),
            Cell::Text(mostly),
        ]
    };
    let columns = [
        ("task", Column::Text),
        ("tasks", Column::Count),
        ("polls", Column::Count),
        ("running", Column::Time),
        ("max poll", Column::Moment),
        ("runnable", Column::Time),
        ("waiting", Column::Time),
        ("mostly for", Column::Text),
    ];
    Sheet::new("Tasks", 3, &columns, figures::tasks(trace).into_iter().map(row).collect())
}

/// Waits by task name and resource.
pub fn waits(trace: &Trace) -> Sheet {
    let row = |of: figures::WaitFigures| {
        let (cause, times) = &of.ended_by;
        let [median, p99] = quantiles(&of.durations);
        vec![
            Cell::Text(printable(trace.name(of.task))),
            Cell::Text(figures::why_text(trace, of.why)),
            number(of.durations.count),
            sum(&of.durations),
            median,
            p99,
            longest(&of.durations, Some(Place::Wait(of.longest))),
            Cell::Text(format!("{} {cause}", percent(*times, of.durations.count))),
        ]
    };
    let columns = [
        ("task", Column::Text),
        ("waits on", Column::Text),
        ("count", Column::Count),
        ("total", Column::Time),
        ("median", Column::Time),
        ("p99", Column::Time),
        ("max", Column::Moment),
        ("ended by", Column::Text),
    ];
    Sheet::new("Waits", 3, &columns, figures::waits(trace).into_iter().map(row).collect())
}

/// Requests by device and operation.
pub fn devices(trace: &Trace) -> Sheet {
    let all_ns = trace.end_ns.saturating_sub(trace.start_ns);
    let row = |of: figures::DeviceFigures| {
        let [median, p99] = quantiles(&of.latency);
        vec![
            Cell::Text(label::device(trace, of.device, of.operation)),
            number(of.requests),
            number(of.bytes),
            median,
            p99,
            longest(&of.latency, of.longest.map(Place::Request)),
            number(of.depth_max.into()),
            of.busy_ns.map_or(Cell::Percent(0, 0), |ns| Cell::Percent(ns, all_ns)),
            number(of.failed),
            number(of.open),
        ]
    };
    let columns = [
        ("device", Column::Text),
        ("requests", Column::Count),
        ("bytes", Column::Count),
        ("median", Column::Time),
        ("p99", Column::Time),
        ("max", Column::Moment),
        ("max in flight", Column::Count),
        ("busy", Column::Percent),
        ("failed", Column::Count),
        ("open", Column::Count),
    ];
    Sheet::new("Devices", 1, &columns, figures::devices(trace).into_iter().map(row).collect())
}

/// Segments by direction.
pub fn network(trace: &Trace) -> Sheet {
    let rows = figures::segments(trace)
        .map(|(name, count, bytes)| vec![Cell::Text(name.into()), number(count), number(bytes)]);
    let columns = [("segments", Column::Text), ("count", Column::Count), ("bytes", Column::Count)];
    Sheet::new("Network", 1, &columns, if trace.segments.is_empty() { Vec::new() } else { rows.to_vec() })
}

/// Counters and gauges: their values.
pub fn counters(trace: &Trace) -> Sheet {
    let seconds = trace.end_ns.saturating_sub(trace.start_ns) as f64 / 1e9;
    let row = |counter: &glass_profiler_core::trace::model::Counter| {
        let values = || counter.points.iter().map(|(_, value)| *value);
        let (first, last) = (values().next().unwrap_or(0), values().next_back().unwrap_or(0));
        let has_rate = !counter.is_gauge && seconds > 0.0;
        let rate = (last as f64 - first as f64) / seconds;
        vec![
            Cell::Text(printable(trace.name(counter.name))),
            number(counter.points.len() as u64),
            Cell::Count(first),
            Cell::Count(last),
            Cell::Count(values().min().unwrap_or(0)),
            Cell::Count(values().max().unwrap_or(0)),
            Cell::Text(if has_rate {
                format!("{} per second", Cell::Count(rate.round() as i64).text())
            } else {
                "-".into()
            }),
        ]
    };
    let columns = [
        ("counter", Column::Text),
        ("values", Column::Count),
        ("first", Column::Count),
        ("last", Column::Count),
        ("min", Column::Count),
        ("max", Column::Count),
        ("rate", Column::Text),
    ];
    Sheet::new("Counters", 1, &columns, trace.counters.iter().map(row).collect())
}

/// Spans by name.
pub fn spans(trace: &Trace) -> Sheet {
    let row = |of: figures::SpanFigures| {
        let [median, p99] = quantiles(&of.durations);
        vec![
            Cell::Text(printable(trace.name(of.name))),
            number(of.count),
            number(of.open),
            sum(&of.durations),
            median,
            p99,
            longest(&of.durations, of.longest.map(Place::Span)),
        ]
    };
    let columns = [
        ("span", Column::Text),
        ("count", Column::Count),
        ("open", Column::Count),
        ("total", Column::Time),
        ("median", Column::Time),
        ("p99", Column::Time),
        ("max", Column::Moment),
    ];
    Sheet::new("Spans", 3, &columns, figures::spans(trace).into_iter().map(row).collect())
}

/// The place of a call of MPI.
fn place_of_call(trace: &Trace, call: u32) -> Option<Place> {
    trace.mpi_calls.get(call as usize).map(|call| Place::Span(call.span))
}

/// Calls of MPI by rank and function: for how long they waited for other ranks.
pub fn mpi_waits(trace: &Trace) -> Sheet {
    let row = |of: mpi::MpiFigures| {
        let mostly = of.mostly.map_or("-".into(), |(rank, ns)| format!("{} rank {rank}", percent(ns, of.waited_ns)));
        vec![
            Cell::Text(format!("rank {}", of.rank)),
            Cell::Text(printable(trace.name(of.name))),
            number(of.calls),
            Cell::Time(Some(of.total_ns)),
            Cell::Time(Some(of.waited_ns)),
            Cell::Percent(of.waited_ns, of.total_ns),
            Cell::Moment(of.longest.and_then(|(ns, call)| Some((ns, place_of_call(trace, call)?)))),
            Cell::Text(mostly),
        ]
    };
    let columns = [
        ("rank", Column::Text),
        ("call", Column::Text),
        ("count", Column::Count),
        ("total", Column::Time),
        ("waited", Column::Time),
        ("waited %", Column::Percent),
        ("max", Column::Moment),
        ("mostly for", Column::Text),
    ];
    Sheet::new("MPI waits", 4, &columns, mpi::calls(trace).into_iter().map(row).collect())
}

/// Collective operations of MPI: how long the earliest rank was there before the last.
pub fn mpi_collectives(trace: &Trace) -> Sheet {
    let row = |of: mpi::CollectiveFigures| {
        let [median, p99] = quantiles(&of.imbalance);
        let (rank, times) = of.last;
        vec![
            Cell::Text(printable(trace.name(of.name))),
            Cell::Text(format!("{} of {} ranks", of.communicator, of.ranks)),
            number(of.imbalance.count),
            sum(&of.imbalance),
            median,
            p99,
            longest(&of.imbalance, of.longest.and_then(|call| place_of_call(trace, call))),
            Cell::Text(format!("rank {rank}, {}", percent(times, of.imbalance.count))),
        ]
    };
    let columns = [
        ("call", Column::Text),
        ("communicator", Column::Text),
        ("count", Column::Count),
        ("imbalance", Column::Time),
        ("median", Column::Time),
        ("p99", Column::Time),
        ("max", Column::Moment),
        ("last most often", Column::Text),
    ];
    Sheet::new("MPI collectives", 3, &columns, mpi::collectives(trace).into_iter().map(row).collect())
}

/// Functions whose total is at least `min_ns`, without those of the libraries in `hide`.
pub fn functions(trace: &Trace, hide: &[String], min_ns: u64) -> Sheet {
    let totals = functions::totals(trace, hide);
    let all_ns = totals.iter().fold(0u64, |sum, total| sum.saturating_add(total.self_ns));
    let row = |total: &Total| {
        let name = trace.functions.get(total.function as usize).map_or("", |function| function.name.as_str());
        vec![
            number(total.calls),
            Cell::Time(Some(total.self_ns)),
            Cell::Percent(total.self_ns, all_ns),
            Cell::Time(Some(total.total_ns)),
            Cell::Time(Some(total.total_ns / total.calls.max(1))),
            Cell::Moment(Some((total.max_ns, Place::Call(total.longest)))),
            Cell::Text(glass_profiler_core::names::short(&printable(name))),
        ]
    };
    let columns = [
        ("calls", Column::Count),
        ("self", Column::Time),
        ("self %", Column::Percent),
        ("total", Column::Time),
        ("mean", Column::Time),
        ("max", Column::Moment),
        ("function", Column::Text),
    ];
    let rows = totals.iter().filter(|total| total.total_ns >= min_ns).map(row).collect();
    Sheet::new("Functions", 1, &columns, rows)
}
