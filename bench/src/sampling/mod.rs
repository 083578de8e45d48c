//! `sampling`: what it costs a guest to be looked at, and whether what is seen is true.

mod guest;
mod loss;
mod monitor;
mod oracle;
mod pauses;
mod record;
mod torn;

use crate::outcome::Part;

/// What is measured; what this machine cannot do is noted and left out.
pub const PARTS: [Part; 5] = [
    ("pauses", |outcome, _| pauses::measure(outcome)),
    ("loss", |outcome, _| loss::measure(outcome)),
    ("record", |outcome, _| record::measure(outcome)),
    ("torn", |outcome, _| torn::measure(outcome)),
    ("oracle", |outcome, _| oracle::measure(outcome)),
];
