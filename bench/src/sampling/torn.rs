//! Whether stacks are torn: the tests of the profiler have a guest whose frames show it.

use crate::figure::Figure;
use crate::outcome::Outcome;
use crate::run::Run;
use anyhow::{Context, Result, bail};
use glass_tests::programs;
use std::process::Command;

/// Runs the test at its full size and sums up its output: `kvm with frame pointers: torn 0 / 10000, ...`.
pub fn measure(outcome: &mut Outcome, run: &Run) -> Result<()> {
    if run.is_short() {
        outcome.skip("it is a test of glass-guests, which `cargo xtask test` runs");
        return Ok(());
    }
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args([
        "test",
        "--quiet",
        "--package",
        "glass-profiler-guests",
        "--test",
        "all",
        "truth::",
        "--",
        "--nocapture",
    ]);
    cargo.env("GLASS_TESTS_LONG", "1").current_dir(programs::root());
    let output = cargo.output().context("cannot start cargo")?;
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    if !output.status.success() {
        bail!("the test of the truth failed:\n{text}");
    }
    let (torn, samples) = text.lines().filter_map(parse).fold((0, 0), |sum, line| (sum.0 + line.0, sum.1 + line.1));
    if samples == 0 {
        bail!("the test of the truth prints nothing:\n{text}");
    }
    outcome.note(format!("torn: {torn} of {samples} stacks of the guest whose frames have tokens"));
    outcome.add(Figure::of("sampling.torn_stacks", "stacks", &[torn as f64]));
    Ok(())
}

fn parse(line: &str) -> Option<(u64, u64)> {
    let (torn, rest) = line.split_once(": torn ")?.1.split_once(" / ")?;
    Some((torn.parse().ok()?, rest.split_once(',')?.0.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_test_are_understood() {
        assert_eq!(parse("kvm with frame pointers: torn 1 / 10000, broken or impossible 0"), Some((1, 10_000)));
        assert_eq!(parse("running 4 tests"), None);
        assert_eq!(parse("x: torn of"), None);
    }
}
