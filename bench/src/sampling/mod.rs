//! `sampling`: the cost of sampling for a guest, and the accuracy of the samples.

mod guest;
mod loss;
mod monitor;
mod oracle;
mod pauses;
mod record;
mod torn;

use crate::Part;

/// The measurements; those that this machine cannot do are left out with a note.
pub const PARTS: [Part; 5] = [
    ("pauses", pauses::measure),
    ("loss", loss::measure),
    ("record", record::measure),
    ("torn", torn::measure),
    ("oracle", oracle::measure),
];
