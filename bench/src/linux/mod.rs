//! `linux`: `glass record` of stock Linux guests of four kernels, of which it is given nothing but the pid of their QEMU; beside each what its
//! kernel reports of itself.
//!
//! It has no peer: nothing else samples the processes of a guest without its help. What is in RAM is compared with the guest's own lists, and a
//! sample with itself: code of a program that its process does not run shows a wrong thread.

mod equal;
mod off_cpu;
mod pause;
mod ram;
mod samples;
mod shares;

use crate::Part;
use crate::figure::Figure;
use crate::outcome::Outcome;
use crate::run::Run;
use anyhow::{Context, Result, ensure};
use glass_profiler_core::files::NoFiles;
use glass_profiler_core::linux::kernel::Kernel;
use glass_profiler_core::model::Profile;
use glass_profiler_core::program::NameSource;
use glass_profiler_core::recording;
use glass_tests::linux_guest::truth::Truth;
use glass_tests::linux_guest::{Guest, Parts, Release, Settings};
use glass_tests::process::Process;
use glass_tests::programs;
use glass_tests::qmp::{Events, Qmp};
use ram::Ram;
use samples::Seen;
use std::process::Command;
use std::time::{Duration, Instant};

/// How long a recording may be, and is at least. In a short run it is that of the least.
const SECONDS: std::ops::RangeInclusive<u64> = 5..=300;
/// Recordings of each guest: of programs that compute, and of programs that call the kernel.
const RECORDINGS: u32 = 2;
/// What a guest takes beside its recordings: it boots, starts programs and writes the truth down.
const BOOT: Duration = Duration::from_secs(40);
const RATE: &str = "99";
/// What a recording may take beside its length, on a loaded machine.
const AROUND: Duration = Duration::from_secs(120);
const DROP_CACHES: &str = "sync; echo 3 >/proc/sys/vm/drop_caches";
/// How often the kernel is searched for.
const SEARCHES: usize = 5;
/// Kinds of broken stacks that are shown.
const SHOWN: usize = 10;

/// The measurements.
pub const PARTS: [Part; 4] =
    [("guests", run), ("pause", pause::measure), ("shares", shares::run), ("off-cpu", off_cpu::run)];

/// Records a guest of each kernel.
fn run(outcome: &mut Outcome, run: &Run) -> Result<()> {
    if !programs::has_qemu() {
        outcome.skip("qemu-system-x86_64 is not installed");
        return Ok(());
    }
    let releases = run.size(&Release::ALL[..], &[Release::Bookworm61, Release::Newest]);
    let mut all = Seen::default();
    for (index, release) in releases.iter().enumerate() {
        run.done(index, releases.len());
        let seconds = seconds(run.part(index, releases.len()).time_left());
        match Parts::get(*release) {
            Ok(parts) => all.add(one(outcome, run, &parts, run.size(seconds, *SECONDS.start()))?),
            Err(reason) => {
                let reason = format!("{reason:#}");
                outcome.note(format!("no Linux {release}: {}", reason.lines().next().unwrap_or_default()));
            }
        }
        run.figures(outcome);
    }
    if outcome.figures.is_empty() {
        outcome.skip(outcome.notes.join("; "));
        return Ok(());
    }
    outcome.add(single("linux.samples", "samples", all.samples as f64));
    outcome.note(
        "what breaks stacks most, by their number; the innermost frame is the first, the last one is where it broke:",
    );
    all.most_broken(SHOWN).into_iter().for_each(|line| outcome.note(line));
    outcome.note(format!(
        "linux: `glass record --pid QEMU --rate {RATE}` of an emulated guest with two vCPUs that compute all the time; find_ms: the search in RAM while the guest runs, beside one pass over the same RAM; broken_percent: of the stacks of the kernel while processes call it in many ways; a user stack is whole if it ends where a thread starts; a longer measurement (--minutes) has more samples"
    ));
    Ok(())
}

