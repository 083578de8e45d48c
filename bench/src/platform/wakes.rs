//! `platform wakes`: a notification, an interrupt and the wake of an idle core, over virtio-mmio and over PCI in turn.
//!
//! What is measured, by the guest's own TSC:
//! * `notify_us`: the write to a disk's doorbell, from the instruction before it to the instruction after it. The driver takes both times
//!   and records them with the event of the notification, so this part reads them from a trace of the guest.
//! * `interrupt_us`: from the completion of a request by the device to the continuation of the task that waits for it. The device is QEMU's
//!   `null-co` disk, which completes each read after [`LATENCY_NS`] without any work. Each boot measures reads during which the core halts,
//!   so that an interrupt ends each of them, and in turn reads during which the core polls without a pause, which need none. The figure of a
//!   boot is the difference of both medians. It contains the wake of the host's core and of the thread of the vCPU, and the acknowledgement.
//! * `idle_wake_us`: from the deadline of a timer, for which the core halts, to the continuation of the task.

use crate::figure::Figure;
use crate::outcome::Outcome;
use crate::run::Run;
use crate::statistics::{Summary, turn};
use anyhow::{Context, Result, bail};
use glass_tests::folder::Folder;
use glass_tests::process::Process;
use glass_tests::queue::World;
use glass_tests::{programs, qemu};
use serde_json::Value;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Boots of each kind, on each bus.
const ROUNDS: usize = 7;
/// A boot and its measurement take some two seconds.
const LIMIT: Duration = Duration::from_secs(60);
/// The time of a read: five times what a core spins before it halts.
const LATENCY_NS: u64 = 5_000_000;
/// The buses, the one that the other is compared with first.
const BUSES: [&str; 2] = ["mmio", "pci"];
const DISK_BYTES: u64 = 1 << 20;

/// What one boot gives, in microseconds.
#[derive(Default)]
struct Samples {
    notify: Vec<f64>,
    interrupt: Vec<f64>,
    idle_wake: Vec<f64>,
}

/// Measures the accelerators of this machine.
pub fn run(outcome: &mut Outcome, run: &Run) -> Result<()> {
    let folder = Folder::new("bench-platform")?;
    let disk = folder.file("disk.img");
    File::create(&disk)?.set_len(DISK_BYTES)?;
    let mut kinds: Vec<(World, &str, Samples)> = Vec::new();
    for world in outcome.available([World::Kvm, World::Tcg]) {
        kinds.extend(BUSES.map(|bus| (world, bus, Samples::default())));
    }
    for round in run.rounds(ROUNDS) {
        for index in turn(kinds.len(), round) {
            let (world, bus, samples) = &mut kinds[index];
            measure(*world, bus, &disk, &folder, samples).with_context(|| format!("{world}, {bus}, round {round}"))?;
        }
        run.so_far(outcome, |outcome| add(outcome, &kinds));
    }
    add(outcome, &kinds);
    outcome.note(format!(
        "{ROUNDS} boots of each kind, mmio and PCI in turn, each the median of its repetitions; figures without `mmio` in their name are those of PCI"
    ));
    outcome.note("notify: the write to a disk's doorbell by the guest's TSC; interrupt: from the device's completion to the task, as the difference of reads that end a halt and reads that are polled for; idle wake: from a timer's deadline to the task; an interrupt below zero is a host that was busy");
    Ok(())
}

fn add(outcome: &mut Outcome, kinds: &[(World, &str, Samples)]) {
    for pair in kinds.chunks(BUSES.len()) {
        let [(world, _, mmio), (_, _, pci)] = pair else { continue };
        for (name, mmio, pci) in [
            ("notify_us", &mmio.notify, &pci.notify),
            ("interrupt_us", &mmio.interrupt, &pci.interrupt),
            ("idle_wake_us", &mmio.idle_wake, &pci.idle_wake),
        ] {
            let figure = Figure::of(&format!("platform.{world}.{name}"), "us", pci);
            outcome.add(figure.map(|figure| figure.beside(Summary::of(mmio).map(|before| ("mmio", before.median)))));
            outcome.add(Figure::of(&format!("platform.{world}.mmio.{name}"), "us", mmio));
        }
    }
}

