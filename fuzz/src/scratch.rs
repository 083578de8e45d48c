//! A folder for this process: output of a compiler, files that are opened, sockets.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// Sets the folder; the parent process removes it, as this process may be killed.
pub fn set(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    // A second call does not change it.
    let _ = FOLDER.set(folder.to_owned());
    Ok(())
}

/// A path in the folder.
pub fn path(name: &str) -> PathBuf {
    FOLDER.get().map_or_else(std::env::temp_dir, Clone::clone).join(name)
}
