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
        "oracle: all functions, without the time in which the guest was stopped; `deviation` is the standard deviation, by chance, of the share of the function that differs most; a longer measurement (--minutes) has more samples",
    );
    Ok(())
}

/// What the runs of one kind have given.
#[derive(Default)]
struct Samples {
    differences: Vec<f64>,
    deviations: Vec<f64>,
    counts: Vec<f64>,
}

fn compare(outcome: &mut Outcome, name: &str, run: &Run) -> Result<()> {
    let seconds = seconds(run.time_left());
    let mut samples = Samples::default();
    for round in run.rounds(ROUNDS) {
        let comparison = comparison::run(seconds as u32)?.context("the queue is not built")?;
        let worst = comparison.worst();
        samples.differences.extend(worst.map(Function::difference_points));
        samples.deviations.extend(worst.map(|function| function.deviation_points(comparison.samples)));
        samples.counts.push(comparison.samples as f64);
        run.so_far(outcome, |so_far| add(so_far, name, &samples));
        if round == 0 {
            note(outcome, name, &comparison);
        }
    }
    add(outcome, name, &samples);
    Ok(())
}

/// The length of each recording, if all runs have this time.
fn seconds(time: Duration) -> u64 {
    (time / ROUNDS as u32).saturating_sub(AROUND).as_secs().max(SECONDS_LEAST)
}

fn add(outcome: &mut Outcome, name: &str, samples: &Samples) {
    outcome.add(Figure::of(&format!("sampling.{name}_difference_points"), "points", &samples.differences));
    outcome.add(Figure::of(&format!("sampling.{name}_deviation_points"), "points", &samples.deviations));
    outcome.add(Figure::of(&format!("sampling.{name}_samples"), "samples", &samples.counts));
}

fn note(outcome: &mut Outcome, name: &str, comparison: &Comparison) {
    outcome.note(format!(
        "{name}: {} samples of the upload queue under load (TCG) in the first of the runs; sampled, time and instructions by QEMU's plugin, calls:",
        comparison.samples
    ));
    for function in comparison.functions.iter().take(SHOWN) {
        outcome.note(format!(
            "  {:5.1} % {:5.1} % {:5.1} % {:9}  {}",
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
