//! Whether the sampled shares agree with the shares that QEMU counts.

use crate::figure::Figure;
use crate::outcome::Outcome;
use crate::run::Run;
use anyhow::{Context, Result};
use glass_tests::folder::Folder;
use glass_tests::oracle::comparison::{self, Comparison, Function};
use glass_tests::process::Process;
use glass_tests::queue::World;
use std::process::Command;
use std::time::Duration;

/// Runs of each kind.
const ROUNDS: usize = 5;
/// What a run needs besides its recording: a boot of the guest, and names for the samples.
const AROUND: Duration = Duration::from_secs(10);
/// The shortest recording.
const SECONDS_LEAST: u64 = 2;
/// Functions that are shown.
const SHOWN: usize = 12;
/// Processes that spin.
const SPINNING: usize = 2;

/// Measures with an idle host, and with processes that keep each CPU busy.
pub fn measure(outcome: &mut Outcome, run: &Run) -> Result<()> {
    if let Some(reason) = World::Tcg.obstacle() {
        outcome.skip(reason);
        return Ok(());
    }
    compare(outcome, "oracle", &run.part(0, 2))?;
    let folder = Folder::new("oracle-busy")?;
    let spin = |index| {
        Process::spawn(Command::new("sh").args(["-c", "while :; do :; done"]), &folder.file(&format!("{index}.log")))
    };
    let _spinning = (0..SPINNING).map(spin).collect::<Result<Vec<_>>>()?;
    compare(outcome, "oracle_busy", &run.part(1, 2))?;
    outcome.note(
        "oracle: all functions, without the time in which the guest was stopped; `deviation` is the standard deviation, by chance, of the share of the function that differs most; `run_difference` is of each run alone; a longer measurement (--minutes) has more samples",
    );
    Ok(())
}

fn compare(outcome: &mut Outcome, name: &str, run: &Run) -> Result<()> {
    let seconds = seconds(run.time_left());
    let mut rounds = Vec::new();
    for _ in run.rounds(ROUNDS) {
        rounds.push(comparison::run(seconds as u32)?.context("the queue is not built")?);
        run.so_far(outcome, |so_far| add(so_far, name, &rounds));
    }
    add(outcome, name, &rounds);
    if let Some(all) = Comparison::together(&rounds) {
        note(outcome, name, &all);
    }
    Ok(())
}

/// The length of each recording, if all runs have this time.
fn seconds(time: Duration) -> u64 {
    (time / ROUNDS as u32).saturating_sub(AROUND).as_secs().max(SECONDS_LEAST)
}

/// The figures of the runs together, and how much each run differs: chance makes that larger.
fn add(outcome: &mut Outcome, name: &str, rounds: &[Comparison]) {
    let Some(all) = Comparison::together(rounds) else { return };
    let figure = |what: &str, unit: &str, values: &[f64]| Figure::of(&format!("sampling.{name}_{what}"), unit, values);
    if let Some(worst) = all.worst() {
        outcome.add(figure("difference_points", "points", &[worst.difference_points()]));
        outcome.add(figure("deviation_points", "points", &[worst.deviation_points(all.samples)]));
    }
    let differences: Vec<f64> = rounds.iter().filter_map(Comparison::worst).map(Function::difference_points).collect();
    outcome.add(figure("run_difference_points", "points", &differences));
    outcome.add(figure("samples", "samples", &[all.samples as f64]));
}

fn note(outcome: &mut Outcome, name: &str, comparison: &Comparison) {
    outcome.note(format!(
        "{name}: {} samples of the upload queue under load (TCG) in all runs; sampled, time and instructions by QEMU's plugin, calls:",
        comparison.samples
    ));
    for function in comparison.functions.iter().take(SHOWN) {
        outcome.note(format!(
            "  {:6.2} % {:6.2} % {:6.2} % {:9}  {}",
            function.sampled_percent,
            function.time_percent,
            function.instructions_percent,
            function.calls,
            function.name
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_runs_fit_into_the_time() {
        let half = Duration::from_secs(300);
        assert_eq!(seconds(half), 50);
        assert!((Duration::from_secs(seconds(half)) + AROUND) * ROUNDS as u32 <= half);
        assert_eq!(seconds(Duration::ZERO), SECONDS_LEAST);
    }
}
