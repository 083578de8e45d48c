//! Builds the products that tests, demo and benchmarks run.

use crate::run;
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::Receiver;

/// The services that are run as processes.
const PROCESSES: [&str; 4] = ["upload-queue", "busy", "bench-tcp", "bench-console"];
/// The services that are booted; `faults` goes wrong on purpose.
const IMAGES: [&str; 6] = ["upload-queue", "hello", "busy", "faults", "bench-tcp", "bench-console"];
/// The services that are built for the tracing of functions too, as both.
const TRACEABLE: [&str; 2] = ["upload-queue", "busy"];

/// Folder of the optimized programs, which users, the demo and the benchmarks run.
pub fn programs() -> PathBuf {
    run::target_dir().join("release")
}

/// The command `glass` as end-to-end tests run it. It is built with its own tests, by the same flags, and has debug assertions.
pub fn tested_glass() -> PathBuf {
    run::target_dir().join("debug/glass")
}

/// Builds the command `glass` and each service as a process.
pub fn processes() -> Result<()> {
    let mut command = run::cargo(&["build", "--release", "--package", "glass-cli"]);
    run::shown(&mut command)?;
    // Apart from each other: built together, the features of one would end up in the other.
    for app in PROCESSES {
        run::shown(&mut run::cargo(&["build", "--release", "--package", app]))?;
    }
    let glass = programs().join("glass");
    if !glass.is_file() {
        bail!("the build made no {}", glass.display());
    }
    Ok(())
}

/// Builds what end-to-end tests run besides [`tested_glass`], silently beside a build that shows its progress: services as processes,
/// then, when the receiver reports that `glass` is built, services as images. Returns what `glass build` reports of the last.
pub fn services_for_tests(glass_is_built: &Receiver<()>) -> Result<String> {
    let mut command = run::cargo(&["build", "--release"]);
    run::quiet(command.args(PROCESSES.iter().flat_map(|app| ["--package", app])))?;
    if glass_is_built.recv().is_err() {
        bail!("glass is not built, so there are no images");
    }
    let build = |arguments: &[&str]| run::quiet(&mut glass_build(&tested_glass(), arguments));
    for (app, platform) in TRACEABLE.into_iter().flat_map(|app| [(app, "linux"), (app, "vm")]) {
        build(&["build", app, "--trace-functions", "--platform", platform])?;
    }
    let last = IMAGES.iter().try_fold(String::new(), |_, app| build(&["build", app]))?;
    Ok(last_line(&last))
}

/// Builds what the benchmark `name` runs besides and returns what `glass build` says of the last image.
pub fn measured(name: &str) -> Result<String> {
    if name == "perf" {
        return Ok("none is needed".to_owned());
    }
    if name == "tracing" {
        example("glass-report", "trace_page_cost")?;
        traced_variants()?;
    } else {
        example("glass-guests", "pauses")?;
        image("busy")?;
    }
    queue_image()
}

/// A program that only benchmarks run.
fn example(package: &str, name: &str) -> Result<()> {
    let arguments = ["build", "--release", "--package", package, "--example", name];
    run::shown(&mut run::cargo(&arguments)).map(drop)
}

/// The services whose speed is measured while they trace: as always, without trace events, and with sleds.
fn traced_variants() -> Result<()> {
    run::shown(&mut run::cargo(&["build", "--release", "--package", "trace-cost"]))?;
    image("trace-cost")?;
    image("bench-tcp")?;
    shown_build(&["build", "busy", "--trace-functions", "--platform", "linux"])?;
    for app in ["upload-queue", "bench-tcp"] {
        for variant in ["--trace-functions", "--without-trace"] {
            for platform in ["linux", "vm"] {
                shown_build(&["build", app, variant, "--platform", platform])?;
            }
        }
    }
    Ok(())
}

/// Builds the image of the queue alone and returns what `glass build` says of it.
pub fn queue_image() -> Result<String> {
    image("upload-queue")
}

fn image(app: &str) -> Result<String> {
    shown_build(&["build", app])
}

fn shown_build(arguments: &[&str]) -> Result<String> {
    run::shown(&mut glass_build(&programs().join("glass"), arguments)).map(|said| last_line(&said))
}

fn glass_build(glass: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(glass);
    command.args(arguments).current_dir(run::root());
    command
}

fn last_line(text: &str) -> String {
    text.lines().last().unwrap_or_default().to_owned()
}
