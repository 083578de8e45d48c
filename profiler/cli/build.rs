//! The version of `glass`: with the commit and its date where cargo builds it in its repository.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Set for a build that is installed on other machines, where the folder of these sources means nothing.
const PACKAGED: &str = "GLASS_PACKAGED";

fn main() {
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let commit = commit(&root).map(|commit| format!(" ({commit})")).unwrap_or_default();
    let sources = match std::env::var_os(PACKAGED) {
        Some(_) => String::new(),
        None => root.display().to_string(),
    };
    println!("cargo::rustc-env=GLASS_VERSION={version}{commit}");
    println!("cargo::rustc-env=GLASS_SOURCES={sources}");
    println!("cargo::rerun-if-env-changed={PACKAGED}");
    println!("cargo::rerun-if-changed=build.rs");
}

/// The commit of the repository in `root` and its date; `None` without git, or where `root` is no repository.
fn commit(root: &Path) -> Option<String> {
    // Sources may lie in another project's repository.
    let top = PathBuf::from(git(root, &["rev-parse", "--show-toplevel"])?);
    if top.canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    // It has a line more after each commit, checkout and reset.
    let log = root.join(git(root, &["rev-parse", "--git-path", "logs/HEAD"])?);
    if log.is_file() {
        println!("cargo::rerun-if-changed={}", log.display());
    }
    // The date of the commit, not of the build: two builds of a commit are equal.
    git(root, &["show", "--no-patch", "--abbrev=8", "--format=%h %cs", "HEAD"])
}

/// What git prints, without the line's end.
fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(root).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim_end().to_owned()).filter(|text| !text.is_empty())
}
