//! A folder for this process: what a compiler writes, files that are opened, sockets.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// Says where; whoever started us removes it, as we may not live to do it.
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
