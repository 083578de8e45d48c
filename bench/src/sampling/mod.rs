//! `sampling`: the cost of sampling for a guest, and the accuracy of the samples.

mod guest;
mod loss;
mod monitor;
mod oracle;
mod pauses;
mod record;
mod torn;

use crate::outcome::Part;

/// The measurements; those that this machine cannot do are left out with a note.
pub const PARTS: [Part; 5] = [
    ("pauses", |outcome, _| pauses::measure(outcome)),
    ("loss", loss::measure),
    ("record", |outcome, _| record::measure(outcome)),
    ("torn", |outcome, _| torn::measure(outcome)),
    ("oracle", oracle::measure),
];
