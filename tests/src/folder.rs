//! A temporary folder that is removed with its owner.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::accounts;

/// The folders that exist, for [`remove_all`].
static EXISTING: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn existing() -> std::sync::MutexGuard<'static, Vec<PathBuf>> {
    EXISTING.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Removes every folder that any [`Folder`] owns. For interrupts and time limits.
pub fn remove_all() {
    for path in std::mem::take(&mut *existing()) {
        // A folder that cannot be removed stays for the system to clean: no test depends on it.
        let _ = std::fs::remove_dir_all(path);
    }
}

/// A folder of our own under the system's temporary one. When it is dropped, the test fails if a recording in it has an account that does not
/// add up.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// A new, empty folder whose name contains the process and `name`.
    pub fn new(name: &str) -> Result<Folder> {
        // Relaxed: the number only has to be unique.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("glass-{name}-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| format!("cannot make the folder {}", path.display()))?;
        existing().push(path.clone());
        Ok(Folder { path })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes `bytes` to a file in it and returns its path.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<PathBuf> {
        let file = self.file(name);
        std::fs::write(&file, bytes).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(file)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let problems = if std::thread::panicking() { Vec::new() } else { accounts::problems(&self.path) };
        existing().retain(|path| *path != self.path);
        // As in `remove_all`.
        let _ = std::fs::remove_dir_all(&self.path);
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }
}
