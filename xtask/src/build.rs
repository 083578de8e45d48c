//! Builds the products that tests, demo and benchmarks run.

use crate::run;
use anyhow::{Context, Result, bail};
use std::path::PathBuf;

/// The services that are run as processes.
const PROCESSES: [&str; 4] = ["upload-queue", "busy", "bench-tcp", "bench-console"];
/// The services that are booted; `faults` goes wrong on purpose.
const IMAGES: [&str; 6] = ["upload-queue", "hello", "busy", "faults", "bench-tcp", "bench-console"];
/// The services that are built for the tracing of functions too, as both.
const TRACEABLE: [&str; 2] = ["upload-queue", "busy"];

/// Folder of the built programs.
pub fn programs() -> PathBuf {
    run::target_dir().join("release")
}

/// Builds the command `glass` and each service as a process.
pub fn processes() -> Result<()> {
    let mut command = run::cargo(&["build", "--release", "--quiet", "--package", "glass-cli"]);
    run::quiet(&mut command)?;
    // Apart from each other: built together, the features of one would end up in the other.
    for app in PROCESSES {
        run::quiet(&mut run::cargo(&["build", "--release", "--quiet", "--package", app]))?;
    }
    let glass = programs().join("glass");
    if !glass.is_file() {
        bail!("the build made no {}", glass.display());
    }
    Ok(())
}

/// Builds every image and returns what `glass build` says of the last.
pub fn images() -> Result<String> {
    for (app, platform) in TRACEABLE.into_iter().flat_map(|app| [(app, "linux"), (app, "vm")]) {
        glass_build(&["build", app, "--trace-functions", "--platform", platform])?;
    }
    IMAGES.iter().try_fold(String::new(), |_, app| image(app))
}

/// Builds what the benchmark `name` runs besides and returns what `glass build` says of the last image.
pub fn measured(name: &str) -> Result<String> {
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
    let arguments = ["build", "--release", "--quiet", "--package", package, "--example", name];
    run::quiet(&mut run::cargo(&arguments)).map(drop)
}

/// The services whose speed is measured while they trace: as always, without trace events, and with sleds.
fn traced_variants() -> Result<()> {
    run::quiet(&mut run::cargo(&["build", "--release", "--quiet", "--package", "trace-cost"]))?;
    image("trace-cost")?;
    image("bench-tcp")?;
    glass_build(&["build", "busy", "--trace-functions", "--platform", "linux"])?;
    for app in ["upload-queue", "bench-tcp"] {
        for variant in ["--trace-functions", "--without-trace"] {
            for platform in ["linux", "vm"] {
                glass_build(&["build", app, variant, "--platform", platform])?;
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
    glass_build(&["build", app])
}

fn glass_build(arguments: &[&str]) -> Result<String> {
    let mut command = std::process::Command::new(programs().join("glass"));
    command.args(arguments).current_dir(run::root());
    let said = run::quiet(&mut command).with_context(|| format!("`glass {}` failed", arguments.join(" ")))?;
    Ok(said.lines().last().unwrap_or_default().to_owned())
}
