//! `tracing`: what it costs a guest to tell what it does, and the page to show it.

mod cost;
mod instructions;
mod page;
mod plot;
mod service;
mod throughput;

use crate::outcome::{Outcome, Progress};
use anyhow::{Context, Result};
use glass_tests::programs;

/// Measures; what this machine cannot do is noted and left out.
pub fn run(progress: Progress) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    cost::measure(&mut outcome)?;
    instructions::measure(&mut outcome)?;
    page::measure(&mut outcome)?;
    let groups = throughput::measure(&mut outcome, progress)?;
    for line in plot::text(&groups).lines() {
        outcome.note(line);
    }
    let path = programs::folder().join("../bench/tracing.svg");
    let folder = path.parent().context("the picture has a folder")?;
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    std::fs::write(&path, plot::svg(&groups)).with_context(|| format!("cannot write {}", path.display()))?;
    outcome.note(format!("the bars as a picture: {}", path.display()));
    Ok(outcome)
}
