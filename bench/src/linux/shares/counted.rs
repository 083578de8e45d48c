//! The shares of a kernel's functions: by samples, and by QEMU's plugin, which counts each block of instructions and the time in it.

use super::Recorder;
use super::sampled::{active, innermost};
use crate::figure::Figure;
use crate::outcome::Outcome;
use crate::run::Run;
use anyhow::{Result, ensure};
use glass_profiler_core::guest::Mode;
use glass_profiler_core::recording::Recording;
use glass_tests::folder::Folder;
use glass_tests::linux_guest::truth::Truth;
use glass_tests::linux_guest::{Guest, Parts, Release, Settings};
use glass_tests::oracle::comparison::{self, Comparison, Function};
use glass_tests::oracle::{Oracle, between, held};
use std::collections::HashMap;
use std::time::Duration;

/// The load, a program of the root.
const LOAD: &str = "kernel-mix >/dev/null 2>&1 &";
const PATIENCE: Duration = Duration::from_secs(60);
/// Code that runs for the first time is translated first, and that time is QEMU's.
const WARM: Duration = Duration::from_secs(3);
const RATE: &str = "997";
/// What there is beside the recording: the guest boots, and what the plugin wrote is read.
const BOOT: Duration = Duration::from_secs(60);
/// How long a recording is. The plugin has no room for more than some 150 s.
const SECONDS: std::ops::RangeInclusive<u64> = 10..=90;
/// All code of processes counts as one function.
const USER: &str = "";
/// Addresses of processes have at most so many bits, with page tables of five levels.
const USER_BITS: u32 = 56;
/// Functions that are compared.
const TOP: usize = 20;

/// Measures one guest with one vCPU, which is all that the plugin can count.
pub(super) fn measure(outcome: &mut Outcome, run: &Run) -> Result<()> {
    let release = Release::Bookworm61;
    let parts = match Parts::get(release) {
        Ok(parts) => parts,
        Err(reason) => {
            outcome.note(format!("no Linux {release}: {reason:#}"));
            return Ok(());
        }
    };
    let seconds = run.time_left().saturating_sub(BOOT).as_secs().clamp(*SECONDS.start(), *SECONDS.end());
    let folder = Folder::new("linux-counted")?;
    let mut oracle = Oracle::without_names(folder.path())?;
    let settings = Settings { vcpus: 1, options: oracle.merged_options(USER_BITS).into(), ..Settings::new(release) };
    let mut guest = Guest::boot(&parts, &settings)?;
    guest.expect(LOAD, PATIENCE)?;
    let truth = guest.collect()?;
    guest.resume()?;
    oracle.set_functions(functions(&truth));
    std::thread::sleep(WARM);
    let recorder = Recorder::start(&guest, seconds, &["--rate", RATE])?;
    let before = oracle.read()?;
    let (file, recording) = recorder.end()?;
    let after = oracle.read()?;
    let mut counted = between(&before, &after);
    for (function, ticks) in held::ticks(&oracle.slices()?, &held::intervals(&file)?) {
        let executed = counted.entry(function.to_owned()).or_default();
        executed.ticks = executed.ticks.saturating_sub(ticks);
    }
    let comparison = comparison::compare(&sampled(&recording), &counted)?;
    report(outcome, &comparison, seconds)
}

/// The functions of a kernel and of its modules. Of several names of an address the first is the one that the kernel shows.
fn functions(truth: &Truth) -> Vec<(u64, u64, String)> {
    let is_text = |kind: char| matches!(kind, 't' | 'T' | 'w' | 'W');
    let mut symbols: Vec<(u64, &str)> = truth
        .kallsyms
        .iter()
        .filter(|symbol| is_text(symbol.kind) && symbol.address >> USER_BITS != 0)
        .map(|symbol| (symbol.address, symbol.name.as_str()))
        .collect();
    symbols.sort_by_key(|(address, _)| *address);
    symbols.dedup_by_key(|(address, _)| *address);
    let ends = symbols.iter().skip(1).map(|(address, _)| *address).chain([u64::MAX]);
    symbols.iter().zip(ends).map(|((start, name), end)| (*start, end, (*name).to_owned())).collect()
}

fn sampled(recording: &Recording) -> HashMap<String, u64> {
    let mut counts = HashMap::new();
    for (mode, frame) in active(recording).filter_map(|sample| innermost(recording, sample)) {
        let name = if mode == Mode::User { USER } else { &frame.function };
        *counts.entry(name.to_owned()).or_default() += 1;
    }
    counts
}

fn report(outcome: &mut Outcome, comparison: &Comparison, seconds: u64) -> Result<()> {
    let top = &comparison.functions[..TOP.min(comparison.functions.len())];
    let difference = |function: &&Function| function.difference_points();
    let worst = top.iter().max_by(|a, b| difference(a).total_cmp(&difference(b)));
    ensure!(worst.is_some(), "no function ran");
    let figure = |what: &str, unit: &str, value: f64| Figure::of(&format!("linux.shares.{what}"), unit, &[value]);
    if let Some(worst) = worst {
        outcome.add(figure("oracle_points", "points", worst.difference_points()));
        outcome.add(figure("oracle_deviation_points", "points", worst.deviation_points(comparison.samples)));
    }
    outcome.add(figure("oracle_samples", "samples", comparison.samples as f64));
    outcome.note(format!(
        "shares of the {TOP} hottest functions of a kernel with one vCPU under load, of {} samples in {seconds} s and by QEMU's plugin: sampled, time, standard deviation by chance, instructions:",
        comparison.samples
    ));
    for function in top {
        let name = if function.name == USER { "all code of processes" } else { &function.name };
        outcome.note(format!(
            "  {:6.2} % {:6.2} % {:5.2} {:6.2} %  {name}",
            function.sampled_percent,
            function.time_percent,
            function.deviation_points(comparison.samples),
            function.instructions_percent,
        ));
    }
    Ok(())
}
