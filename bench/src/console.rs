//! `console`: how fast a service prints while the host reads without delay, as defined in the article on MirageOS's console, which
//! printed 45 KB a second on Xen.

use crate::figure::Figure;
use crate::outcome::{Outcome, in_turn};
use crate::run::Run;
use crate::statistics::Summary;
use anyhow::{Context, Result, bail, ensure};
use glass_tests::programs;
use glass_tests::queue::World;
use serde_json::Value;
use std::process::Command;

/// Runs on each platform.
const ROUNDS: usize = 7;
/// Lines that `bench-console` prints before those that it measures.
const WARM_UP_LINES: u64 = 1000;
/// More than the article's lines, so that a run is not too short.
const LINES: &str = "100000";
const LINES_SHORT: &str = "2000";
/// The article's figure.
const ARTICLE_KB_S: f64 = 45.0;

/// Measures; platforms that this machine does not have are left out with a note.
pub fn run(outcome: &mut Outcome, run: &Run) -> Result<()> {
    let worlds = outcome.available([World::Process, World::Kvm, World::Tcg]);
    let lines = run.size(LINES, LINES_SHORT);
    let measure = |index: usize| kb_s(worlds[index], lines).with_context(|| worlds[index].to_string());
    in_turn(outcome, worlds.len(), ROUNDS, run, measure, |outcome, samples| add(outcome, &worlds, samples))?;
    outcome.note(format!("{LINES} lines of 6 bytes, after 1,000 to warm up; the host reads from a pipe as fast as it can; console.kb_s is the VM under KVM"));
    Ok(())
}

fn add(outcome: &mut Outcome, worlds: &[World], samples: &[Vec<f64>]) {
    let worlds: Vec<_> = worlds.iter().zip(samples).collect();
    let process = worlds.iter().find(|(world, _)| **world == World::Process);
    let floor = process.and_then(|(_, samples)| Summary::of(samples)).map(|summary| summary.median);
    for (world, samples) in &worlds {
        let name = if **world == World::Kvm { "console.kb_s".to_owned() } else { format!("console.{world}.kb_s") };
        let figure = Figure::of(&name, "KB/s", samples);
        let peer = floor.filter(|_| **world != World::Process);
        outcome.add(figure.map(|figure| peer.map_or(figure.clone(), |peer| figure.against("process", peer))));
        if let Some(median) = Summary::of(samples).map(|summary| summary.median) {
            outcome.note(format!("{world}: {:.0} times the article's {ARTICLE_KB_S} KB/s", median / ARTICLE_KB_S));
        }
    }
}

/// Runs the service, reads its whole output and returns its figure. Fails if a line is missing: a console that drops lines is a fast one.
fn kb_s(world: World, lines: &str) -> Result<f64> {
    let mut command = match world {
        World::Process => Command::new(programs::built("bench-console").context("bench-console is not built")?),
        World::Kvm | World::Tcg => {
            let image = programs::image("bench-console").context("the image of bench-console is not built")?;
            let mut command = Command::new(programs::built("glass").context("glass is not built")?);
            command.arg("run").arg(image).args(["--accel", &world.to_string(), "--net", "none"]);
            command
        }
    };
    let output = command.args(["--", "--lines", lines]).output().context("cannot start it")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let Some(line) = text.lines().find(|line| line.starts_with('{')) else {
        bail!("no result: {}", String::from_utf8_lossy(&output.stderr));
    };
    let result: Value = serde_json::from_str(line).with_context(|| format!("no JSON: {line}"))?;
    let (received, printed) = (text.lines().count() - 1, result["lines"].as_u64().context("no lines")? + WARM_UP_LINES);
    ensure!(received as u64 == printed, "{received} of {printed} lines were received");
    result["kb_s"].as_f64().context("no kb_s")
}
