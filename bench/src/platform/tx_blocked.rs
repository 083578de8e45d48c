//! `platform tx-blocked`: the CPU time of a VM whose network card cannot send while frames have been received, which it can only take
//! when there is room for an answer. Such a core sleeps until the card has sent; it used to spin.
//!
//! Several clients download over a TAP device whose link is limited to [`RATE`]. QEMU stops taking frames of the card while 64 KiB of it have not left
//! the host, so the card's queue is full most of the time, and acknowledgements arrive meanwhile. Measured is the CPU time of QEMU, and of the
//! thread of its vCPU, for each second of the transfer.
//!
//! The image of `bench-tcp` that was built before the change is measured in turn if [`BEFORE`] names it. Commit 13a5d69 is the last one
//! before: `git worktree add OLD 13a5d69`, and there `cargo run --release -p glass-profiler-cli -- build bench-tcp`. It supports only virtio-mmio, so both use that.

use super::tap::{NETWORK, SEND_BUFFER, SlowTap, TAP, VM};
use crate::figure::Figure;
use crate::outcome::Outcome;
use crate::run::Run;
use crate::statistics::{Summary, turn};
use anyhow::{Context, Result, bail};
use glass_tests::folder::Folder;
use glass_tests::process::{Process, cpu_time};
use glass_tests::queue::World;
use glass_tests::{programs, qemu};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The variable with the path of an image from before the change.
const BEFORE: &str = "GLASS_BENCH_BEFORE";
const ROUNDS: usize = 5;
const RATE: &str = "200mbit";
/// Bytes per second that the VM has to send, about half of that: without them the figures are those of an idle VM.
const RATE_MIN: f64 = 12e6;
const CLIENTS: usize = 16;
/// Time until the card's queue is full.
const SETTLE: Duration = Duration::from_secs(2);
const WINDOW: Duration = Duration::from_secs(3);
const WINDOW_SHORT: Duration = Duration::from_millis(500);
const LIMIT: Duration = Duration::from_secs(60);
const PORT: u16 = 8090;

/// CPU seconds for each second.
#[derive(Default)]
struct Samples {
    qemu: Vec<f64>,
    vcpu: Vec<f64>,
}

/// Measures the accelerators of this machine.
pub fn run(outcome: &mut Outcome, run: &Run) -> Result<()> {
    let folder = Folder::new("bench-tx-blocked")?;
    let image = programs::image("bench-tcp").context("the image of bench-tcp is not built")?;
    let mut images = vec![("after", image)];
    match std::env::var_os(BEFORE) {
        Some(path) => images.push(("before", PathBuf::from(path))),
        None => outcome.note(format!("before the change: left out; {BEFORE} names no image")),
    }
    let tap = match SlowTap::new(RATE) {
        Ok(tap) => tap,
        Err(error) => {
            outcome.skip(format!("{error:#}"));
            return Ok(());
        }
    };
    let worlds = outcome.available([World::Kvm, World::Tcg]);
    for (index, world) in worlds.iter().enumerate() {
        let run = run.part(index, worlds.len());
        let times = run.size((SETTLE, WINDOW), (WINDOW_SHORT, WINDOW_SHORT));
        let mut samples: Vec<Samples> = images.iter().map(|_| Samples::default()).collect();
        for round in run.rounds(ROUNDS) {
            for index in turn(images.len(), round) {
                let (name, image) = &images[index];
                let (qemu, vcpu) = one_run(*world, image, &tap, times, &folder)
                    .with_context(|| format!("{world}, {name}, round {round}"))?;
                samples[index].qemu.push(qemu * 100.0);
                samples[index].vcpu.push(vcpu * 100.0);
            }
            run.so_far(outcome, |so_far| add(so_far, *world, &images, &samples));
        }
        add(outcome, *world, &images, &samples);
    }
    outcome.note(format!(
        "tx-blocked: {CLIENTS} downloads over a TAP device whose link has {RATE}, windows of {} s, virtio-mmio",
        WINDOW.as_secs()
    ));
    Ok(())
}

