//! How long a guest is paused for one sample: by our backends, and by existing tools.

use super::guest::Guest;
use super::monitor::{Hmp, Qmp};
use crate::figure::Figure;
use crate::outcome::Outcome;
use crate::run::Run;
use crate::statistics::Summary;
use anyhow::{Context, Result, bail};
use glass_tests::programs;
use glass_tests::queue::World;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Samples by each of the other quick ways.
const SAMPLES: usize = 2000;
/// Samples by KVM, and as many bare stops: the 99th percentile of 2,000 differs by 50 us from run to run.
const KVM_SAMPLES: usize = 20_000;
/// Samples per second of the quick backends.
const RATE_HZ: u32 = 500;
/// A slow way has this time for all its samples, on the VM where all ways are compared and on the other.
const SLOW_LIMITS: [Duration; 2] = [Duration::from_secs(300), Duration::from_secs(30)];
/// Parts into which the samples of each way are divided, so that all see the same noise.
const TURNS: usize = 4;
/// Turns and samples of a turn in a short run.
const SHORT: (usize, usize) = (1, 50);
const SLOW_LIMIT_SHORT: Duration = Duration::from_secs(1);

/// What is measured of one way in a turn.
struct Turn {
    samples: usize,
    kvm_samples: usize,
    /// Of the slow way.
    limit: Duration,
}

/// Microseconds, by who has looked.
#[derive(Default)]
struct Times {
    floor: Vec<f64>,
    kvm: Vec<f64>,
    kvm_cpu: Vec<f64>,
    gdbstub: Vec<f64>,
    hmp: Vec<f64>,
    gdb_pause: Vec<f64>,
    gdb_total: Vec<f64>,
}

/// Measures on a VM under KVM by all ways, and on one under TCG by those that need no KVM.
pub fn measure(outcome: &mut Outcome, run: &Run) -> Result<()> {
    let worlds = outcome.available([World::Kvm, World::Tcg]);
    let has_gdb = Command::new("gdb").arg("--version").output().is_ok_and(|output| output.status.success());
    if !has_gdb {
        outcome.note("gdb skipped: it is not installed");
    }
    for (index, world) in worlds.iter().enumerate() {
        let is_first = index == 0;
        let limit = run.size(SLOW_LIMITS[index], SLOW_LIMIT_SHORT);
        let guest = Guest::start(&world.to_string())?;
        let run = run.part(index, worlds.len());
        let (turns, samples) = run.size((TURNS, SAMPLES / TURNS), SHORT);
        let kvm_samples = run.size(KVM_SAMPLES / TURNS, SHORT.1);
        let turn = Turn { samples, kvm_samples, limit: if has_gdb { limit / turns as u32 } else { Duration::ZERO } };
        let mut times = Times::default();
        for _ in run.rounds(turns) {
            one_turn(*world, &guest, &turn, &mut times)?;
            run.so_far(outcome, |so_far| add_all(so_far, *world, is_first, &times));
        }
        add_all(outcome, *world, is_first, &times);
    }
    outcome.note(format!(
        "pauses: one VM that computes all the time, the ways in turn, {RATE_HZ} looks per second; 24 KiB of stack are copied by ours"
    ));
    outcome.note("hmp_registers: registers only, no stack, the guest runs on meanwhile; gdb_bt: `gdb -batch -ex bt`, its pause by QEMU's events, its total from start to end of gdb");
    Ok(())
}

/// Figures of one VM. The names of the first have no accelerator.
fn add_all(outcome: &mut Outcome, world: World, is_first: bool, times: &Times) {
    let floor_us = Summary::of(&times.floor).map(|floor| floor.median);
    if world == World::Kvm {
        add(outcome, "floor.stop_us", &times.floor, None);
        add(outcome, "sampling.kvm.pause_us", &times.kvm, floor_us);
        add(outcome, "sampling.kvm.cpu_us", &times.kvm_cpu, None);
    }
    add_peers(outcome, if is_first { "sampling" } else { "sampling.tcg" }, times, floor_us);
}

