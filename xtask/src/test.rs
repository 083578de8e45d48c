//! `cargo xtask test`: the host's tests, then the end-to-end tests against built programs.

use crate::progress::Steps;
use crate::{build, packages, run};
use anyhow::{Result, bail};

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
    run::streamed(&mut run::cargo(&["test", "--workspace", "--exclude", "glass-tests", "--quiet", "--no-fail-fast"]))?;
    step.done("");

    let step = steps.begin("the trace ring under every order of memory accesses", None);
    step.done(&check_ring()?);

    let step = steps.begin("tests end to end", None);
    // Two at a time: each runs a VM or a service of its own, and their time limits assume a quiet core.
    let mut command = run::cargo(&["test", "--package", "glass-tests", "--no-fail-fast", "--", "--test-threads=2"]);
    command.env("GLASS_PROGRAMS", build::programs()).env("GLASS_TESTS_REQUIRED", "1");
    if options.long {
        command.env("GLASS_TESTS_LONG", "1");
    }
    // Nothing may follow the runner's closing lines, so the step ends before them.
    step.done("running");
    run::streamed(&mut command)
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
