//! A folder for this process: output of a compiler, files that are opened, sockets.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Bytes of a disk.
const DISK_BYTES: u64 = 1 << 20;

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

/// Makes the file of a disk, which is zero, in the folder; its name is not that of another process's.
///
/// # Panics
/// The folder cannot be written.
pub fn disk(name: &str) -> PathBuf {
    let path = path(&format!("{name}-{}", std::process::id()));
    std::fs::File::create(&path).and_then(|file| file.set_len(DISK_BYTES)).expect("the folder can be written");
    path
}
