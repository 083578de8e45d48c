//! Whether the sampled shares agree with the shares that QEMU counts.

use crate::figure::Figure;
use crate::outcome::{Outcome, Progress};
use anyhow::Result;
use glass_tests::folder::Folder;
use glass_tests::oracle::comparison::{self, Function};
use glass_tests::process::Process;
use std::process::Command;

/// Length of a run, for 20,000 samples and more.
const SECONDS: u32 = 280;
/// The same while two processes keep the CPUs busy.
const BUSY_SECONDS: u32 = 420;
/// Runs of each kind.
const ROUNDS: usize = 3;
/// Functions that are shown.
const SHOWN: usize = 12;
/// Processes that spin.
const SPINNING: usize = 2;

/// Measures with an idle host, and with processes that keep each CPU busy.
pub fn measure(outcome: &mut Outcome, progress: Progress) -> Result<()> {
    let rounds = ROUNDS as u64;
    if compare(outcome, "oracle", SECONDS, &|done| progress(done, 2 * rounds))? {
        let folder = Folder::new("oracle-busy")?;
        let spin = |index| {
            Process::spawn(
                Command::new("sh").args(["-c", "while :; do :; done"]),
                &folder.file(&format!("{index}.log")),
            )
        };
        let _spinning = (0..SPINNING).map(spin).collect::<Result<Vec<_>>>()?;
        compare(outcome, "oracle_busy", BUSY_SECONDS, &|done| progress(rounds + done, 2 * rounds))?;
    }
    outcome.note(
        "oracle: all functions, without the time in which the guest was stopped; `deviation` is the standard deviation, by chance, of the share of the function that differs most",
    );
    Ok(())
}

/// Returns whether it could be measured.
fn compare(outcome: &mut Outcome, name: &str, seconds: u32, progress: &dyn Fn(u64)) -> Result<bool> {
    let (mut differences, mut deviations, mut samples) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let Some(comparison) = comparison::run(seconds)? else { return Ok(false) };
        let worst = comparison.worst();
        differences.extend(worst.map(Function::difference_points));
        deviations.extend(worst.map(|function| function.deviation_points(comparison.samples)));
        samples.push(comparison.samples as f64);
        progress(round as u64 + 1);
        if round + 1 == ROUNDS {
            outcome.note(format!(
                "{name}: {} samples of the upload queue under load (TCG) in the last of {ROUNDS} runs; sampled, time and instructions by QEMU's plugin, calls:",
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
    }
    outcome.add(Figure::of(&format!("sampling.{name}_difference_points"), "points", &differences));
    outcome.add(Figure::of(&format!("sampling.{name}_deviation_points"), "points", &deviations));
    outcome.add(Figure::of(&format!("sampling.{name}_samples"), "samples", &samples));
    Ok(true)
}