/// The length of each recording of a guest that has this time.
fn seconds(time: Duration) -> u64 {
    (time.saturating_sub(BOOT) / RECORDINGS).as_secs().clamp(*SECONDS.start(), *SECONDS.end())
}

fn single(name: &str, unit: &str, value: f64) -> Option<Figure> {
    Figure::of(name, unit, &[value])
}

/// The name of a release in figures.
fn name(release: Release) -> &'static str {
    match release {
        Release::Bullseye510 => "5_10",
        Release::Bookworm61 => "6_1",
        Release::Trixie612 => "6_12",
        Release::Newest => "newest",
        Release::BookwormArm61 => "6_1_aarch64",
    }
}

/// Measures with the guest of one release.
fn one(outcome: &mut Outcome, run: &Run, parts: &Parts, seconds: u64) -> Result<Seen> {
    let release = parts.kernel.release;
    let mut guest = Guest::boot(parts, &Settings::new(release))?;
    guest.start_programs()?;
    let figure = |what: &str, unit: &str, value: f64| single(&format!("linux.{}.{what}", name(release)), unit, value);
    let ram = Ram::of(guest.pid())?;
    let found = find(outcome, run, release, &ram)?;
    // The guest has no more of its files in memory than it needs.
    guest.expect(DROP_CACHES, AROUND)?;
    let recording = record(outcome, seconds, &guest, &figure)?;
    let truth = guest.collect()?;
    let equal = equal::compare(&ram, &found, &truth)?;
    for (what, (equal, all), differences) in equal.counts() {
        outcome.add(figure(&format!("{what}_equal_percent"), "%", percent(equal, all)));
        differences.iter().for_each(|line| outcome.note(format!("  {release}, {what}: {line}")));
    }
    let seen = Seen::of(release, &recording, &truth);
    let samples = [
        ("user_stacks_whole_percent", percent(seen.whole, seen.with_user)),
        ("user_frames_named_percent", named(&recording.profile)),
        ("nameless_user_percent", percent(seen.nameless, seen.with_user)),
        ("thread_known_percent", percent(seen.with_thread, seen.samples)),
        ("thread_right_percent", percent(seen.right, seen.decided)),
    ];
    samples.into_iter().for_each(|(what, value)| outcome.add(figure(what, "%", value)));
    let cost = &recording.profile.cost;
    outcome.add(figure("pause_us", "us", cost.pause.median_ns as f64 / 1e3));
    outcome.add(figure("lost_percent", "%", percent(cost.samples_lost as usize, cost.samples_wanted as usize)));
    outcome.add(figure("samples", "samples", seen.samples as f64));
    outcome.note(format!("{}: {}", parts.kernel.version, seen.summary()));
    let sources: Vec<_> = recording.profile.named.iter().map(|(text, frames)| format!("{frames} {text}")).collect();
    outcome.note(format!("{}: frames of programs: {}", parts.kernel.version, sources.join(", ")));
    seen.programs().into_iter().chain(seen.wrong()).for_each(|line| outcome.note(format!("  {line}")));
    recording.profile.warnings.iter().for_each(|warning| outcome.note(format!("  {release}, warning: {warning}")));
    let calls = calls(outcome, seconds, (release, &mut guest), &truth)?;
    outcome.add(figure("broken_percent", "%", percent(calls.broken_kernel, calls.with_kernel)));
    outcome.add(figure("kernel_stacks", "stacks", calls.with_kernel as f64));
    Ok(seen)
}

/// Records the guest while processes call the kernel in all ways. Of a guest that computes, there are too few stacks of the kernel to judge them.
fn calls(outcome: &mut Outcome, seconds: u64, (release, guest): (Release, &mut Guest), truth: &Truth) -> Result<Seen> {
    guest.resume()?;
    guest.start_calls()?;
    let recording = record(outcome, seconds, guest, &|_, _, _| None)?;
    let seen = Seen::of(release, &recording, truth).of_kernel();
    outcome.note(format!(
        "{release} with processes that call the kernel: {} samples, {} with a kernel stack, {} of them broken:",
        seen.samples, seen.with_kernel, seen.broken_kernel
    ));
    seen.most_broken(SHOWN).into_iter().for_each(|line| outcome.note(line));
    Ok(seen)
}

