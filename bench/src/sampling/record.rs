//! CPU time and memory of the profiler at ten times the usual rate, and whether it reports its losses.

use super::guest::Guest;
use crate::figure::Figure;
use crate::outcome::Outcome;
use crate::run::Run;
use anyhow::{Context, Result, bail};
use glass_tests::folder::Folder;
use glass_tests::process::Process;
use glass_tests::programs;
use glass_tests::queue::WORLDS;
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const RATE_HZ: u32 = 10_000;
const SECONDS: u64 = 60;
const SECONDS_SHORT: u64 = 1;
/// How often the recorder's memory is read.
const POLL: Duration = Duration::from_millis(100);

/// `glass record` of a process.
pub fn recorder(pid: u32, rate_hz: u32, seconds: f64, output: &Path) -> Result<Command> {
    let mut command = Command::new(programs::built("glass").context("glass is not built")?);
    command.args(["record", "--pid", &pid.to_string(), "--rate", &rate_hz.to_string()]);
    command.args(["--duration", &seconds.to_string(), "--output"]).arg(output);
    Ok(command)
}

/// Records a process, a VM under KVM and one under TCG.
pub fn measure(outcome: &mut Outcome, run: &Run) -> Result<()> {
    let worlds = outcome.available(WORLDS);
    let folder = Folder::new("bench-record")?;
    let mut command = Command::new(programs::built("busy").context("busy is not built")?);
    let busy = Process::spawn(command.args(["--", "--seconds", "3600"]), &folder.file("busy.log"))?;
    one(outcome, "process", busy.pid(), &folder, run)?;
    drop(busy);
    for (index, world) in worlds.iter().enumerate().skip(1) {
        run.figures(outcome);
        run.done(index, worlds.len());
        let guest = Guest::start(&world.to_string())?;
        one(outcome, &world.to_string(), guest.pid(), &folder, run)?;
    }
    outcome.note(format!("record: {RATE_HZ} samples per second for {SECONDS} s, of a guest that computes all the time; samples that are not collected are reported as lost (the VM keeps three quarters of its time)"));
    Ok(())
}

fn one(outcome: &mut Outcome, name: &str, pid: u32, folder: &Folder, run: &Run) -> Result<()> {
    let seconds = run.size(SECONDS, SECONDS_SHORT);
    let recording = folder.file(&format!("{name}.pftrace"));
    let mut command = recorder(pid, RATE_HZ, seconds as f64, &recording)?;
    let mut process = Process::spawn(&mut command, &folder.file("record.log"))?;
    let mut peak_bytes = 0;
    let limit = Duration::from_secs(seconds + 60);
    let begin = std::time::Instant::now();
    let status = loop {
        peak_bytes = peak_bytes.max(peak_memory_bytes(process.pid()).unwrap_or(0));
        if let Some(status) = process.wait(POLL) {
            break status;
        }
        if begin.elapsed() > limit {
            bail!("glass record does not end after its duration");
        }
    };
    if !status.success() {
        bail!("glass record: {}", process.output());
    }
    let cost = cost(&recording)?;
    let number = |key: &str| cost[key].as_f64().with_context(|| format!("glass info has no {key}"));
    let (wanted, taken, lost) = (number("samples_expected")?, number("samples_collected")?, number("samples_lost")?);
    let due = RATE_HZ as f64 * seconds as f64;
    // A second is too short for the start and the end, and a busy host, not to count.
    let is_due = run.is_short() || (wanted - due).abs() <= due * 0.02;
    if !is_due || taken + lost < wanted * run.size(0.99, 0.8) {
        bail!("{name}: of {due} samples {wanted} are reported as expected, {taken} as collected and {lost} as lost");
    }
    let single = |name: String, unit: &str, value: f64| Figure::of(&name, unit, &[value]);
    outcome.add(single(format!("sampling.record_10khz.{name}.peak_mib"), "MiB", peak_bytes as f64 / 1048576.0));
    outcome.add(single(format!("sampling.record_10khz.{name}.taken_percent"), "%", taken / wanted * 100.0));
    let cpu_percent = number("profiler_cpu_ns")? / (seconds as f64 * 1e9) * 100.0;
    outcome.add(single(format!("sampling.record_10khz.{name}.cpu_percent"), "% of a core", cpu_percent));
    Ok(())
}

/// The overhead that `glass info` reports.
fn cost(recording: &Path) -> Result<Value> {
    let mut command = Command::new(programs::built("glass").context("glass is not built")?);
    let output = command.args(["info", "--json"]).arg(recording).output().context("cannot start glass")?;
    if !output.status.success() {
        bail!("glass info: {}", String::from_utf8_lossy(&output.stderr));
    }
    let info: Value = serde_json::from_slice(&output.stdout).context("glass info does not print JSON")?;
    Ok(info["cost"].clone())
}

/// The most memory that a process has used.
fn peak_memory_bytes(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? * 1024)
}
