//! `perf`: a profile of a process by `glass record`, beside `perf record` on the same process at the same time.
//!
//! The comparison is of each function's self time in user space: since both sample the same population, shares differ only by
//! chance, and names do not differ.

mod cases;
mod corpus;
mod described;
pub(crate) mod names;
mod shares;
mod stacks;

use std::process::Command;

use anyhow::Result;

use crate::Part;
use crate::figure::Figure;
use crate::outcome::Outcome;
use crate::run::Run;
use cases::{CASES, Ready};
use shares::{Comparison, Shares};

/// How long each program is recorded.
const SECONDS: u32 = 20;
/// Functions that are compared, of either profiler.
const TOP: usize = 10;

/// The parts of this measurement.
pub const PARTS: [Part; 3] = [("shares", compare_shares), ("stacks", stacks::run), ("names", corpus::run)];

/// Compares all programs that this machine can build.
fn compare_shares(outcome: &mut Outcome, run: &Run) -> Result<()> {
    if let Some(reason) = cases::obstacle() {
        outcome.skip(reason);
        return Ok(());
    }
    outcome.note(version());
    let cases = run.size(&CASES[..], &CASES[CASES.len() - 1..]);
    for (index, (name, prepare)) in cases.iter().enumerate() {
        run.done(index, cases.len());
        match prepare()? {
            Ready::Skipped(reason) => outcome.note(format!("{name}: skipped, {reason}")),
            Ready::Runs(mut running) => {
                let (glass, perf) = running.record(run.size(SECONDS, 1))?;
                add(outcome, name, &glass, &perf);
                run.figures(outcome);
            }
        }
    }
    outcome.note(format!(
        "difference: the largest of the {TOP} hottest functions of either profiler, in points of all samples in user space; it may be 5 standard errors + 1 point (`allowed`)"
    ));
    Ok(())
}

fn add(outcome: &mut Outcome, name: &str, glass: &Shares, perf: &Shares) {
    let compared = Comparison::of(glass, perf, TOP);
    let figure = |what: &str, unit: &str, value: f64| Figure::of(&format!("perf.{name}.{what}"), unit, &[value]);
    if let Some(worst) = compared.worst() {
        outcome.add(figure("difference_points", "points", worst.difference_points()));
        outcome.add(figure("allowed_points", "points", worst.allowed_points(glass, perf)));
    }
    outcome.add(figure("wrong_names", "functions", compared.wrong_names as f64));
    outcome.add(figure("samples", "samples", glass.samples as f64));
    let holds = if compared.holds(glass, perf) { "holds" } else { "DOES NOT HOLD" };
    outcome.note(format!("{name}: {holds}; glass {}, perf {} samples; glass, perf:", glass.samples, perf.samples));
    for function in &compared.functions {
        outcome.note(format!("  {:5.1} % {:5.1} %  {}", function.glass_percent, function.perf_percent, function.name));
    }
}

fn version() -> String {
    let output = Command::new("perf").arg("--version").output();
    output.map_or_else(|_| "perf".to_owned(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
