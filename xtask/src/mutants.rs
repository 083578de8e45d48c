//! `cargo xtask mutants`: changes the code in one place at a time and counts how often a test fails.
//!
//! Each package has its own run of cargo-mutants, in a copy of the sources that stays, with its build,
//! in `target/mutants`. The outcome of a package is kept there too, so that `--again` continues after an interruption.

mod outcomes;
mod sample;
mod tree;

use crate::progress::{Steps, locked};
use crate::run;
use anyhow::{Context, Result, ensure};
use glass_tests::cache;
use glass_tests::process::Process;
use outcomes::{Outcomes, Record, table};
use sample::{Mutant, pattern, sample};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

/// The version to install, outside the repository, if it is missing.
const VERSION: &str = "27.1.0";
/// If a change makes the tests take this many times as long, they hang.
const TIMEOUT_MULTIPLIER: &str = "3";
/// The minimum of this limit, in seconds: other work may slow a test down.
const TIMEOUT_MIN: &str = "30";

/// A package whose code is changed, and the packages whose tests judge the changes.
struct Subject {
    package: &'static str,
    /// In addition to its own.
    judges: &'static [&'static str],
}

const SUBJECTS: [Subject; 9] = [
    Subject { package: "upload-queue", judges: &[] },
    // Its disks, frames and memory are tested with the devices of a bus.
    Subject { package: "glass-drivers-device", judges: &["glass-drivers-virtio"] },
    Subject { package: "glass-drivers-virtio", judges: &[] },
    Subject { package: "glass-lib-http", judges: &[] },
    // Bad networks, and connections over them, are tested in the simulation.
    Subject { package: "glass-lib-net", judges: &["glass-platform-sim"] },
    Subject { package: "glass-lib-tcp", judges: &[] },
    Subject { package: "glass-lib-executor", judges: &[] },
    // Its functions write events for others: the tests of those others read the events back, `hello` as a whole process.
    Subject {
        package: "glass-lib-trace",
        judges: &["glass-lib-executor", "glass-drivers-virtio", "glass-lib-net", "hello"],
    },
    // Layouts that one half writes and the other reads: the profiler's tests read the output of a guest's crates.
    Subject { package: "glass-formats", judges: &["glass-lib-trace", "glass-lib-executor", "glass-profiler-core"] },
];

/// Options of `cargo xtask mutants`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Only the changes in these packages
    packages: Vec<String>,
    /// Number of changes to try in all packages, spread evenly over the files
    #[arg(long, default_value_t = 400)]
    count: usize,
    /// Seed of the sample
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Continue after an interruption: skip changes that were caught, repeat those that were missed or hung
    #[arg(long)]
    again: bool,
    /// Number of changes to try in parallel
    #[arg(long, default_value_t = 2)]
    jobs: usize,
}

/// The part of the changes that is in one package.
struct Piece {
    subject: &'static Subject,
    mutants: Vec<Mutant>,
}

/// Samples, runs, and prints the changes that no test detected.
pub fn run(options: &Options) -> Result<()> {
    let known = |name: &String| SUBJECTS.iter().any(|subject| subject.package == name);
    if let Some(unknown) = options.packages.iter().find(|name| !known(name)) {
        let names = SUBJECTS.map(|subject| subject.package).join(", ");
        anyhow::bail!("the code of {unknown} is not changed: choose from {names}");
    }
    let mut steps = Steps::new(3);
    let step = steps.begin(&format!("find or install cargo-mutants {VERSION}"), None);
    let program = install()?;
    step.done("");
    let step = steps.begin("list the changes", None);
    let all = list(&program)?;
    ensure!(!all.is_empty(), "cargo-mutants found nothing to change");
    let pieces = pieces(&sample(&all, options.count, options.seed), &options.packages);
    let chosen: usize = pieces.iter().map(|piece| piece.mutants.len()).sum();
    step.done(&format!("{chosen} of {}", all.len()));
    let step = steps.begin("try each", None);
    let outcomes = try_all(&program, pieces, options)?;
    step.done("");
    drop(steps);
    println!("{}", table(&outcomes));
    Ok(())
}

