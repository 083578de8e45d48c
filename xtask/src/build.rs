//! Builds the products that tests, demo and benchmarks run.

use crate::{aarch64, run, suite};
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The services that are run as processes.
const PROCESSES: [&str; 11] = [
    "upload-queue",
    "hello",
    "web-server",
    "busy",
    "bench-tcp",
    "bench-udp",
    "bench-console",
    "bench-disk",
    "bench-store",
    "bench-cores",
    "bench-tls",
];
/// The services that are booted and have the same features of our libraries; `faults` goes wrong on purpose.
const IMAGES: [&str; 9] =
    ["upload-queue", "hello", "busy", "faults", "bench-tcp", "bench-udp", "bench-console", "bench-disk", "bench-store"];
/// Those that only benchmarks boot.
const BENCHMARK_IMAGES: [&str; 3] = ["bench-cores", "bench-platform", "trace-cost"];
/// The programs that only benchmarks run, as cargo's arguments.
pub const BENCHMARK_EXAMPLES: [&str; 4] = ["--example", "pauses", "--example", "trace_page_cost"];
/// The services that are booted on AArch64 too.
const AARCH64_IMAGES: [&str; 3] = ["upload-queue", "hello", "faults"];
/// Those whose boot is measured.
const AARCH64_BOOTS: [&str; 2] = ["hello", "upload-queue"];
/// Others, each with more features.
const WEB_SERVER: &str = "web-server";
const BENCH_TLS: &str = "bench-tls";
/// The services that are built for the tracing of functions too, as both.
const TRACEABLE: [&str; 2] = ["upload-queue", "busy"];

/// The library that MPI programs load.
const MPI_LIBRARY: &str = "glass-platform-mpi";

/// Folder of the optimized programs, which users, the demo and the benchmarks run.
pub fn programs() -> PathBuf {
    run::target_dir().join("release")
}

/// Folder of the programs that end-to-end tests run: `glass`, services as processes and the MPI library. They are built with their own
/// tests, by the same flags, and have debug assertions.
pub fn tested() -> PathBuf {
    run::target_dir().join("debug")
}

/// Builds the command `glass` and each service as a process.
pub fn processes() -> Result<()> {
    glass()?;
    PROCESSES.iter().try_for_each(|app| process(app))
}

/// Builds the command `glass`.
pub fn glass() -> Result<()> {
    run::shown(&mut run::cargo(&["build", "--release", "--package", "glass-profiler-cli"]))?;
    let glass = programs().join("glass");
    if !glass.is_file() {
        bail!("the build did not create {}", glass.display());
    }
    Ok(())
}

/// Builds a service as a process, by itself: a common build would give each the features of all.
pub fn process(app: &str) -> Result<()> {
    run::shown(&mut run::cargo(&["build", "--release", "--package", app])).map(drop)
}

/// Builds what end-to-end tests run besides the programs in [`tested`], silently beside a build that shows its progress: services for
/// the tracing of functions, and as images. Returns what `glass build` reports of the last. `with_xen`: what is run in a dom0 too; `with_benchmarks`: what only these boot too.
pub fn services_for_tests(with_xen: bool, with_benchmarks: bool) -> Result<String> {
    let glass = tested().join("glass");
    let build = |services: &[&str], options: &[&str]| {
        let mut command = glass_build(&glass, &["build"]);
        run::quiet(command.args(services).args(options))
    };
    let of_benchmarks = if with_benchmarks { &BENCHMARK_IMAGES[..] } else { &[] };
    let images = [&IMAGES, of_benchmarks].concat();
    // A folder each, so neither waits for the other.
    let last = std::thread::scope(|scope| {
        let traceable = scope.spawn(|| {
            ["linux", "vm"]
                .into_iter()
                .try_for_each(|platform| build(&TRACEABLE, &["--trace-functions", "--platform", platform]).map(drop))
        });
        let last = build(&images, &[]).and_then(|_| build(&[WEB_SERVER], &[])).and_then(|_| build(&[BENCH_TLS], &[]));
        traceable.join().expect("building services does not panic").and(last)
    })?;
    if with_xen {
        run::quiet(&mut without_libraries(&GLASS))?;
        run::quiet(&mut without_libraries(&XEN_SAMPLER))?;
    }
    Ok(last_line(&last))
}

/// Builds the AArch64 images of services for end-to-end tests. Without the sources of the standard library this is left out, and their tests are
/// skipped, except where they are `required`. Returns what `glass build` reports of the last.
pub fn services_for_aarch64(required: bool) -> Result<String> {
    let library = match aarch64::library() {
        Ok(library) => library,
        Err(error) if !required => return Ok(format!("left out: {error:#}")),
        Err(error) => return Err(error.context("cannot build for AArch64")),
    };
    let glass = tested().join("glass");
    build_for_aarch64(&glass, &library, &AARCH64_IMAGES)?;
    build_for_aarch64(&glass, &library, &[WEB_SERVER])
}

