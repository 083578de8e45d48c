//! A copy of the sources in which files may be changed. It stays, so that builds are incremental.

use crate::run;
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Copies the files of the repository at `root` to `copy`, including uncommitted changes, and returns its path. Builds
/// there stay, and so do files whose content is the same.
pub fn copy(root: &Path, copy: &Path) -> Result<PathBuf> {
    let files = files(root)?;
    for file in &files {
        let wanted = std::fs::read(root.join(file)).with_context(|| format!("cannot read {file}"))?;
        let place = copy.join(file);
        if std::fs::read(&place).is_ok_and(|now| now == wanted) {
            continue;
        }
        let folder = place.parent().unwrap_or(copy);
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        std::fs::write(&place, wanted).with_context(|| format!("cannot write {}", place.display()))?;
    }
    // Files that the last copy had in addition, for example a removed test.
    let list = copy.join("target/files");
    for old in std::fs::read_to_string(&list).unwrap_or_default().lines().filter(|old| !files.contains(*old)) {
        let _ = std::fs::remove_file(copy.join(old));
    }
    std::fs::create_dir_all(copy.join("target")).context("cannot make the copy's target")?;
    let lines: String = files.iter().map(|file| format!("{file}\n")).collect();
    std::fs::write(&list, lines).with_context(|| format!("cannot write {}", list.display()))?;
    Ok(copy.to_owned())
}

/// The files that belong to the repository, relative to its root.
fn files(root: &Path) -> Result<BTreeSet<String>> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(root);
    let listed = run::shown(&mut git)?;
    let files = listed.split('\0').filter(|file| !file.is_empty() && root.join(file).is_file());
    Ok(files.map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_tests::folder::Folder;

    #[test]
    fn a_copy_follows_its_repository() {
        let (root, other) = (Folder::new("root").unwrap(), Folder::new("copy").unwrap());
        run::shown(Command::new("git").args(["init", "--quiet"]).arg(root.path())).unwrap();
        std::fs::create_dir(root.file("src")).unwrap();
        for name in ["src/kept", "src/changed", "src/gone"] {
            root.write(name, name.as_bytes()).unwrap();
        }
        copy(root.path(), other.path()).unwrap();
        // As after an interrupted run.
        std::fs::write(other.file("src/changed"), "mutated").unwrap();
        std::fs::remove_file(root.file("src/gone")).unwrap();
        let time = |name: &str| std::fs::metadata(other.file(name)).unwrap().modified().unwrap();
        let before = time("src/kept");
        copy(root.path(), other.path()).unwrap();
        assert_eq!(std::fs::read_to_string(other.file("src/changed")).unwrap(), "src/changed");
        assert_eq!(time("src/kept"), before);
        assert!(!other.file("src/gone").exists());
    }
}
