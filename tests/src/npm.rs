//! Packages from npm that tests and checks use: pinned by a lock file, kept in the cache.

use crate::cache;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How long an installation may take.
const INSTALL_SECONDS: &str = "300";

/// The folder `node_modules` of what `package.json` and `package-lock.json` in `list` pin, installed once for each state of the lock
/// file. An error where node or npm is missing or the packages cannot be downloaded.
pub fn modules(list: &Path) -> Result<PathBuf> {
    ensure!(has("node") && has("npm"), "there is no node and npm (apt-get install nodejs npm)");
    let lock = list.join("package-lock.json");
    let lock = std::fs::read(&lock).with_context(|| format!("cannot read {}", lock.display()))?;
    let folder = cache::filled(&format!("npm-{}", cache::digest(&lock)), |folder| install(list, folder))?;
    Ok(folder.join("node_modules"))
}

fn install(list: &Path, folder: &Path) -> Result<()> {
    for name in ["package.json", "package-lock.json"] {
        std::fs::copy(list.join(name), folder.join(name)).with_context(|| format!("cannot copy {name}"))?;
    }
    let mut npm = Command::new("timeout");
    npm.args([INSTALL_SECONDS, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]);
    let output = npm.current_dir(folder).stdin(Stdio::null()).output().context("cannot start npm")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "npm ci failed: {}", errors.lines().last().unwrap_or("it printed no reason"));
    Ok(())
}

fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}
