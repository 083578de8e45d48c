//! Side-by-side measurements: what is measured, how runs alternate, and the one form of a result.
//!
//! A measurement only runs built programs. `cargo xtask bench NAME` builds them, calls
//! [`run`], prints the table and writes the JSON.
#![forbid(unsafe_code)]

mod block;
mod boot;
pub mod figure;
mod idle;
mod nginx;
pub mod outcome;
mod sampling;
mod size;
pub mod statistics;
mod tracing;
mod transfer;

use anyhow::{Result, bail};
use outcome::{Outcome, Progress};

/// The measurements that there are.
pub const NAMES: [&str; 6] = ["boot", "queue", "idle", "sampling", "tracing", "size"];

/// Runs the measurement `name`.
pub fn run(name: &str, progress: Progress) -> Result<Outcome> {
    match name {
        "boot" => boot::run(progress),
        "queue" => transfer::run(progress),
        "idle" => idle::run(progress),
        "sampling" => sampling::run(progress),
        "tracing" => tracing::run(progress),
        "size" => size::run(),
        _ => bail!("there is no benchmark {name:?}; there is: {}", NAMES.join(", ")),
    }
}
