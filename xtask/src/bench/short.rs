//! Each measurement for a moment, as a test that it works. Figures are not printed.

use crate::progress::locked;
use crate::suite::{self, Tally};
use crate::{build, packages};
use anyhow::Result;
use glass_bench::Measurement;
use glass_bench::outcome::Outcome;
use glass_bench::run::Run;
use glass_tests::limit;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The variable for the folder of the programs that are run.
const PROGRAMS: &str = "GLASS_PROGRAMS";
/// A measurement that takes longer hangs, however busy the machine is.
const LIMIT: Duration = Duration::from_secs(600);
/// Measurements in parallel: they wait much.
const THREADS: usize = 2;

/// Runs measurements; their programs are built first if no folder has them.
pub fn run(name: Option<&str>, part: Option<&str>) -> Result<()> {
    let measurements = measurements(name, part)?;
    if has_programs() {
        println!("running {} tests", measurements.len());
        for measurement in measurements {
            println!("{}", result(&measurement.to_string(), move || measurement.run(&Run::short())));
        }
        return Ok(());
    }
    packages::ensure(packages::FOR_TEST)?;
    suite::build_glass()?;
    build::services_for_tests(false, true)?;
    build::vmm()?;
    suite::build(&[&["--workspace", "--lib"], &build::BENCHMARK_EXAMPLES[..]].concat())?;
    let tally = test(measurements)?;
    println!("{}", tally.line());
    tally.verdict()
}

/// Whether the folder of the programs is given.
pub(super) fn has_programs() -> bool {
    std::env::var_os(PROGRAMS).is_some()
}

/// What runs for a moment: all that there is, so that none can be forgotten.
pub(super) fn measurements(name: Option<&str>, part: Option<&str>) -> Result<Vec<Measurement>> {
    glass_bench::measurements(name, part)
}

/// Runs every measurement, as `test` does.
pub fn test_all() -> Result<Tally> {
    test(measurements(None, None)?)
}

/// This program, also if the build of the tests has replaced its file.
const OURSELVES: &str = "/proc/self/exe";

/// Runs measurements with the programs of the tests, each in a process of its own: one that hangs ends it.
fn test(measurements: Vec<Measurement>) -> Result<Tally> {
    let measurements = Mutex::new(measurements);
    let total = Mutex::new(Tally::default());
    // The lock is released before it runs.
    let next = || locked(&measurements).pop();
    let work = || {
        while let Some(Measurement { benchmark, part, .. }) = next() {
            let mut command = Command::new(OURSELVES);
            command.args(["bench", "--short", benchmark]).args(Some(part).filter(|part| !part.is_empty()));
            command.env(PROGRAMS, build::tested()).env("GLASS_TESTS_REQUIRED", "1");
            let tally = suite::execute("benchmarks", &mut command);
            locked(&total).add(tally);
        }
    };
    std::thread::scope(|scope| (0..THREADS).for_each(|_| _ = scope.spawn(work)));
    Ok(total.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// The line of one measurement, and a second one with the reason if nothing was measured.
fn result(name: &str, measure: impl FnOnce() -> Result<Outcome> + Send + 'static) -> String {
    let thread = std::thread::Builder::new().name(name.to_owned());
    let outcome = match thread.spawn(|| limit::within(LIMIT, measure)).map(|thread| thread.join()) {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => Err(anyhow::anyhow!("it panicked")),
        Err(error) => Err(error.into()),
    };
    match outcome {
        Ok(Outcome { skipped: Some(reason), .. }) => format!("skipped {name}: {reason}\ntest {name} ... ok"),
        Ok(_) => format!("test {name} ... ok"),
        Err(error) => format!("{name}: {error:#}\ntest {name} ... FAILED"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the lines as `cargo xtask test` does.
    fn counted(measure: fn() -> Result<Outcome>) -> Tally {
        let text = format!("running 1 tests\n{}", result("boot", measure));
        suite::execute("benchmarks", Command::new("printf").args(["%s\n", &text]))
    }

    #[test]
    fn measurements_are_counted_as_tests() {
        let passed = counted(|| Ok(Outcome::default()));
        assert_eq!(passed.line(), "1 passed, 0 failed, 0 skipped");
        let skipped = counted(|| Ok(Outcome { skipped: Some("no KVM".to_owned()), ..Outcome::default() }));
        assert_eq!(skipped.line(), "0 passed, 0 failed, 1 skipped");
        let failed = counted(|| anyhow::bail!("glass ended"));
        assert_eq!(failed.failed.keys().collect::<Vec<_>>(), ["benchmarks: boot"]);
        assert_eq!(counted(|| panic!("not built")).failed.len(), 1);
    }
}
