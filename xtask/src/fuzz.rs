//! `cargo xtask fuzz`: mutated inputs for every parser of untrusted input, optimized and with every check on.

use crate::progress::Steps;
use crate::run;
use anyhow::Result;
use std::path::PathBuf;

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
    run::shown(&mut run::cargo(&["build", "--profile", PROFILE, "--package", "glass-fuzz"]))?;
    step.done("");
    let step = steps.begin("change bytes", None);
    let mut command = std::process::Command::new(run::target_dir().join(PROFILE).join("glass-fuzz"));
    command.args(["--seconds", &options.seconds.to_string(), "--seed", &options.seed.to_string()]);
    command.arg("--folder").arg(run::target_dir().join("fuzz"));
    command.args(&options.target);
    if let Some(path) = &options.input {
        command.arg("--input").arg(path);
    }
    run::streamed(&mut command)?;
    step.done("");
    Ok(())
}
