//! What happened before a cut, in order of time: writes that are missing, what was acknowledged and is lost, flushes, the cut.

use crate::campaign::Loss;
use crate::log::Log;
use crate::state::Part;

/// Rows of one kind, at most: the last ones before the cut.
const ROWS_MAX: usize = 12;

/// What a row is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A write that is missing, or of which a part is.
    Missing,
    /// Something was acknowledged, and is lost.
    Lost,
    /// What was durable became more.
    Flush,
    /// The power is cut.
    Cut,
}

/// A row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// What it is about.
    pub kind: Kind,
    /// In words.
    pub text: String,
}

/// The rows for a loss, in order of time.
pub fn rows(log: &Log, loss: &Loss) -> Vec<Row> {
    let mut rows = Vec::new();
    let missing = loss.state.missing(log);
    for write in last(&missing) {
        let found = &log.writes[*write as usize];
        let done = match found.done_ns {
            Some(done) if done < loss.cut.time_ns => {
                format!("completed {:.3} ms later", (done - found.arrived_ns) as f64 / 1e6)
            }
            _ => "not completed".to_owned(),
        };
        let part = match loss.state.part(*write) {
            Some(Part::Sectors(ranges)) => {
                let sectors: u64 = ranges.iter().map(|range| range.end - range.start).sum();
                format!("torn: {sectors} of {} sectors are there", found.sectors())
            }
            _ => "missing".to_owned(),
        };
        let range = format!("write {}: sector {}, {}", found.request, found.offset / 512, bytes(found.bytes));
        let text = format!("{range}; {done}; {part}");
        rows.push(Row { time_ns: found.arrived_ns, kind: Kind::Missing, text });
    }
    rows.extend(last(&lost(&loss.output)).iter().cloned());
    let epoch = loss.state.epoch;
    if let Some(before) = epoch.checked_sub(1).map(|before| &log.epochs[before]) {
        let text = "the last flush before the cut completes".to_owned();
        rows.push(Row { time_ns: before.end_ns, kind: Kind::Flush, text });
    }
    rows.push(Row { time_ns: loss.cut.time_ns, kind: Kind::Cut, text: "power cut".to_owned() });
    if let Some(request) = log.epochs[epoch].end_request {
        let text = format!("request {request} completes, which would have made more durable");
        rows.push(Row { time_ns: log.epochs[epoch].end_ns, kind: Kind::Flush, text });
    }
    rows.sort_by_key(|row| row.time_ns);
    rows
}

/// The rows of what a check prints: lines `lost TIME_NS WORDS`.
pub fn lost(output: &str) -> Vec<Row> {
    let line = |line: &str| {
        let (time, words) = line.strip_prefix("lost ")?.split_once(' ')?;
        Some(Row { time_ns: time.parse().ok()?, kind: Kind::Lost, text: format!("{words}: acknowledged, and lost") })
    };
    let mut rows: Vec<Row> = output.lines().filter_map(line).collect();
    rows.sort_by_key(|row| row.time_ns);
    rows
}

fn last<T>(all: &[T]) -> &[T] {
    &all[all.len().saturating_sub(ROWS_MAX)..]
}

/// Bytes in words.
pub fn bytes(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        1024..0x10_0000 => format!("{} KiB", bytes / 1024),
        _ => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
    }
}
