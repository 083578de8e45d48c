//! Disks with FAT file systems, made by the tools of Linux.

use anyhow::{Context, Result, ensure};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Of a disk; of FAT32 this is a small one. Most of it is a hole.
const KIB: &str = "100000";

/// Why a test is skipped without the tools.
pub const NOT_INSTALLED: &str = "dosfstools or mtools are not installed";

/// Makes the file `disk` with a FAT32 file system that has these files and directories. False if the tools are not installed.
///
/// # Errors
/// They fail.
pub fn make(disk: &Path, entries: &[PathBuf]) -> Result<bool> {
    for command in [
        Command::new("mkfs.fat").args(["-F", "32", "-C"]).arg(disk).arg(KIB),
        Command::new("mcopy").args(["-s", "-i"]).arg(disk).args(entries).arg("::").env("LC_ALL", "C.UTF-8"),
    ] {
        let output = match command.output() {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            output => output.with_context(|| format!("{command:?}"))?,
        };
        ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(true)
}
