//! `agent`: what it costs to sample all VMs of a host all the time: CPU time and memory of `glass agent` with all its recorders, and the bytes that it keeps.

use crate::figure::Figure;
use crate::outcome::Outcome;
use crate::run::Run;
use anyhow::{Context, Result, ensure};
use glass_tests::folder::Folder;
use glass_tests::linux_guest::{Guest, Parts, Release, Settings};
use glass_tests::port::free_port;
use glass_tests::process::{Process, descendants};
use glass_tests::programs;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// VMs at a time.
const VMS: usize = 16;
/// Kernels of Linux VMs, and how many VMs there are of each.
const LINUX: [Release; 2] = [Release::Bookworm61, Release::Newest];
const LINUX_VMS: usize = 2;
/// What those do that compute.
const WORK: &str = "(while :; do :; done) >/dev/null &";
const WORK_LIMIT: Duration = Duration::from_secs(60);
/// The length of a recording, which is the agent's default.
const SEGMENT: Duration = Duration::from_secs(60);
const SEGMENT_SHORT: Duration = Duration::from_secs(3);
/// Windows of the length of the longest recordings, those of VMs that sleep: each has the end of one and the start of another.
const WINDOWS: usize = 2;
const SEGMENTS_PER_WINDOW: u32 = 5;
/// How long VMs boot, and the agent finds them, until the first window.
const BOOTED: Duration = Duration::from_secs(3);
const FOUND: Duration = Duration::from_secs(8);
/// The unit of times in `/proc/PID/stat`, the same on each machine (`USER_HZ`).
const TICKS_PER_SECOND: f64 = 100.0;

/// Measures VMs that sleep, and VMs that compute: of ours by KVM, and of Linux by TCG.
pub fn run(outcome: &mut Outcome, run: &Run) -> Result<()> {
    let segment = run.size(SEGMENT, SEGMENT_SHORT);
    let releases = run.size(&LINUX[..], &LINUX[..1]);
    let linux = releases.iter().map(|release| Parts::get(*release)).collect::<Result<Vec<Parts>>>();
    let linux = linux.unwrap_or_else(|reason| {
        outcome.note(format!("no Linux VMs: {reason:#}"));
        Vec::new()
    });
    for (name, image, work) in [("idle", "hello", None), ("busy", "busy", Some(WORK))] {
        let image = programs::image(image).filter(|_| programs::has_kvm());
        if image.is_none() {
            outcome.note(format!("no {name} VMs of ours: there is no KVM, or the image is not built"));
        }
        let ours = if image.is_some() { run.size(VMS, 2) } else { 0 };
        let parts: Vec<&Parts> =
            linux.iter().flat_map(|parts| std::iter::repeat_n(parts, run.size(LINUX_VMS, 1))).collect();
        if ours + parts.len() == 0 {
            outcome.skip("there is no KVM, and no Linux");
            return Ok(());
        }
        let count = ours + parts.len();
        let folder = Folder::new("bench-agent")?;
        let _linux = parts.iter().map(|parts| boot(parts, work)).collect::<Result<Vec<Guest>>>()?;
        let _ours = image.as_deref().map(|image| start(image, ours, &folder)).transpose()?;
        let windows = measure(&folder, count, segment, run)?;
        let figure = |what: &str, unit: &str, of: fn(&Window) -> f64| {
            Figure::of(&format!("agent.{what}"), unit, &windows.iter().map(of).collect::<Vec<f64>>())
        };
        outcome.add(figure(&format!("cpu_percent_{count}_{name}_vms"), "% of a core", |window| window.cpu_percent));
        outcome.add(figure(&format!("memory_mb_{count}_{name}_vms"), "MB", |window| window.memory_mb));
        outcome.add(figure(&format!("bytes_per_{name}_vm_minute"), "bytes", |window| window.bytes_per_minute));
        let own = image.as_deref().and_then(Path::file_stem);
        let pauses = pauses(&folder, segment, |name| Some(OsStr::new(name)) == own)?;
        for (accel, percent) in ["kvm", "tcg"].into_iter().zip(pauses) {
            outcome.add(Figure::of(&format!("agent.pause_percent_{name}_{accel}"), "%", &percent));
        }
    }
    outcome.note(format!(
        "VMs of our own VMM under KVM, {} of Linux by TCG; 19 Hz, recordings of {} s where that is within cpu_percent_max, up to 5 times as long of VMs that sleep; memory is what the agent and its recorders have in proportion to those who share it; pause_percent is the part of its time for which a vCPU was stopped, of each recording",
        run.size(LINUX_VMS * LINUX.len(), 1),
        segment.as_secs()
    ));
    Ok(())
}

/// VMs of an image, by our own VMM.
fn start(image: &Path, count: usize, folder: &Folder) -> Result<Vec<Process>> {
    let glass = programs::built("glass").context("glass is not built")?;
    let start = |index: usize| {
        let mut command = Command::new(&glass);
        command.arg("run").arg(image).args(["--vmm", "own"]);
        Process::spawn(&mut command, &folder.file(&format!("vm-{index}.log")))
    };
    let vms = (0..count).map(start).collect::<Result<Vec<Process>>>()?;
    std::thread::sleep(BOOTED);
    Ok(vms)
}

