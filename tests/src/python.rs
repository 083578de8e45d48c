//! Programs from Python's registry, in an environment of their own that the cache keeps.

use anyhow::{Context, Result, ensure};
use std::path::PathBuf;
use std::process::Command;

use crate::cache;

/// The environment of a package, `NAME==VERSION`, which is installed there first. Its programs are in `bin`, which start wherever the
/// environment was moved to only if they are no scripts.
///
/// # Errors
/// There is no Python with `venv`, or the registry cannot be reached.
pub fn environment(package: &str) -> Result<PathBuf> {
    let kept = cache::filled(&package.replace("==", "-"), |folder| {
        ran(Command::new("python3").args(["-m", "venv"]).arg(folder.join("venv")))?;
        ran(Command::new(folder.join("venv/bin/python")).args(["-m", "pip", "install", "--quiet", package]))
    })?;
    Ok(kept.join("venv"))
}

fn ran(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot start {name}"))?;
    ensure!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
