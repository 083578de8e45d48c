//! `tracing`: the cost of tracing for a guest, and of the page that shows the trace.

mod cost;
mod instructions;
mod page;
mod service;
mod throughput;

use crate::Part;
use crate::outcome::Outcome;
use crate::plot;
use crate::run::Run;
use anyhow::{Context, Result};
use glass_tests::programs;

/// The measurements; those that this machine cannot do are left out with a note.
pub const PARTS: [Part; 4] = [
    ("cost", cost::measure),
    ("instructions", instructions::measure),
    ("page", page::measure),
    ("throughput", throughput_and_bars),
];

fn throughput_and_bars(outcome: &mut Outcome, run: &Run) -> Result<()> {
    let groups = throughput::measure(outcome, run)?;
    if run.is_short() {
        return Ok(());
    }
    for line in plot::text(&groups).lines() {
        outcome.note(line);
    }
    let path = programs::folder().join("../bench/tracing.svg");
    let folder = path.parent().context("the image has a folder")?;
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    std::fs::write(&path, plot::svg(&groups)).with_context(|| format!("cannot write {}", path.display()))?;
    outcome.note(format!("the bars as an image: {}", path.display()));
    Ok(())
}
