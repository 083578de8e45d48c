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
mod perf;
mod sampling;
mod size;
pub mod statistics;
mod tracing;
mod transfer;

use anyhow::{Result, bail};
use outcome::{Outcome, Progress, run_parts};

/// The measurements that there are.
pub const NAMES: [&str; 7] = ["boot", "queue", "idle", "sampling", "tracing", "size", "perf"];

/// Runs the measurement `name`, or one part of it if it has parts.
pub fn run(name: &str, part: Option<&str>, progress: Progress) -> Result<Outcome> {
    match (name, part) {
        ("sampling", part) => run_parts(&sampling::PARTS, part, progress),
        ("tracing", part) => run_parts(&tracing::PARTS, part, progress),
        (_, Some(part)) => bail!("{name} has no part {part:?}: it is measured as a whole"),
        ("boot", None) => boot::run(progress),
        ("queue", None) => transfer::run(progress),
        ("idle", None) => idle::run(progress),
        ("size", None) => size::run(),
        ("perf", None) => perf::run(progress),
        _ => bail!("there is no benchmark {name:?}; there is: {}", NAMES.join(", ")),
    }
}
