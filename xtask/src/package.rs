//! `cargo xtask package`: a Debian package and an archive of `glass`, with the sources that services are built of; and their trial in a clean Debian.

mod debian;
mod licences;
mod root;
mod sources;
mod tree;
mod trial;

pub use licences::deny;

use crate::progress::Steps;
use crate::{build, packages, run, suite};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Options of `cargo xtask package`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Also install the package in a clean Debian and do there what the README does first: profile a program, a VM and a service of one's own
    #[arg(long = "try")]
    is_tried: bool,
    /// Use the `glass` that tests run, which is built sooner, and try only what needs no QEMU and no Rust, for CI
    #[arg(long)]
    short: bool,
}

/// What is made.
struct Made {
    deb: PathBuf,
    archive: Option<PathBuf>,
}

/// Builds, and prints where the files are.
pub fn run(options: &Options) -> Result<()> {
    for program in ["dpkg-deb", "git", "tar", "xz", "gzip", "md5sum", "strip"] {
        if run::find_program(program).is_none() {
            bail!("`{program}` is missing: a package is made on Debian, with dpkg, git, tar, xz-utils and binutils");
        }
    }
    let mut steps = Steps::new(3 + if options.is_tried { 2 } else { 0 });
    let step = steps.begin("licences of what ships", None);
    let crates = licences::check()?;
    if !options.short {
        deny()?;
    }
    step.done(&crates);
    let step = steps.begin("build glass", None);
    let glass = glass(options.short)?;
    step.done("");
    let step = steps.begin("make the package", None);
    let made = make(&glass, options.short)?;
    step.done(&format!("{} KiB", std::fs::metadata(&made.deb)?.len().div_ceil(1024)));
    if options.is_tried {
        packages::ensure(packages::FOR_PACKAGE)?;
        let step = steps.begin("make a clean Debian", None);
        let mut root = root::Root::new(&folder().join("debian"))?;
        if !options.short {
            trial::show_rust(&mut root)?;
        }
        step.done("");
        let step = steps.begin("install, use and remove it there", None);
        step.done(&trial::run(&root, &made.deb, &glass, options.short)?);
    }
    drop(steps);
    for file in [Some(made.deb), made.archive].into_iter().flatten() {
        println!("{} ({} KiB)", file.display(), file.metadata()?.len().div_ceil(1024));
    }
    Ok(())
}

/// Where everything is made.
fn folder() -> PathBuf {
    run::target_dir().join("package")
}

/// The program that is packed, without symbols.
fn glass(is_short: bool) -> Result<PathBuf> {
    if !is_short {
        return build::static_glass();
    }
    suite::build_glass()?;
    let stripped = folder().join("glass");
    std::fs::create_dir_all(folder())?;
    run::quiet(Command::new("strip").arg("-o").arg(&stripped).arg(build::tested().join("glass")))?;
    Ok(stripped)
}

fn make(glass: &Path, is_short: bool) -> Result<Made> {
    let date = commit_date()?;
    let folder = folder();
    let version = env!("CARGO_PKG_VERSION");
    let name = format!("glass-{version}-x86_64-linux");
    let tree = folder.join(&name);
    tree::make(glass, &tree)?;
    let deb = debian::pack(&tree, &folder, !is_short, &date)?;
    // The program of tests needs the libraries of this machine.
    let archive = (!is_short).then(|| archive(&folder, &name, &date)).transpose()?;
    Ok(Made { deb, archive })
}

/// The time of all files: that of the reproducible build if there is one, otherwise that of the commit, in seconds since 1970.
fn commit_date() -> Result<String> {
    std::env::var("SOURCE_DATE_EPOCH").or_else(|_| of_commit("%ct"))
}

/// What git prints of the current commit in this format.
fn of_commit(format: &str) -> Result<String> {
    let mut git = Command::new("git");
    git.arg("-C").arg(run::root()).args(["log", "-1", "--abbrev=8", &format!("--format={format}")]);
    Ok(run::quiet(&mut git).context("a package is made in a git repository")?.trim().to_owned())
}

fn archive(folder: &Path, name: &str, date: &str) -> Result<PathBuf> {
    let archive = folder.join(format!("{name}.tar.xz"));
    let mut command = Command::new("tar");
    command.args(["--create", "--xz", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    command.arg(format!("--mtime=@{date}")).arg("--file").arg(&archive).arg("--directory").arg(folder).arg(name);
    run::quiet(&mut command)?;
    Ok(archive)
}
