//! Side-by-side measurements: the subjects, the alternation of runs, and the one form of a result.
//!
//! A measurement only runs built programs. `cargo xtask bench NAME` builds them, calls
//! [`run`], prints the table and writes the JSON.
#![deny(unsafe_code)]

mod agent;
mod block;
mod boot;
mod console;
mod cores;
mod disk;
pub mod figure;
mod fork;
mod idle;
mod linux;
mod load;
mod mpi;
mod network;
pub mod outcome;
mod peers;
mod perf;
mod platform;
mod plot;
pub mod run;
mod sampling;
mod size;
pub mod statistics;
mod store;
#[allow(unsafe_code)] // Two `ioctl`s.
mod sys;
mod tls;
mod tracing;
mod transfer;
mod vsock;
mod web;
mod xen;

use anyhow::{Result, bail};
use outcome::Outcome;
use run::Run;
use std::fmt;

/// A part of a benchmark: its name, empty if it is the whole, and what adds its figures.
pub type Part = (&'static str, fn(&mut Outcome, &Run) -> Result<()>);

/// A benchmark.
pub struct Benchmark {
    /// Its name.
    pub name: &'static str,
    /// Its parts, each of which can be measured by itself.
    parts: &'static [Part],
}

impl Benchmark {
    /// The names of its parts; of one that has only one part an empty name.
    pub fn part_names(&self) -> impl Iterator<Item = &'static str> {
        self.parts.iter().map(|(name, _)| *name)
    }
}

/// All of them.
pub const BENCHMARKS: [Benchmark; 21] = [
    Benchmark { name: "boot", parts: &[("", boot::run)] },
    Benchmark { name: "fork", parts: &[("", fork::run)] },
    Benchmark { name: "platform", parts: &platform::PARTS },
    Benchmark { name: "queue", parts: &transfer::PARTS },
    Benchmark { name: "network", parts: &network::PARTS },
    Benchmark { name: "disk", parts: &disk::PARTS },
    Benchmark { name: "store", parts: &[("", store::run)] },
    Benchmark { name: "console", parts: &[("", console::run)] },
    Benchmark { name: "idle", parts: &[("", idle::run)] },
    Benchmark { name: "sampling", parts: &sampling::PARTS },
    Benchmark { name: "tracing", parts: &tracing::PARTS },
    Benchmark { name: "size", parts: &[("", size::run)] },
    Benchmark { name: "perf", parts: &perf::PARTS },
    Benchmark { name: "mpi", parts: &[("", mpi::run)] },
    Benchmark { name: "cores", parts: &[("", cores::run)] },
    Benchmark { name: "xen", parts: &xen::PARTS },
    Benchmark { name: "web", parts: &web::PARTS },
    Benchmark { name: "vsock", parts: &[("", vsock::run)] },
    Benchmark { name: "linux", parts: &linux::PARTS },
    Benchmark { name: "tls", parts: &[("", tls::run)] },
    Benchmark { name: "agent", parts: &[("", agent::run)] },
];

/// One part of one benchmark.
#[derive(Clone, Copy)]
pub struct Measurement {
    /// The benchmark.
    pub benchmark: &'static str,
    /// Its part; empty if it has only one.
    pub part: &'static str,
    measure: fn(&mut Outcome, &Run) -> Result<()>,
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.benchmark)?;
        if self.part.is_empty() { Ok(()) } else { write!(f, " {}", self.part) }
    }
}

impl Measurement {
    /// Measures. Fails also if there is neither a figure nor a reason why there is none.
    pub fn run(&self, run: &Run) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        (self.measure)(&mut outcome, run)?;
        if outcome.figures.is_empty() && outcome.skipped.is_none() {
            bail!("nothing was measured: {}", outcome.notes.join("; "));
        }
        Ok(outcome)
    }
}

/// What is measured: everything, one benchmark, or one part of one.
pub fn measurements(name: Option<&str>, part: Option<&str>) -> Result<Vec<Measurement>> {
    let benchmarks = BENCHMARKS.iter().filter(|benchmark| name.is_none_or(|name| benchmark.name == name));
    let measurements: Vec<Measurement> = benchmarks
        .flat_map(|benchmark| benchmark.parts.iter().map(|(part, measure)| (benchmark.name, *part, *measure)))
        .map(|(benchmark, part, measure)| Measurement { benchmark, part, measure })
        .collect();
    let chosen: Vec<Measurement> =
        measurements.iter().filter(|found| part.is_none_or(|part| found.part == part)).copied().collect();
    if chosen.is_empty() {
        let names: Vec<String> = measurements.iter().map(Measurement::to_string).collect();
        bail!("there is no such part; there is: {}", names.join(", "));
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_part_or_all() {
        let names = |name, part| {
            let found = measurements(name, part).map(|found| found.iter().map(Measurement::to_string).collect());
            found.map(|names: Vec<String>| names.join(", ")).map_err(|error| error.to_string())
        };
        assert_eq!(names(Some("boot"), None).unwrap(), "boot");
        assert_eq!(names(Some("platform"), None).unwrap(), "platform wakes, platform tx-blocked");
        assert_eq!(names(Some("platform"), Some("wakes")).unwrap(), "platform wakes");
        let missing = names(Some("platform"), Some("c")).unwrap_err();
        assert_eq!(missing, "there is no such part; there is: platform wakes, platform tx-blocked");
        assert!(names(Some("boot"), Some("c")).is_err());
        assert!(measurements(None, None).unwrap().len() > BENCHMARKS.len());
    }

    #[test]
    fn without_a_figure_there_is_a_reason() {
        let measured = |measure| Measurement { benchmark: "a", part: "b", measure }.run(&Run::short());
        assert!(measured(|_, _| Ok(())).is_err());
        let of_noise = measured(|outcome, _| {
            outcome.note("five rounds");
            Ok(())
        });
        assert_eq!(of_noise.unwrap_err().to_string(), "nothing was measured: five rounds");
        let outcome = measured(|outcome, _| {
            outcome.skip("no such machine");
            Ok(())
        });
        assert_eq!(outcome.unwrap().skipped.as_deref(), Some("no such machine"));
    }
}
