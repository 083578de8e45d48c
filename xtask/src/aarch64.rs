//! What is not x86-64's compiles for AArch64: the workspace is checked for it, with its tests, by the one installed toolchain and a standard library that is built
//! from its sources, which Debian's backports have in the same version.

use crate::run;
use anyhow::{Context, Result, bail};
use glass_tests::cache;
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "aarch64-unknown-linux-gnu";
/// The VM platform exists for x86-64 alone, and so does the VMM that boots its images in tests.
const EXCLUDED: [&str; 2] = ["glass-platform-vm", "glass-tests-vmm"];
/// Where Debian has the sources of several versions of the standard library.
const SOURCE: &str = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie-backports main\n";
const PACKAGE: &str = "rust-src";
/// Set by most CI services: there nothing is left out.
const CI_VARIABLE: &str = "CI";

/// Checks the workspace. Without Debian's packages this is left out, except in CI.
pub fn check() -> Result<String> {
    let library = match library() {
        Ok(library) => library,
        Err(error) if std::env::var_os(CI_VARIABLE).is_none() => return Ok(format!("left out: {error:#}")),
        Err(error) => return Err(error.context("cannot check for AArch64")),
    };
    let mut command =
        run::cargo(&["check", "--workspace", "--all-targets", "--target", TARGET, "-Zbuild-std=std,panic_abort,test"]);
    EXCLUDED.iter().for_each(|package| {
        command.args(["--exclude", package]);
    });
    // A standard library cannot be built without unstable options; nothing of it enters a program.
    command.env("RUSTC_BOOTSTRAP", "1").env("__CARGO_TESTS_ONLY_SRC_ROOT", library);
    run::shown(command.env("CARGO_TARGET_DIR", run::target_dir().join("aarch64")))
}

/// The folder `library` of the sources of the installed compiler.
fn library() -> Result<PathBuf> {
    let version = run::quiet(Command::new("rustc").arg("--version"))?;
    let version = version.split(' ').nth(1).context("rustc prints no version")?;
    let folder = cache::filled(&format!("rust-src-{version}"), |folder| unpack(folder, version))?;
    Ok(folder.join("library"))
}

/// Downloads the sources of a version, with a list of packages of its own, and keeps the folder `library`.
fn unpack(folder: &Path, version: &str) -> Result<()> {
    let apt = folder.join("apt");
    std::fs::create_dir_all(apt.join("lists/partial"))?;
    std::fs::write(apt.join("sources.list"), SOURCE)?;
    let set = |name: &str, value: &str| ["-o".to_owned(), format!("{name}={value}")];
    let place = |name: &str| apt.join(name).display().to_string();
    let options = [
        set("Dir::Etc::sourcelist", &place("sources.list")),
        set("Dir::Etc::sourceparts", "-"),
        set("Dir::State::lists", &place("lists")),
        set("Dir::Cache", &place("cache")),
        // Its user cannot write to a folder of ours.
        set("APT::Sandbox::User", "root"),
    ]
    .concat();
    let by_apt = |program: &str, words: &[&str]| {
        run::quiet(Command::new(program).args(&options).args(words).current_dir(folder))
    };
    by_apt("apt-get", &["-q", "update"])?;
    let offered = by_apt("apt-cache", &["madison", PACKAGE])?;
    let mut versions = offered.lines().filter_map(|line| Some(line.split('|').nth(1)?.trim()));
    let Some(found) = versions.find(|found| found.starts_with(&format!("{version}+"))) else {
        bail!("Debian's backports have no {PACKAGE} {version}");
    };
    by_apt("apt-get", &["-q", "download", &format!("{PACKAGE}={found}")])?;
    let inner = format!("./usr/src/rustc-{version}/library");
    let unpack = format!("dpkg-deb --fsys-tarfile {PACKAGE}_*.deb | tar -x --strip-components 4 {inner}");
    run::quiet(Command::new("sh").args(["-c", &unpack]).current_dir(folder))?;
    run::quiet(Command::new("sh").args(["-c", "rm -r apt *.deb"]).current_dir(folder))?;
    Ok(())
}
