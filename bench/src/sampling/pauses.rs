//! How long a guest is paused for one sample: by our backends, and by existing tools.

use super::guest::Guest;
use super::monitor::{Hmp, Qmp};
use crate::figure::Figure;
use crate::outcome::Outcome;
use crate::statistics::Summary;
use anyhow::{Context, Result, bail};
use glass_tests::programs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Samples by each of the other quick ways.
const SAMPLES: usize = 2000;
/// Samples by KVM, and as many bare stops: the 99th percentile of 2,000 differs by 50 us from run to run.
const KVM_SAMPLES: usize = 20_000;
/// Samples per second of the quick backends.
const RATE_HZ: u32 = 500;
/// A slow way has this time for all its samples, on the VM where all ways are compared and on the other.
const SLOW_LIMITS: [Duration; 2] = [Duration::from_secs(480), Duration::from_secs(30)];
/// Parts into which the samples of each way are divided, so that all see the same noise.
const TURNS: usize = 4;

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
pub fn measure(outcome: &mut Outcome) -> Result<()> {
    let mut floor_us = None;
    if programs::has_kvm() {
        let times = look_at("kvm")?;
        floor_us = Summary::of(&times.floor).map(|floor| floor.median);
        add(outcome, "floor.stop_us", &times.floor, None);
        add(outcome, "sampling.kvm.pause_us", &times.kvm, floor_us);
        add(outcome, "sampling.kvm.cpu_us", &times.kvm_cpu, None);
        add_peers(outcome, "sampling", &times, floor_us);
    } else {
        outcome.note("KVM skipped: /dev/kvm cannot be opened");
    }
    let times = look_at("tcg")?;
    add_peers(outcome, if floor_us.is_some() { "sampling.tcg" } else { "sampling" }, &times, None);
    outcome.note(format!(
        "pauses: one VM that computes all the time, the ways in turn, {RATE_HZ} looks per second; 24 KiB of stack are copied by ours"
    ));
    outcome.note("hmp_registers: registers only, no stack, the guest runs on meanwhile; gdb_bt: `gdb -batch -ex bt`, its pause by QEMU's events, its total from start to end of gdb");
    Ok(())
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

fn look_at(accel: &str) -> Result<Times> {
    let guest = Guest::start(accel)?;
    let mut times = Times::default();
    for _ in 0..TURNS {
        if accel == "kvm" {
            ours("kvm", KVM_SAMPLES, &guest, &mut times)?;
        }
        ours("gdbstub", SAMPLES, &guest, &mut times)?;
        hmp(&guest, &mut times).context("cannot measure `info registers`")?;
        let limit = SLOW_LIMITS[usize::from(accel != "kvm" && programs::has_kvm())];
        gdb(&guest, &mut times, limit).context("cannot measure gdb")?;
    }
    Ok(times)
}

/// One turn of one of our backends.
fn ours(backend: &str, samples: usize, guest: &Guest, times: &mut Times) -> Result<()> {
    let program = programs::built("examples/pauses").context("the example `pauses` is not built")?;
    let mut command = Command::new(program);
    command.arg(backend).args([guest.pid().to_string(), (samples / TURNS).to_string(), RATE_HZ.to_string()]);
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
fn hmp(guest: &Guest, times: &mut Times) -> Result<()> {
    let mut hmp = Hmp::connect(&guest.socket("hmp"))?;
    for _ in 0..SAMPLES / TURNS {
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
fn gdb(guest: &Guest, times: &mut Times, limit: Duration) -> Result<()> {
    let limit = Instant::now() + limit / TURNS as u32;
    let mut qmp = Qmp::connect(&guest.socket("qmp"))?;
    for _ in 0..SAMPLES / TURNS {
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
