//! Whether the sampled shares are those that QEMU counts.

use crate::figure::Figure;
use crate::outcome::Outcome;
use anyhow::Result;
use glass_tests::oracle::comparison::{self, Function};

/// Length of a run.
const SECONDS: u32 = 10;
/// Runs.
const ROUNDS: usize = 5;
/// Functions that are shown.
const SHOWN: usize = 12;

/// Measures.
pub fn measure(outcome: &mut Outcome) -> Result<()> {
    let (mut differences, mut deviations) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let Some(comparison) = comparison::run(SECONDS)? else { return Ok(()) };
        let worst = comparison.worst();
        differences.extend(worst.map(Function::difference_points));
        deviations.extend(worst.map(|function| function.deviation_points(comparison.samples)));
        if round + 1 == ROUNDS {
            outcome.note(format!(
                "oracle: {} samples of the upload queue under load (TCG) in the last of {ROUNDS} runs; sampled, time and instructions by QEMU's plugin, calls:",
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
    outcome.add(Figure::of("sampling.oracle_difference_points", "points", &differences));
    outcome.add(Figure::of("sampling.oracle_deviation_points", "points", &deviations));
    outcome.note(
        "oracle: `deviation` is the standard deviation, by chance, of the share of the function that differs most",
    );
    Ok(())
}
