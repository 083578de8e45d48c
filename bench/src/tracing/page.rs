//! How long the page of a trace of ten million events takes to open, and how smoothly it pans.

use crate::figure::Figure;
use crate::outcome::Outcome;
use anyhow::{Context, Result, bail};
use glass_tests::folder::Folder;
use glass_tests::process::Process;
use glass_tests::programs;
use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

/// Events of the synthetic trace.
const EVENTS: &str = "10000000";
/// Pages that are written and opened.
const RUNS: usize = 5;
/// A run that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(300);

/// The program's name of a value, the figure's name, its unit, and the divisor of the number.
const FIGURES: [(&str, &str, &str, f64); 6] = [
    ("open_ms", "tracing.page_open_10m_s", "s", 1e3),
    ("frame_median_ms", "tracing.page_frame_median_ms", "ms", 1.0),
    ("frame_p99_ms", "tracing.page_frame_p99_ms", "ms", 1.0),
    ("file_bytes", "tracing.page_10m_mib", "MiB", 1048576.0),
    ("build_ms", "tracing.build_10m_s", "s", 1e3),
    ("page_ms", "tracing.page_write_10m_s", "s", 1e3),
];

/// Adds the figures.
pub fn measure(outcome: &mut Outcome) -> Result<()> {
    let folder = Folder::new("bench-tracing-page")?;
    let program = programs::built("examples/trace_page_cost").context("trace_page_cost is not built")?;
    let mut samples: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for _ in 0..RUNS {
        let mut process = Process::spawn(Command::new(&program).arg(EVENTS), &folder.file("page.log"))?;
        let status = process.wait(PATIENCE).context("trace_page_cost does not end")?;
        if !status.success() {
            bail!("trace_page_cost: {}", process.output());
        }
        for line in process.output().lines() {
            if let Some((name, Ok(value))) = line.split_once(' ').map(|(name, value)| (name, value.parse::<f64>())) {
                samples.entry(name.to_owned()).or_default().push(value);
            }
        }
    }
    for (name, figure, unit, scale) in FIGURES {
        let Some(samples) = samples.get(name) else {
            outcome.note(format!("{figure} left out: there is no Chromium to open the page"));
            continue;
        };
        let samples: Vec<f64> = samples.iter().map(|value| value / scale).collect();
        outcome.add(Figure::of(figure, unit, &samples));
    }
    Ok(())
}
