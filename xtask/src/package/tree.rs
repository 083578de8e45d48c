//! The files that are installed, in a folder that becomes `/usr`, or that an archive has as it is.

use super::{licences, sources};
use crate::run;
use anyhow::{Context, Result};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

/// Shells, and where each searches completions of installed programs.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/glass"),
    ("zsh", "share/zsh/vendor-completions/_glass"),
    ("fish", "share/fish/vendor_completions.d/glass.fish"),
];
/// The folder of documents.
pub const DOCUMENTS: &str = "share/doc/glass";
const MANUAL: &str = "share/man/man1";

/// Makes the tree of `glass` in `tree`, which is new.
pub fn make(glass: &Path, tree: &Path) -> Result<()> {
    if tree.exists() {
        fs::remove_dir_all(tree).with_context(|| format!("cannot remove {}", tree.display()))?;
    }
    for folder in ["bin", MANUAL, DOCUMENTS] {
        fs::create_dir_all(tree.join(folder)).with_context(|| format!("cannot make {}", tree.display()))?;
    }
    let program = tree.join("bin/glass");
    fs::copy(glass, &program).with_context(|| format!("cannot copy {}", glass.display()))?;
    run::quiet(Command::new(&program).arg("man").arg(tree.join(MANUAL)))?;
    for page in fs::read_dir(tree.join(MANUAL))? {
        compress(&page?.path())?;
    }
    for (shell, path) in COMPLETIONS {
        write(&tree.join(path), &run::quiet(Command::new(&program).args(["completions", shell]))?)?;
    }
    let documents = tree.join(DOCUMENTS);
    write(&documents.join("copyright"), include_str!("debian/copyright"))?;
    write(&documents.join("third-party-licences"), &licences::texts()?)?;
    compress(&documents.join("third-party-licences"))?;
    sources::copy(&tree.join("share/glasshouse"))?;
    set_modes(tree)?;
    fs::set_permissions(&program, Permissions::from_mode(0o755))?;
    Ok(())
}

/// Writes a file, and makes its folder.
pub fn write(path: &Path, text: &str) -> Result<()> {
    let folder = path.parent().context("a file has a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Replaces a file by its compressed one, whose bytes depend on nothing else.
pub fn compress(path: &Path) -> Result<()> {
    run::quiet(Command::new("gzip").args(["-9", "--no-name", "--force"]).arg(path)).map(drop)
}

/// Whatever mask this user has: files that each user reads, in folders that each user opens.
fn set_modes(path: &Path) -> Result<()> {
    let is_folder = path.is_dir();
    fs::set_permissions(path, Permissions::from_mode(if is_folder { 0o755 } else { 0o644 }))?;
    if is_folder {
        for entry in fs::read_dir(path)? {
            set_modes(&entry?.path())?;
        }
    }
    Ok(())
}
