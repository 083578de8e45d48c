//! Vsock of a VM where the host's kernel has none: the helper that serves it, and clients.

use crate::{cache, programs};
use anyhow::{Context, ensure};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Its version, which is part of the key in the cache.
const VERSION: &str = "0.3.0";
const NAME: &str = "vhost-device-vsock";

/// The folder of `vhost-device-vsock`, which is built from the crates' registry once.
///
/// # Errors
/// Why it cannot be built.
pub fn built() -> anyhow::Result<PathBuf> {
    let folder = cache::filled(&format!("{NAME}-{VERSION}"), |folder| {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        cargo.args(["install", "--locked", "--version", VERSION, "--root"]).arg(folder).arg(NAME);
        cargo.env("CARGO_TARGET_DIR", folder.join("target")).stdin(Stdio::null());
        let output = cargo.output().context("cannot start cargo")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // The program is all that is needed of it.
        Ok(std::fs::remove_dir_all(folder.join("target"))?)
    })?;
    Ok(folder.join("bin"))
}

/// As [`built`]; `None` after printing why it cannot be had.
pub fn helper() -> Option<PathBuf> {
    match built() {
        Ok(folder) => Some(folder),
        Err(error) => {
            let reason = error.to_string();
            programs::skip(&format!("{NAME} cannot be built: {}", reason.lines().last().unwrap_or_default()));
            None
        }
    }
}

/// A `PATH` in which `glass run --vsock` finds its helper.
pub fn path_with(folder: PathBuf) -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(folder).chain(std::env::split_paths(&path));
    std::env::join_paths(folders).unwrap_or(path.clone())
}