fn glass_run(world: World, bus: &str, disk: &Path) -> Result<Command> {
    let image = programs::image("bench-platform").context("the image of bench-platform is not built")?;
    let mut run = Command::new(programs::built("glass").context("glass is not built")?);
    run.arg("run").arg(image).args(["--accel", &world.to_string(), "--memory", "32", "--net", "none"]);
    run.args(["--machine", "microvm", "--bus", bus, "--disk"]).arg(disk);
    Ok(run)
}

fn measure(world: World, bus: &str, disk: &Path, folder: &Folder, samples: &mut Samples) -> Result<()> {
    let (interrupt, idle_wake) = wakes(glass_run(world, bus, disk)?, folder)?;
    samples.interrupt.push(interrupt);
    samples.idle_wake.push(idle_wake);
    samples.notify.push(notification(glass_run(world, bus, disk)?, folder)?);
    Ok(())
}

/// Boots with a disk that completes each read after a fixed time; the medians of an interrupt and of an idle wake, in microseconds.
fn wakes(mut run: Command, folder: &Folder) -> Result<(f64, f64)> {
    let null_disk = format!("if=none,id=disk,driver=null-co,size={DISK_BYTES},latency-ns={LATENCY_NS},read-zeroes=off");
    let words = qemu::command_line(&mut run, &[], folder)?.with_disk_of_qemu(&null_disk);
    let (program, words) = words.split_first().context("an empty command line")?;
    let mut command = Command::new(program);
    command.args(words);
    let mut process = Process::spawn(&mut command, &folder.file("wakes.log"))?;
    process.wait(LIMIT).context("it does not end")?;
    let output = process.output();
    let (mut halted, mut polled, mut timer) = (Vec::new(), Vec::new(), Vec::new());
    for line in output.lines().filter(|line| line.starts_with("{\"halted_ns\"")) {
        let line: Value = serde_json::from_str(line).with_context(|| format!("no JSON: {line}"))?;
        for (name, values) in [("halted_ns", &mut halted), ("polled_ns", &mut polled), ("timer_ns", &mut timer)] {
            values.push(line[name].as_f64().with_context(|| format!("no {name}"))? / 1e3);
        }
    }
    let median = |values: &[f64]| Summary::of(values).map(|summary| summary.median);
    let (Some(halted), Some(polled), Some(timer)) = (median(&halted), median(&polled), median(&timer)) else {
        bail!("it measured nothing: {output}");
    };
    if polled * 1e3 < LATENCY_NS as f64 {
        bail!("a read takes {polled} us, less than the disk's own time: this QEMU does not keep to latency-ns");
    }
    Ok((halted - polled, timer))
}

/// Runs it traced; the median of its notifications of the disk, in microseconds.
fn notification(mut run: Command, folder: &Folder) -> Result<f64> {
    let (recording, exported) = (folder.file("notify.pftrace"), folder.file("notify.json"));
    run.arg("--trace=devices").arg("--output").arg(&recording).args(["--", "--repetitions", "100"]);
    let mut process = Process::spawn(&mut run, &folder.file("notify.log"))?;
    let status = process.wait(LIMIT).context("it does not end")?;
    if !status.success() {
        bail!("it failed: {}", process.output());
    }
    export(&recording, &exported)?;
    let trace: Value = serde_json::from_slice(&std::fs::read(&exported)?).context("the export is not JSON")?;
    let events = trace["traceEvents"].as_array().context("the export has no events")?;
    let took_us: Vec<f64> = events
        .iter()
        .filter(|event| event["name"] == "notify" && event["args"]["device"] == "disk 0")
        .filter_map(|event| event["args"]["took_ns"].as_f64().map(|ns| ns / 1e3))
        .collect();
    Summary::of(&took_us).map(|summary| summary.median).context("no notification is in the trace")
}

fn export(recording: &Path, output: &PathBuf) -> Result<()> {
    let mut export = Command::new(programs::built("glass").context("glass is not built")?);
    export.args(["export", "--format", "chrome"]).arg(recording).arg("--output").arg(output);
    let result = export.output().context("cannot start glass")?;
    if !result.status.success() {
        bail!("glass export: {}", String::from_utf8_lossy(&result.stderr));
    }
    Ok(())
}
