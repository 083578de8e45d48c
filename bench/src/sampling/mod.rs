//! `sampling`: what it costs a guest to be looked at, and whether what is seen is true.

mod guest;
mod loss;
mod monitor;
mod oracle;
mod pauses;
mod record;
mod torn;

use crate::outcome::{Outcome, Progress};
use anyhow::Result;

/// One part of the measurement.
type Part = fn(&mut Outcome) -> Result<()>;

/// Each part measures by itself and adds its figures.
const PARTS: [Part; 5] = [pauses::measure, loss::measure, record::measure, torn::measure, oracle::measure];

/// Measures; what this machine cannot do is noted and left out.
pub fn run(progress: Progress) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    for (index, part) in PARTS.iter().enumerate() {
        part(&mut outcome)?;
        progress(index as u64 + 1, PARTS.len() as u64);
    }
    Ok(outcome)
}