/// The same of services that have the same features of our libraries, by `glass`, with the sources of the standard library.
fn build_for_aarch64(glass: &Path, library: &Path, services: &[&str]) -> Result<String> {
    let mut command = glass_build(glass, &["build", "--target", "aarch64"]);
    run::quiet(command.args(services).env("GLASS_RUST_LIBRARY", library)).map(|said| last_line(&said))
}

/// Builds a program that needs no file of the machine that it runs on, such as a dom0: without shared libraries, and without symbols.
/// `what` are cargo's arguments that name it.
fn without_libraries(what: &[&str]) -> Command {
    const TRIPLE: &str = "x86_64-unknown-linux-gnu";
    const FLAGS: &str = "'-Cforce-frame-pointers=yes', '-Ctarget-feature=+crt-static'";
    let folder = run::target_dir().join("static");
    let mut command = run::cargo(&["build", "--target", TRIPLE, "--target-dir"]);
    command.arg(folder).args(what);
    command.args(["--config", &format!("target.{TRIPLE}.rustflags=[{FLAGS}]")]);
    command.args(["--config", "profile.dev.strip='symbols'", "--config", "profile.release.strip='symbols'"]);
    command
}

/// The arguments that name the programs for the dom0 of a test.
const GLASS: [&str; 2] = ["--package", "glass-profiler-cli"];
const XEN_SAMPLER: [&str; 4] = ["--package", "glass-profiler-guests", "--example", "xen_looks"];

/// Builds `glass` for any other machine, optimized; returns where it is. It does not contain where its sources are here.
pub fn static_glass() -> Result<PathBuf> {
    run::shown(without_libraries(&GLASS).arg("--release").env("GLASS_PACKAGED", "1"))?;
    Ok(run::target_dir().join("static/x86_64-unknown-linux-gnu/release/glass"))
}

/// Builds what the benchmark `name` runs in addition and returns the report of `glass build` for the last image.
pub fn measured(name: &str, part: Option<&str>) -> Result<String> {
    if let "perf" | "linux" = name {
        return Ok("none is needed".to_owned());
    }
    if (name, part) == ("network", Some("loss")) {
        return image("bench-tcp");
    }
    if (name, part) == ("queue", Some("cells")) {
        return queue_image();
    }
    if name == "network" {
        // The Linux guest has no libraries.
        run::shown(without_libraries(&["--package", "bench-tcp", "--package", "bench-udp"]).arg("--release"))?;
        image("bench-udp")?;
        return image("bench-tcp");
    }
    if name == "boot" {
        image("hello")?;
        // Without those sources, or without network, there is no figure of it.
        if let Ok(library) = aarch64::library() {
            build_for_aarch64(&programs().join("glass"), &library, &AARCH64_BOOTS)?;
        }
        return queue_image();
    }
    if name == "agent" {
        image("hello")?;
        return image("busy");
    }
    if name == "store" {
        process("glass-bench-redb")?;
    }
    if let "disk" | "store" | "console" | "cores" | "tls" = name {
        return image(&format!("bench-{name}"));
    }
    if name == "web" {
        return image(WEB_SERVER);
    }
    if name == "queue" && part.is_none_or(|part| part == "small") {
        // What the Linux guest is started with.
        image(WEB_SERVER)?;
    }
    if name == "vsock" {
        // The Linux guest has no libraries.
        run::shown(without_libraries(&["--package", "bench-tcp"]).arg("--release"))?;
        return image("bench-tcp");
    }
    if name == "platform" {
        image("bench-tcp")?;
        return image("bench-platform");
    }
    if name == "xen" {
        if part.is_none_or(|part| part == "traces") {
            static_glass()?;
            run::shown(without_libraries(&XEN_SAMPLER).arg("--release"))?;
        }
        if part.is_none_or(|part| part == "network") {
            run::shown(without_libraries(&["--package", "bench-tcp"]).arg("--release"))?;
            image("bench-tcp")?;
        }
        return image("bench-disk");
    }
    if name == "mpi" {
        run::shown(&mut run::cargo(&["build", "--release", "--package", MPI_LIBRARY]))?;
        return Ok("none is needed".to_owned());
    }
    if name == "tracing" {
        example("glass-profiler-report", "trace_page_cost")?;
        if part == Some("page") {
            return Ok("none is needed".to_owned());
        }
        traced_variants()?;
    } else {
        example("glass-profiler-guests", "pauses")?;
        image("busy")?;
    }
    queue_image()
}

/// Builds what Linux guests are recorded with, and what bare stops are measured with.
pub fn for_linux_guests() -> Result<()> {
    glass()?;
    example("glass-profiler-guests", "pauses")?;
    vmm()
}

/// Builds the VMM for tests, which benchmarks start from the folder of this program.
pub fn vmm() -> Result<()> {
    run::shown(&mut run::cargo(&["build", "--package", "glass-tests-vmm"])).map(drop)
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

/// Builds the command `glass` and the image of the queue as tests have them; returns the report of `glass build`.
pub fn for_lab() -> Result<String> {
    suite::build_glass()?;
    run::shown(&mut glass_build(&tested().join("glass"), &["build", "upload-queue"])).map(|said| last_line(&said))
}

/// Builds the image of the queue alone and returns the report of `glass build`.
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