fn percent(part: usize, all: usize) -> f64 {
    if all == 0 { 100.0 } else { part as f64 / all as f64 * 100.0 }
}

/// Searches for the kernel while the guest runs.
fn find(outcome: &mut Outcome, run: &Run, release: Release, ram: &Ram) -> Result<Kernel> {
    let (mut times, mut floors, mut found) = (Vec::new(), Vec::new(), None);
    for _ in 0..run.size(SEARCHES, 1) {
        let start = Instant::now();
        ensure!(ram.pass() > 0, "the RAM of the guest is empty");
        floors.push(start.elapsed().as_secs_f64() * 1e3);
        let start = Instant::now();
        found = Kernel::find(ram, &ram.ranges());
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    let floor = Figure::of("", "ms", &floors).map_or(0.0, |figure| figure.value);
    let figure = Figure::of(&format!("linux.{}.find_ms", name(release)), "ms", &times);
    outcome.add(figure.map(|figure| figure.against("one pass over the RAM", floor)));
    found.context("there is no kernel in the RAM of the guest")
}

/// The share of frames of the guest's programs that have names, in percent.
fn named(profile: &Profile) -> f64 {
    let sum = |of: &dyn Fn(&str) -> bool| {
        profile.named.iter().filter(|(text, _)| of(text)).map(|(_, frames)| *frames).sum::<u64>()
    };
    let (all, without) = (sum(&|_| true), sum(&|text| text == NameSource::Nothing.text()));
    percent((all - without) as usize, all as usize)
}

/// Records as a user does, and counts how often the guest was stopped for other things than samples.
fn record(
    outcome: &mut Outcome,
    seconds: u64,
    guest: &Guest,
    figure: &dyn Fn(&str, &str, f64) -> Option<Figure>,
) -> Result<recording::Recording> {
    let file = guest.folder().file("bench.glass");
    let events = Events::collect(&guest.folder().file("lab-qmp"))?;
    let mut command = Command::new(programs::built("glass").context("glass is not built")?);
    command.args(["record", "--pid", &guest.pid().to_string(), "--rate", RATE]);
    command.args(["--duration", &seconds.to_string(), "--output"]).arg(&file);
    let mut process = Process::spawn(&mut command, &guest.folder().file("record.log"))?;
    let status = process.wait(Duration::from_secs(seconds) + AROUND);
    let status = status.with_context(|| format!("glass record does not end: {}", process.output()))?;
    ensure!(status.success(), "glass record: {}", process.output());
    let stops: Vec<u64> = events.end()?.iter().filter(|moment| !moment.resumes).map(|moment| moment.unix_ns).collect();
    let recording = recording::open(&std::fs::read(&file)?, &mut NoFiles)?;
    ensure!(!recording.profile.samples.is_empty(), "glass record took no sample: {}", process.output());
    let for_samples = samples::stops(&recording.profile);
    let sampled_ns = recording.profile.origin.start_unix_ns;
    let attach = stops.iter().filter(|time| **time < sampled_ns).count();
    outcome.add(figure("attach_stops", "stops", attach as f64));
    let others = (stops.len() - attach).saturating_sub(for_samples);
    outcome.add(figure("stops_without_sample", "stops", others as f64));
    let all = stops.len();
    outcome.note(format!(
        "the guest was stopped {all} times: {attach} to attach, {for_samples} for samples that were kept"
    ));
    // The monitor is free again.
    Qmp::connect(&guest.folder().file("lab-qmp"))?;
    Ok(recording)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_fit_into_the_time() {
        assert_eq!(seconds(Duration::from_secs(150)), 55);
        assert_eq!((seconds(Duration::ZERO), seconds(Duration::from_secs(100_000))), (5, 300));
    }
}