fn add(outcome: &mut Outcome, world: World, images: &[(&str, PathBuf)], samples: &[Samples]) {
    let before = samples.get(1);
    for ((name, _), samples_of) in images.iter().zip(samples) {
        let peer = before.filter(|_| *name == "after");
        for (what, values, peer) in [
            ("qemu", &samples_of.qemu, peer.map(|peer| &peer.qemu)),
            ("vcpu", &samples_of.vcpu, peer.map(|peer| &peer.vcpu)),
        ] {
            let figure =
                Figure::of(&format!("platform.{world}.tx_blocked.{name}.{what}_percent"), "% of a core", values);
            let peer = peer.and_then(|values| Summary::of(values));
            outcome.add(figure.map(|figure| figure.beside(peer.map(|peer| ("before the change", peer.median)))));
        }
    }
}

/// CPU seconds of QEMU and of its vCPU for each second of a transfer.
fn one_run(
    world: World,
    image: &Path,
    tap: &SlowTap,
    (settle, window): (Duration, Duration),
    folder: &Folder,
) -> Result<(f64, f64)> {
    // `glass run` looks for the device.
    let mut run = tap.beside_vm();
    run.arg(programs::built("glass").context("glass is not built")?).arg("run").arg(image);
    run.args(["--accel", &world.to_string(), "--memory", "32", "--bus", "mmio", "--net", NETWORK, "--ip", VM]);
    let port = PORT.to_string();
    let line = qemu::command_line(&mut run, &["--port", &port], folder)?;
    let mut command = tap.beside_vm();
    let words = line.with_card_of_qemu(TAP, SEND_BUFFER);
    if !words.iter().any(|word| word.ends_with(SEND_BUFFER)) {
        bail!("glass run gives the VM no TAP device whose send buffer could be limited: {words:?}");
    }
    command.args(words);
    // Without this option its threads have no names of their own.
    command.args(["-name", "vm,debug-threads=on"]);
    let mut vm = Process::spawn(&mut command, &folder.file("vm.log"))?;
    let started = Instant::now();
    while !vm.output().contains("listens on") {
        if vm.ended().is_some() || started.elapsed() > LIMIT {
            bail!("the VM does not start: {}", vm.output());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let address = VM.split('/').next().unwrap_or_default();
    // More than the link carries while it is measured.
    let script = format!("exec 3<>/dev/tcp/{address}/{PORT}; echo 'send 1000000000' >&3; exec cat <&3 >/dev/null");
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let mut client = tap.beside_client();
        clients.push(Process::spawn(client.args(["bash", "-c", &script]), &folder.file("client.log"))?);
    }
    std::thread::sleep(settle);
    let (before, sent_before) = (used(vm.pid())?, sent(tap)?);
    let start = Instant::now();
    std::thread::sleep(window);
    let (after, sent_after) = (used(vm.pid())?, sent(tap)?);
    let seconds = start.elapsed().as_secs_f64();
    let rate = sent_after.saturating_sub(sent_before) as f64 / seconds;
    // A window that is short, beside other work, shows only whether the VM sends.
    if rate < if window < WINDOW { 1.0 } else { RATE_MIN } {
        bail!("the VM sent {rate:.0} bytes/s, too few to block its card: {}", vm.output());
    }
    if let Some(client) = clients.iter_mut().find_map(|client| client.ended().map(|_| client.output())) {
        bail!("a download ended early: {client}; {}", vm.output());
    }
    let share = |before: Duration, after: Duration| after.saturating_sub(before).as_secs_f64() / seconds;
    Ok((share(before.0, after.0), share(before.1, after.1)))
}

/// Bytes that the VM has sent, by the counter of its TAP device.
fn sent(tap: &SlowTap) -> Result<u64> {
    let output = tap.beside_vm().args(["cat", "/proc/net/dev"]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let counters = text.lines().find_map(|line| line.trim_start().strip_prefix("tap0:"));
    let bytes = counters.and_then(|counters| counters.split_whitespace().next()?.parse().ok());
    bytes.with_context(|| format!("tap0 has no counters: {text}"))
}

/// CPU time of a QEMU process and of the thread of its only vCPU.
fn used(pid: u32) -> Result<(Duration, Duration)> {
    let all = cpu_time(pid).with_context(|| format!("process {pid} is gone"))?;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let path = thread?.path();
        if std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name.starts_with("CPU 0/")) {
            let text = std::fs::read_to_string(path.join("schedstat")).context("the kernel has no schedstat")?;
            let ns = text.split(' ').next().and_then(|ns| ns.parse().ok()).context("schedstat has no CPU time")?;
            return Ok((all, Duration::from_nanos(ns)));
        }
    }
    bail!("QEMU has no thread of a vCPU")
}
