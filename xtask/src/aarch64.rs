//! What is not x86-64's compiles for AArch64: the workspace is checked for it, with its tests, by the one installed toolchain and a standard library that is built
//! from its sources, which Debian's backports have in the same version.

use crate::{packages, run};
use anyhow::{Context, Result, bail};
use glass_tests::cache;
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "aarch64-unknown-linux-gnu";
/// The VMM that boots images in tests is for x86-64 alone.
const EXCLUDED: [&str; 1] = ["glass-tests-vmm"];
/// Crates whose unit tests need nothing of an x86-64 machine.
const PORTABLE: [&str; 10] = [
    "glass-formats",
    "glass-api",
    "glass-lib-executor",
    "glass-lib-http",
    "glass-lib-net",
    "glass-lib-store",
    "glass-lib-tcp",
    "glass-lib-trace",
    "glass-lib-vsock",
    "glass-profiler-core",
];
/// Where Debian's cross compiler has the libraries of programs for AArch64.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";
/// Where Debian has the sources of several versions of the standard library.
const SOURCE: &str = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie-backports main\n";
const PACKAGE: &str = "rust-src";
/// Set by most CI services: there nothing is left out.
const CI_VARIABLE: &str = "CI";

/// Checks the workspace. Without Debian's packages this is left out, except in CI.
pub fn check() -> Result<String> {
    let library = match library_and(packages::FOR_CHECK) {
        Ok(library) => library,
        Err(error) if std::env::var_os(CI_VARIABLE).is_none() => return Ok(format!("left out: {error:#}")),
        Err(error) => return Err(error.context("cannot check for AArch64")),
    };
    let mut command = run::cargo(&[
        "check",
        "--workspace",
        "--all-targets",
        "--target",
        TARGET,
        "-Zbuild-std=std,panic_abort,test",
        "-Zwarnings",
    ]);
    // A warning fails, as those of clippy for x86-64 do.
    command.env("CARGO_BUILD_WARNINGS", "deny");
    EXCLUDED.iter().for_each(|package| {
        command.args(["--exclude", package]);
    });
    run::shown(with_library(&mut command, &library))
}

/// Runs the unit tests of crates that need nothing of an x86-64 machine, each as a process of AArch64 that QEMU emulates. It takes some minutes, most of
/// it to compile, so CI leaves it out.
pub fn test() -> Result<String> {
    let library = library_and(packages::FOR_AARCH64)?;
    let mut command = run::cargo(&["test", "--lib", "--target", TARGET, "-Zbuild-std=std,panic_abort,test"]);
    PORTABLE.iter().for_each(|package| {
        command.args(["--package", package]);
    });
    command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc");
    command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", format!("qemu-aarch64 -L {LIBRARIES}"));
    let said = run::shown(with_library(&mut command, &library))?;
    let passed = said.lines().filter_map(|line| line.strip_prefix("test result: ok. ")?.split(' ').next());
    let passed: u32 = passed.filter_map(|count| count.parse::<u32>().ok()).sum();
    if passed == 0 { bail!("no test ran for AArch64") } else { Ok(format!("{passed} tests")) }
}

/// The sources of the standard library, if these packages are there as well.
fn library_and(packages: &[packages::Package]) -> Result<PathBuf> {
    if let Some(missing) = packages::ensure(packages)?.first() {
        bail!("there is no {}", missing.program);
    }
    library()
}

/// A command of cargo that builds the standard library: that takes unstable options, and nothing of it enters a program.
fn with_library<'a>(command: &'a mut Command, library: &Path) -> &'a mut Command {
    command.env("RUSTC_BOOTSTRAP", "1").env("__CARGO_TESTS_ONLY_SRC_ROOT", library);
    command.env("CARGO_TARGET_DIR", run::target_dir().join("aarch64"))
}

/// The folder `library` of the sources of the installed compiler.
pub fn library() -> Result<PathBuf> {
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