fn add(outcome: &mut Outcome, name: &str, samples: &[f64], floor_us: Option<f64>) {
    let Some(figure) = Figure::of(name, "us", samples) else { return };
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |part: f64| sorted[((sorted.len() as f64 * part) as usize).min(sorted.len() - 1)];
    outcome.note(format!("{name}: median {:.1}, p99 {:.1}, max {:.1}, n {}", at(0.5), at(0.99), at(1.0), sorted.len()));
    outcome.add(Some(match floor_us {
        Some(floor) => figure.against("floor.stop_us", floor),
        None => figure,
    }));
}

fn add_peers(outcome: &mut Outcome, prefix: &str, times: &Times, floor_us: Option<f64>) {
    add(outcome, &format!("{prefix}.gdbstub.pause_us"), &times.gdbstub, floor_us);
    add(outcome, &format!("{prefix}.hmp_registers_us"), &times.hmp, floor_us);
    add(outcome, &format!("{prefix}.gdb_bt_us"), &times.gdb_pause, floor_us);
    add(outcome, &format!("{prefix}.gdb_bt_total_us"), &times.gdb_total, None);
}

/// One turn of each way.
fn one_turn(world: World, guest: &Guest, turn: &Turn, times: &mut Times) -> Result<()> {
    if world == World::Kvm {
        ours("kvm", turn.kvm_samples, guest, times)?;
    }
    ours("gdbstub", turn.samples, guest, times)?;
    hmp(guest, turn.samples, times).context("cannot measure `info registers`")?;
    gdb(guest, times, turn).context("cannot measure gdb")
}

/// One turn of one of our backends.
fn ours(backend: &str, samples: usize, guest: &Guest, times: &mut Times) -> Result<()> {
    let program = programs::built("examples/pauses").context("the example `pauses` is not built")?;
    let mut command = Command::new(program);
    command.arg(backend).args([guest.pid().to_string(), samples.to_string(), RATE_HZ.to_string()]);
    let output = command.output().context("cannot start the example `pauses`")?;
    if !output.status.success() {
        bail!("sampling by {backend} failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let (what, value) = line.split_once(' ').context("the example `pauses` prints something else")?;
        let value = value.parse()?;
        match (what, backend) {
            ("floor", _) => times.floor.push(value),
            ("sample", "kvm") => times.kvm.push(value),
            ("cpu", "kvm") => times.kvm_cpu.push(value),
            ("sample", _) => times.gdbstub.push(value),
            _ => {}
        }
    }
    Ok(())
}

/// One turn of the registers by the monitor.
fn hmp(guest: &Guest, samples: usize, times: &mut Times) -> Result<()> {
    let mut hmp = Hmp::connect(&guest.socket("hmp"))?;
    for _ in 0..samples {
        std::thread::sleep(Duration::from_secs(1) / RATE_HZ);
        let (answer, time) = hmp.command("info registers")?;
        if !answer.contains("RIP=") {
            bail!("`info registers` answers {answer:?}");
        }
        times.hmp.push(time.as_secs_f64() * 1e6);
    }
    Ok(())
}

/// One turn of `gdb -batch -ex bt`.
fn gdb(guest: &Guest, times: &mut Times, turn: &Turn) -> Result<()> {
    let limit = Instant::now() + turn.limit;
    let mut qmp = Qmp::connect(&guest.socket("qmp"))?;
    for _ in 0..turn.samples {
        if Instant::now() > limit {
            break;
        }
        let begin = Instant::now();
        let mut gdb = Command::new("gdb");
        gdb.args(["-nx", "-batch", "-ex", &format!("target remote {}", guest.socket("gdb").display()), "-ex", "bt"]);
        let output = gdb.arg(&guest.qemu.image).stdin(Stdio::null()).output().context("cannot start gdb")?;
        times.gdb_total.push(begin.elapsed().as_secs_f64() * 1e6);
        let text = String::from_utf8_lossy(&output.stdout);
        if !text.contains("#0") {
            bail!("gdb shows no stack: {text}{}", String::from_utf8_lossy(&output.stderr));
        }
        times.gdb_pause.push(qmp.stopped_us()?);
    }
    Ok(())
}
