//! How long the page of a trace of ten million events takes to open, and how smoothly it pans; beside it an empty page with as
//! many bytes, which draws nothing.

use crate::figure::Figure;
use crate::outcome::Outcome;
use crate::run::Run;
use crate::statistics::Summary;
use anyhow::{Context, Result, bail};
use glass_tests::folder::Folder;
use glass_tests::process::Process;
use glass_tests::programs;
use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

/// Events of the synthetic trace.
const EVENTS: &str = "10000000";
const EVENTS_SHORT: &str = "20000";
/// How often each page is opened; it is written once.
const RUNS: &str = "5";
const RUNS_SHORT: &str = "1";
/// A run that takes longer has failed: writing the page takes some 10 s of CPU time.
const PATIENCE: Duration = Duration::from_secs(590);
/// The lower bound that figures stand beside.
const FLOOR: &str = "an empty page of as many bytes";

/// A value of the program, and the figure that it gives.
struct Row {
    value: &'static str,
    figure: &'static str,
    unit: &'static str,
    /// The divisor of the number.
    scale: f64,
    /// The empty page's value.
    floor: Option<&'static str>,
}

const fn row(value: &'static str, figure: &'static str, unit: &'static str, scale: f64) -> Row {
    Row { value, figure, unit, scale, floor: None }
}

const fn beside(floor: &'static str, row: Row) -> Row {
    Row { floor: Some(floor), ..row }
}

const ROWS: [Row; 13] = [
    beside("floor_open_ms", row("open_ms", "tracing.page_open_10m_s", "s", 1e3)),
    row("floor_open_ms", "tracing.page_open_floor_s", "s", 1e3),
    beside("floor_frame_median_ms", row("pan_median_ms", "tracing.page_pan_median_ms", "ms", 1.0)),
    beside("floor_frame_p99_ms", row("pan_p99_ms", "tracing.page_pan_p99_ms", "ms", 1.0)),
    beside("floor_frame_median_ms", row("pan_near_median_ms", "tracing.page_pan_near_median_ms", "ms", 1.0)),
    beside("floor_frame_p99_ms", row("pan_near_p99_ms", "tracing.page_pan_near_p99_ms", "ms", 1.0)),
    beside("floor_frame_median_ms", row("frame_median_ms", "tracing.page_frame_median_ms", "ms", 1.0)),
    beside("floor_frame_p99_ms", row("frame_p99_ms", "tracing.page_frame_p99_ms", "ms", 1.0)),
    beside("floor_frame_busy_ms", row("pan_busy_ms", "tracing.page_pan_busy_ms", "ms", 1.0)),
    row("floor_frame_median_ms", "tracing.page_floor_median_ms", "ms", 1.0),
    row("file_bytes", "tracing.page_10m_mib", "MiB", 1048576.0),
    row("build_ms", "tracing.build_10m_s", "s", 1e3),
    row("page_ms", "tracing.page_write_10m_s", "s", 1e3),
];

/// Adds the figures.
pub fn measure(outcome: &mut Outcome, run: &Run) -> Result<()> {
    let folder = Folder::new("bench-tracing-page")?;
    let program = programs::built("examples/trace_page_cost").context("trace_page_cost is not built")?;
    let mut samples: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let mut process = Process::spawn(
        Command::new(&program).args([run.size(EVENTS, EVENTS_SHORT), run.size(RUNS, RUNS_SHORT)]),
        &folder.file("page.log"),
    )?;
    let status = process.wait(PATIENCE).context("trace_page_cost does not end")?;
    if !status.success() {
        bail!("trace_page_cost: {}", process.output());
    }
    for line in process.output().lines() {
        if let Some((name, Ok(value))) = line.split_once(' ').map(|(name, value)| (name, value.parse::<f64>())) {
            samples.entry(name.to_owned()).or_default().push(value);
        }
    }
    for Row { value, figure, unit, scale, floor } in ROWS {
        let scaled =
            |name: &str| -> Option<Vec<f64>> { Some(samples.get(name)?.iter().map(|value| value / scale).collect()) };
        let Some(found) = scaled(value).and_then(|values| Figure::of(figure, unit, &values)) else {
            outcome.note(format!("{figure} left out: there is no Chromium to open the page"));
            continue;
        };
        let floor = floor.and_then(scaled).and_then(|values| Summary::of(&values));
        outcome.add(Some(match floor {
            Some(floor) => found.against(FLOOR, floor.median),
            None => found,
        }));
    }
    Ok(())
}
