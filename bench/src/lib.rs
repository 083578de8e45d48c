//! Side-by-side measurements: the subjects, the alternation of runs, and the one form of a result.
//!
//! A measurement only runs built programs. `cargo xtask bench NAME` builds them, calls
//! [`run`], prints the table and writes the JSON.
#![forbid(unsafe_code)]

mod block;
mod boot;
mod console;
mod cores;
mod disk;
pub mod figure;
mod idle;
mod load;
mod mpi;
mod network;
pub mod outcome;
mod peers;
mod perf;
mod platform;
mod sampling;
mod size;
pub mod statistics;
mod tracing;
mod transfer;
mod vsock;
mod web;
mod xen;

use anyhow::{Result, bail};
use outcome::{Outcome, Progress, run_parts};

/// The measurements that there are.
pub const NAMES: [&str; 16] = [
    "boot", "platform", "queue", "network", "disk", "console", "idle", "sampling", "tracing", "size", "perf", "mpi",
    "cores", "xen", "web", "vsock",
];

/// Runs the measurement `name`, or one part of it if it has parts.
pub fn run(name: &str, part: Option<&str>, progress: Progress) -> Result<Outcome> {
    match (name, part) {
        ("sampling", part) => run_parts(&sampling::PARTS, part, progress),
        ("network", part) => run_parts(&network::PARTS, part, progress),
        ("queue", part) => run_parts(&transfer::PARTS, part, progress),
        ("tracing", part) => run_parts(&tracing::PARTS, part, progress),
        ("platform", part) => run_parts(&platform::PARTS, part, progress),
        ("xen", part) => run_parts(&xen::PARTS, part, progress),
        ("web", part) => web::run(part, progress),
        (_, Some(part)) => bail!("{name} has no part {part:?}: it is measured as a whole"),
        ("boot", None) => boot::run(progress),
        ("console", None) => console::run(progress),
        ("disk", None) => disk::run(progress),
        ("idle", None) => idle::run(progress),
        ("size", None) => size::run(),
        ("perf", None) => perf::run(progress),
        ("mpi", None) => mpi::run(progress),
        ("cores", None) => cores::run(progress),
        ("vsock", None) => vsock::run(progress),
        _ => bail!("there is no benchmark {name:?}; there is: {}", NAMES.join(", ")),
    }
}