/// The chosen changes by package, in the order of [`SUBJECTS`].
fn pieces(chosen: &[Mutant], packages: &[String]) -> VecDeque<Piece> {
    let wanted =
        SUBJECTS.iter().filter(|subject| packages.is_empty() || packages.iter().any(|name| name == subject.package));
    let piece = |subject: &'static Subject| {
        let mutants = chosen.iter().filter(|mutant| mutant.package == subject.package).cloned().collect();
        Piece { subject, mutants }
    };
    wanted.map(piece).filter(|piece| !piece.mutants.is_empty()).collect()
}

/// Tries the pieces, one in each copy of the sources at a time, and prints the outcome of each when it is done.
fn try_all(program: &Path, pieces: VecDeque<Piece>, options: &Options) -> Result<Vec<Outcomes>> {
    let copies = options.jobs.clamp(1, pieces.len().max(1));
    let pieces = Mutex::new(pieces);
    let next = || locked(&pieces).pop_front();
    let work = |number: usize| -> Result<Vec<Outcomes>> {
        let copy = tree::copy(run::root(), &folder().join(format!("copy-{number}")))?;
        let mut all = Vec::new();
        while let Some(piece) = next() {
            let outcomes = try_piece(program, &copy, &piece, options.again)?;
            println!("{}\n{}", piece.subject.package, table(std::slice::from_ref(&outcomes)));
            all.push(outcomes);
        }
        Ok(all)
    };
    let work = &work;
    let results: Vec<Result<Vec<Outcomes>>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..copies).map(|number| scope.spawn(move || work(number))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the thread does not panic")).collect()
    });
    let mut all = Vec::new();
    for outcomes in results {
        all.extend(outcomes?);
    }
    Ok(all)
}

/// Runs cargo-mutants for one piece within `copy`.
fn try_piece(program: &Path, copy: &Path, piece: &Piece, again: bool) -> Result<Outcomes> {
    let package = piece.subject.package;
    let record = Record::open(&folder().join(package), again)?;
    let left: Vec<&Mutant> = piece.mutants.iter().filter(|mutant| !record.has_settled(&mutant.name)).collect();
    if !left.is_empty() {
        let mut command = mutants(program, copy);
        command.args(["--package", package, "--in-place", "--no-shuffle", "--caught", "--colors", "never", "--output"]);
        command.arg(record.folder());
        command.args(["--timeout-multiplier", TIMEOUT_MULTIPLIER, "--minimum-test-timeout", TIMEOUT_MIN]);
        // Nothing reads debug information here.
        command.args(["--cargo-arg=--config", "--cargo-arg=profile.dev.debug=false"]);
        command.args([package].iter().chain(piece.subject.judges).flat_map(|judge| ["--test-package", judge]));
        command.args(left.iter().flat_map(|mutant| ["--re".to_owned(), pattern(&mutant.name)]));
        // Each copy has its own: the build of another copy would be mistaken for this one's.
        command.env("CARGO_TARGET_DIR", copy.join("target"));
        let log = record.folder().join("log");
        let mut process = Process::spawn_with_output(&mut command, Stdio::inherit(), &log)?;
        let status = loop {
            if let Some(status) = process.wait(Duration::from_secs(3600)) {
                break status;
            }
        };
        // It fails when a change is missed, with 2, or when a test hangs, with 3.
        ensure!(
            matches!(status.code(), Some(0 | 2 | 3)),
            "cargo-mutants ended early for {package} ({status}): {}",
            process.output()
        );
    }
    let names: Vec<&str> = piece.mutants.iter().map(|mutant| mutant.name.as_str()).collect();
    record.outcomes(package, &names)
}

/// The folder of copies and outcomes.
fn folder() -> PathBuf {
    run::target_dir().join("mutants")
}

/// The installed program.
fn install() -> Result<PathBuf> {
    let fill = |folder: &Path| {
        let mut cargo = run::cargo(&["install", "cargo-mutants", "--locked", "--version", VERSION, "--root"]);
        run::shown(cargo.arg(folder)).map(drop)
    };
    Ok(cache::filled(&format!("cargo-mutants-{VERSION}"), fill)?.join("bin/cargo-mutants"))
}

fn mutants(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg("mutants").current_dir(folder);
    command
}

/// All changes, sorted by file.
fn list(program: &Path) -> Result<Vec<Mutant>> {
    let mut command = mutants(program, run::root());
    command.args(SUBJECTS.iter().flat_map(|subject| ["--package", subject.package])).args(["--list", "--json"]);
    sample::parse(&run::shown(&mut command)?).context("cargo-mutants listed no changes")
}