/// A Linux that waits for commands, or works.
fn boot(parts: &Parts, work: Option<&str>) -> Result<Guest> {
    let settings = Settings { vcpus: 1, memory_mib: 512, ..Settings::new(parts.kernel.release) };
    let mut guest = Guest::boot(parts, &settings)?;
    if let Some(work) = work {
        guest.expect(work, WORK_LIMIT)?;
    }
    Ok(guest)
}

/// The share of its time for which a vCPU was stopped, in percent, of each recording of `segment` that is kept: of VMs with names of ours, and of others. All have one vCPU.
fn pauses(folder: &Folder, segment: Duration, is_ours: impl Fn(&str) -> bool) -> Result<[Vec<f64>; 2]> {
    let glass = programs::built("glass").context("glass is not built")?;
    let mut all = [Vec::new(), Vec::new()];
    for vm in fs::read_dir(folder.file("kept").join("segments"))? {
        let vm = vm?;
        let of = &mut all[usize::from(!is_ours(&vm.file_name().to_string_lossy()))];
        for recording in fs::read_dir(vm.path())? {
            let output = Command::new(&glass).args(["info", "--json"]).arg(recording?.path()).output()?;
            let info: Value = serde_json::from_slice(&output.stdout).context("glass info prints no JSON")?;
            let duration = info["duration_ns"].as_f64().context("no duration")?;
            if duration >= segment.as_nanos() as f64 / 2.0 {
                of.push(info["cost"]["pause"]["sum_ns"].as_f64().context("no pauses")? / duration * 100.0);
            }
        }
    }
    Ok(all)
}

/// What was used in a window.
#[derive(Debug, Clone, Copy)]
struct Window {
    cpu_percent: f64,
    memory_mb: f64,
    /// Of the recordings of one VM.
    bytes_per_minute: f64,
}

/// Starts an agent on the host of VMs.
fn measure(folder: &Folder, vms: usize, segment: Duration, run: &Run) -> Result<Vec<Window>> {
    let glass = programs::built("glass").context("glass is not built")?;
    let kept = folder.file("kept");
    let mut command = Command::new(&glass);
    command.args(["agent", "--listen", &format!("127.0.0.1:{}", free_port()?)]);
    command.args(["--segment", &segment.as_secs().to_string(), "--folder"]).arg(&kept);
    let mut agent = Process::spawn(&mut command, &folder.file("agent.log"))?;
    std::thread::sleep(segment + run.size(FOUND, FOUND / 2));
    let mut windows = Vec::new();
    let window = segment * run.size(SEGMENTS_PER_WINDOW, 1);
    for _ in run.rounds(WINDOWS) {
        let (begin, cpu_before, bytes_before) = (Instant::now(), cpu_seconds(agent.pid()), bytes_in(&kept)?);
        std::thread::sleep(window);
        let seconds = begin.elapsed().as_secs_f64();
        let bytes = bytes_in(&kept)?.saturating_sub(bytes_before);
        windows.push(Window {
            cpu_percent: (cpu_seconds(agent.pid()) - cpu_before) / seconds * 100.0,
            memory_mb: tree(agent.pid()).into_iter().filter_map(memory_kib).sum::<u64>() as f64 * 1024.0 / 1e6,
            bytes_per_minute: bytes as f64 / vms as f64 / seconds * 60.0,
        });
        ensure!(agent.ended().is_none(), "the agent has ended: {}", agent.output());
    }
    Ok(windows)
}

/// A process and all below it.
fn tree(pid: u32) -> Vec<u32> {
    std::iter::once(pid).chain(descendants(pid)).collect()
}

/// The CPU time of a process, of all below it, and of those that have ended.
fn cpu_seconds(pid: u32) -> f64 {
    let ticks =
        |pid: u32| fs::read_to_string(format!("/proc/{pid}/stat")).ok().as_deref().and_then(ticks_of).unwrap_or(0);
    tree(pid).into_iter().map(ticks).sum::<u64>() as f64 / TICKS_PER_SECOND
}

/// User and system time of a process and of its children that were waited for, in a line of `/proc/PID/stat` (proc(5), fields 14 to 17).
fn ticks_of(stat: &str) -> Option<u64> {
    let words = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    Some(words.skip(11).take(4).filter_map(|word| word.parse::<u64>().ok()).sum())
}

/// The memory of a process in which that of others is counted in part.
fn memory_kib(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// The bytes of all files below a folder.
fn bytes_in(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder).context("the agent keeps nothing")? {
        let entry = entry?;
        // One that was renamed meanwhile is counted the next time.
        let Ok(metadata) = entry.metadata() else { continue };
        bytes += if metadata.is_dir() { bytes_in(&entry.path())? } else { metadata.len() };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_a_process_and_its_children() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194560 100 200 0 0 11 22 300 4000 20 0 1 0 5 6 7";
        assert_eq!(ticks_of(stat), Some(4333));
        assert_eq!(ticks_of("7"), None);
        assert!(memory_kib(std::process::id()).is_some_and(|kib| kib > 100));
    }
}
