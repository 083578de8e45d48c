//! Vsock of a VM where the host's kernel has none: the helper that serves it, and clients.

use crate::crates;
use std::ffi::OsString;
use std::path::PathBuf;

const NAME: &str = "vhost-device-vsock";
const VERSION: &str = "0.3.0";

/// The folder of `vhost-device-vsock`, which is built from the crates' registry once.
///
/// # Errors
/// Why it cannot be built.
pub fn built() -> anyhow::Result<PathBuf> {
    crates::built(NAME, VERSION)
}

/// As [`built`]; `None` after printing why it cannot be had.
pub fn helper() -> Option<PathBuf> {
    crates::or_skip(NAME, built())
}

/// A `PATH` in which `glass run --vsock` finds its helper.
pub fn path_with(folder: PathBuf) -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(folder).chain(std::env::split_paths(&path));
    std::env::join_paths(folders).unwrap_or(path.clone())
}
