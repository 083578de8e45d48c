//! The sources that a service is built of: a smaller repository, whose folder `glass new` writes into a service's `Cargo.toml`.

use super::tree::write;
use crate::run;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;
use std::process::Command;

/// What is in it: all that a service or a C program is built of.
const FOLDERS: [&str; 6] = ["api", "formats", "lib", "drivers", "platform", "glasshouse"];
/// The members of its workspace.
const MEMBERS: &str = r#"members = ["api", "formats", "lib/*", "drivers/*", "platform/*", "glasshouse"]"#;
/// The jail is the profiler's, and has a program among its tests.
const LEFT_OUT: &str = "lib/jail/";
/// What the README of a new service names, and licences.
const FILES: [&str; 6] = [
    "docs/guides/writing-a-service.md",
    "docs/guides/shortener.md",
    "docs/guides/crates.md",
    "LICENSE-MIT",
    "LICENSE-APACHE",
    "Cargo.lock",
];

/// Copies those that git has into `folder`.
pub fn copy(folder: &Path) -> Result<()> {
    let mut git = Command::new("git");
    git.arg("-C").arg(run::root()).args(["ls-files", "-z", "--"]).args(FOLDERS).args(FILES);
    let listed = run::quiet(&mut git)?;
    for path in listed.split_terminator('\0').filter(|path| is_needed(path)) {
        let (from, to) = (run::root().join(path), folder.join(path));
        fs::create_dir_all(to.parent().context("a file has a folder")?)?;
        fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    let manifest = fs::read_to_string(run::root().join("Cargo.toml"))?;
    write(&folder.join("Cargo.toml"), &smaller(&manifest)?)?;
    // Drops from Cargo.lock what these members do not use: no user may write to it where it is installed.
    let mut metadata = run::cargo(&["metadata", "--quiet", "--format-version", "1", "--manifest-path"]);
    run::quiet(metadata.arg(folder.join("Cargo.toml"))).context("the sources in a package are not complete")?;
    Ok(())
}

fn is_needed(path: &str) -> bool {
    // A member's tests, but not the documents of a folder of such a name further up.
    !path.starts_with(LEFT_OUT) && !path.split('/').skip(1).any(|part| part == "tests")
}

/// The manifest with fewer members, and without settings for packages that are not there.
fn smaller(manifest: &str) -> Result<String> {
    let between = |start: &str, end: &str| {
        let from = manifest.find(start)?;
        Some((from, from + manifest[from..].find(end)? + end.len()))
    };
    let members = between("members = [", "\n]").context("Cargo.toml has no list of members")?;
    let settings = manifest.find("[profile.dev.package]").unwrap_or(manifest.len());
    ensure!(members.1 < settings, "Cargo.toml has its members behind its profiles");
    Ok(format!("{}{MEMBERS}{}", &manifest[..members.0], &manifest[members.1..settings]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_has_only_members_that_are_there() {
        let manifest = fs::read_to_string(run::root().join("Cargo.toml")).unwrap();
        let smaller = smaller(&manifest).unwrap();
        assert!(smaller.contains(MEMBERS) && smaller.contains("[workspace.dependencies]"), "{smaller}");
        assert!(!smaller.contains("\"xtask\"") && !smaller.contains("opt-level = 0"), "{smaller}");
        assert!(super::smaller("[package]").is_err());
    }

    #[test]
    fn tests_are_left_out() {
        assert!(is_needed("lib/net/src/tests_of_tcp.rs") && is_needed("Cargo.lock"));
        assert!(!is_needed("lib/net/tests/all/main.rs") && !is_needed("lib/jail/src/lib.rs"));
    }
}
