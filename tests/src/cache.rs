//! Downloads and built peers: kept outside the repository, so that a new clone need not fetch them again.
//!
//! A key contains the version, so no entry is ever out of date; to empty the cache, remove its folder.

use anyhow::{Context, Result};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The variable for another folder of the cache.
const FOLDER_VARIABLE: &str = "GLASS_CACHE";

/// Folder of the cache: `$GLASS_CACHE`, `$XDG_CACHE_HOME/glasshouse` or `~/.cache/glasshouse`.
pub fn folder() -> PathBuf {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let general = || variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
    let ours = |general: PathBuf| general.join("glasshouse");
    variable(FOLDER_VARIABLE).unwrap_or_else(|| general().map_or_else(|| std::env::temp_dir().join("glasshouse"), ours))
}

/// The folder of `key`, a name with a version; if it does not exist, `fill` puts the files into an empty folder, which becomes it.
/// When `fill` fails nothing stays. Only one process fills at a time; the others wait for it.
pub fn filled(key: &str, fill: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    // Threads of one process share the name of their partial folder.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = folder().join(key);
    if kept.is_dir() {
        return Ok(kept);
    }
    let lock = lock(key)?;
    lock.lock().context("cannot lock the cache")?;
    if kept.is_dir() {
        return Ok(kept);
    }
    // Beside the final folder, because a folder cannot be moved from one file system to another.
    let partial = folder().join(format!("{key}.partial-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&partial);
    std::fs::create_dir_all(&partial).with_context(|| format!("cannot make the folder {}", partial.display()))?;
    let moved = fill(&partial)
        .and_then(|()| std::fs::rename(&partial, &kept).with_context(|| format!("cannot make {}", kept.display())));
    if moved.is_err() {
        let _ = std::fs::remove_dir_all(&partial);
    }
    moved.map(|()| kept)
}

/// The file that is locked while a key is filled.
fn lock(key: &str) -> Result<File> {
    let locks = folder().join("locks");
    std::fs::create_dir_all(&locks).with_context(|| format!("cannot make the folder {}", locks.display()))?;
    let path = locks.join(key);
    File::create(&path).with_context(|| format!("cannot make {}", path.display()))
}

/// Sixteen hexadecimal digits that change with `bytes`, for a key. (FNV-1a; not for secrets.)
pub fn digest(bytes: &[u8]) -> String {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", bytes.iter().fold(0xcbf2_9ce4_8422_2325, step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_filled_once_and_a_failure_leaves_nothing() {
        let key = format!("test-{}", std::process::id());
        let failed = filled(&key, |folder| {
            std::fs::write(folder.join("half"), b"x")?;
            anyhow::bail!("no network")
        });
        assert!(failed.unwrap_err().to_string().contains("no network"));
        let path = filled(&key, |folder| Ok(std::fs::write(folder.join("whole"), b"x")?)).unwrap();
        assert!(path.join("whole").exists() && !path.join("half").exists());
        assert_eq!(filled(&key, |_| panic!("filled twice")).unwrap(), path);
        std::fs::remove_dir_all(path).unwrap();
    }
}
