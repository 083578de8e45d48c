//! Programs of other people from the crates' registry.

use crate::{cache, programs};
use anyhow::{Context, ensure};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The folder of the programs of a crate, which is built once; its version is part of the key in the cache.
///
/// # Errors
/// Why it cannot be built.
pub fn built(name: &str, version: &str) -> anyhow::Result<PathBuf> {
    let folder = cache::filled(&format!("{name}-{version}"), |folder| {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        cargo.args(["install", "--locked", "--version", version, "--root"]).arg(folder).arg(name);
        cargo.env("CARGO_TARGET_DIR", folder.join("target")).stdin(Stdio::null());
        let output = cargo.output().context("cannot start cargo")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // The programs are all that is needed of it.
        Ok(std::fs::remove_dir_all(folder.join("target"))?)
    })?;
    Ok(folder.join("bin"))
}

/// What was built; `None` after printing why it cannot be had.
pub fn or_skip(name: &str, built: anyhow::Result<PathBuf>) -> Option<PathBuf> {
    match built {
        Ok(folder) => Some(folder),
        Err(error) => {
            let reason = error.to_string();
            programs::skip(&format!("{name} cannot be built: {}", reason.lines().last().unwrap_or_default()));
            None
        }
    }
}
