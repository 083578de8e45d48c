//! `cargo xtask test`: the host's tests, then the end-to-end tests against built programs.

use crate::progress::Steps;
use crate::{build, packages, run};
use anyhow::{Result, bail};
use std::process::Command;

/// If more test targets fail than these, that is no bad luck.
const RETRIED_MAX: usize = 2;

/// Options of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// A missing program is a failure, not a reason to skip
    #[arg(long)]
    ci: bool,
    /// Full sizes and counts: 1 GiB bodies, 50 kills, 10,000 random requests
    #[arg(long)]
    long: bool,
}

/// Installs, builds and runs everything. The test runner's closing lines are the last ones printed.
pub fn run(options: &Options) -> Result<()> {
    let missing = packages::ensure(packages::FOR_TEST)?;
    if options.ci && !missing.is_empty() {
        let programs: Vec<&str> = missing.iter().map(|package| package.program).collect();
        bail!("these programs are missing: {}", programs.join(", "));
    }
    let mut steps = Steps::new(6);
    let step = steps.begin("build glass and the services as processes", None);
    build::processes()?;
    step.done("");
    let step = steps.begin("build the services as images", None);
    step.done(&build::images()?);

    let step = steps.begin("build the tests", None);
    run::quiet(&mut run::cargo(&["test", "--workspace", "--no-run", "--quiet"]))?;
    step.done("");
    let step = steps.begin("tests on the host", None);
    let host = ["--workspace", "--exclude", "glass-tests", "--quiet", "--no-fail-fast"].map(String::from);
    tests(&host, &|_| ())?;
    step.done("");

    let step = steps.begin("the trace ring under every order of memory accesses", None);
    step.done(&check_ring()?);

    let step = steps.begin("tests end to end", None);
    // Nothing may follow the runner's closing lines, so the step ends before them.
    step.done("running");
    // Two at a time: each runs a VM or a service of its own, and their time limits assume a quiet core.
    let prepare = |command: &mut Command| {
        command.args(["--", "--test-threads=2"]);
        command.env("GLASS_PROGRAMS", build::programs()).env("GLASS_TESTS_REQUIRED", "1");
        if options.long {
            command.env("GLASS_TESTS_LONG", "1");
        }
    };
    tests(&["--package", "glass-tests", "--no-fail-fast"].map(String::from), &prepare)
}

/// Runs `cargo test`. A few targets that fail are run once more by themselves: on a machine that somebody else
/// uses too a test may fail for want of time. The first failure stays in the output; a fault fails again.
fn tests(selection: &[String], prepare: &dyn Fn(&mut Command)) -> Result<()> {
    let command = |selection: &[String]| {
        let mut command = run::cargo(&["test"]);
        prepare(command.args(selection));
        command
    };
    let mut first = command(selection);
    let (status, errors) = run::streamed_errors(&mut first)?;
    if status.success() {
        return Ok(());
    }
    let failed = failed_targets(&errors);
    if failed.is_empty() || failed.len() > RETRIED_MAX {
        bail!("`{}` failed ({status})", run::described(&first));
    }
    for target in failed {
        eprintln!("FLAKY, unless it fails again now: `cargo test {}` by itself", target.join(" "));
        run::streamed(&mut command(&target))?;
    }
    Ok(())
}

/// The targets that `cargo test --no-fail-fast` names at its end, each as arguments that select it.
fn failed_targets(errors: &str) -> Vec<Vec<String>> {
    let lines = errors.lines().skip_while(|line| !(line.starts_with("error: ") && line.contains("failed:"))).skip(1);
    let target = |line: &str| line.trim().strip_prefix('`')?.strip_suffix('`').map(str::to_owned);
    let words = |target: String| target.split(' ').map(str::to_owned).collect();
    lines.map_while(target).map(words).collect()
}

/// The crate `loom` replaces the atomics in a build of its own.
fn check_ring() -> Result<String> {
    let folder = run::target_dir().join("loom");
    let mut command = run::cargo(&["test", "--package", "glass-formats", "--release", "--quiet", "--test", "ring"]);
    command.arg("--target-dir").arg(folder).env("RUSTFLAGS", "--cfg loom").args(["--", "--nocapture"]);
    let output = run::quiet(&mut command)?;
    let count = |line: &str| line.split_once(" executions")?.0.trim_start_matches('.').parse::<u64>().ok();
    Ok(format!("{} executions", output.lines().filter_map(count).sum::<u64>()))
}

#[cfg(test)]
mod tests {
    use super::failed_targets;

    #[test]
    fn failed_targets_are_those_that_cargo_lists() {
        let errors = "error: test failed, to rerun pass `-p hello --test trace`\nerror: 2 targets failed:\n    \
                      `-p hello --test trace`\n    `-p glass-net --lib`\nthe end\n";
        let expected = [vec!["-p", "hello", "--test", "trace"], vec!["-p", "glass-net", "--lib"]];
        assert_eq!(failed_targets(errors), expected);
        assert_eq!(failed_targets("error: could not compile `hello`\n"), Vec::<Vec<String>>::new());
    }
}
