//! `cargo xtask fuzz`: mutated inputs for every parser of untrusted input, optimized and with every check on; led by coverage if wanted.

use crate::progress::Steps;
use crate::run;
use anyhow::Result;
use std::path::PathBuf;

/// The machine that glass-fuzz is built for.
const HOST: &str = "x86_64-unknown-linux-gnu";
/// Options of the stable compiler that put a counter of one byte on every edge of the code (decision 23).
const COVERAGE: [&str; 3] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=3",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
];

/// Options of `cargo xtask fuzz`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The parser to fuzz; all by default
    target: Option<String>,
    /// Total duration
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Seed of the cases
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Keep inputs that reach new code in `target/fuzz/corpus`, and change them further
    #[arg(long)]
    coverage: bool,
    /// Runs only this input, which has failed before
    #[arg(long, value_name = "FILE", requires = "target")]
    input: Option<PathBuf>,
}

/// Builds and runs. The inputs of failures are kept in `target/fuzz`.
pub fn run(options: &Options) -> Result<()> {
    /// Of the root's Cargo.toml.
    const PROFILE: &str = "strict";
    let mut steps = Steps::new(2);
    let step = steps.begin("build glass-fuzz with every check", None);
    let mut build = run::cargo(&["build", "--profile", PROFILE, "--package", "glass-fuzz"]);
    let mut folder = run::target_dir();
    if options.coverage {
        folder.push("coverage");
        // A named target, so that build scripts and macros, which run in the compiler, are built without counters.
        build
            .args(["--target", HOST, "--target-dir"])
            .arg(&folder)
            .env("CARGO_ENCODED_RUSTFLAGS", COVERAGE.join("\u{1f}"));
        folder.push(HOST);
    }
    run::shown(&mut build)?;
    step.done("");
    let step = steps.begin("change bytes", None);
    let mut command = std::process::Command::new(folder.join(PROFILE).join("glass-fuzz"));
    command.args(["--seconds", &options.seconds.to_string(), "--seed", &options.seed.to_string()]);
    command.arg("--folder").arg(run::target_dir().join("fuzz"));
    if options.coverage {
        command.arg("--corpus").arg(run::target_dir().join("fuzz/corpus"));
    }
    command.args(&options.target);
    if let Some(path) = &options.input {
        command.arg("--input").arg(path);
    }
    run::streamed(&mut command)?;
    step.done("");
    Ok(())
}
