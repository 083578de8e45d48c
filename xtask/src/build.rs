//! Builds the products that tests, demo and benchmarks run.

use crate::run;
use anyhow::{Context, Result, bail};
use std::path::PathBuf;

/// The services that are built as processes, and as images.
const APPS: [&str; 1] = ["upload-queue"];

/// Folder of the built programs.
pub fn programs() -> PathBuf {
    run::target_dir().join("release")
}

/// Builds the command `glass` and each service as a process.
pub fn processes() -> Result<()> {
    let mut command = run::cargo(&["build", "--release", "--quiet", "--package", "glass-cli"]);
    run::quiet(&mut command)?;
    // Apart from each other: built together, the features of one would end up in the other.
    for app in APPS {
        run::quiet(&mut run::cargo(&["build", "--release", "--quiet", "--package", app]))?;
    }
    let glass = programs().join("glass");
    if !glass.is_file() {
        bail!("the build made no {}", glass.display());
    }
    Ok(())
}

/// Builds each service as a VM image and returns the last line of what `glass build` says.
pub fn images() -> Result<String> {
    let mut last = String::new();
    for app in APPS {
        let mut command = std::process::Command::new(programs().join("glass"));
        command.args(["build", app]).current_dir(run::root());
        let said = run::quiet(&mut command).with_context(|| format!("the image of {app} could not be built"))?;
        last = said.lines().last().unwrap_or_default().to_owned();
    }
    Ok(last)
}
