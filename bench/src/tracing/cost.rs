//! Nanoseconds for an event: off, on, and for reading the clock, which every event does; then a traced call.

use super::throughput::{trace, trace_log};
use crate::figure::Figure;
use crate::outcome::Outcome;
use crate::run::Run;
use crate::statistics::{Summary, turn};
use anyhow::{Context, Result, bail};
use glass_tests::folder::Folder;
use glass_tests::process::Process;
use glass_tests::programs::{self, Variant};
use glass_tests::queue::World;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Runs of the program that times events; each has its own rounds.
const RUNS: usize = 7;
/// Windows in which calls are timed, for each kind.
const WINDOWS: usize = 7;
/// Length of a window: at least some tens of the program's lines.
const WINDOW: Duration = Duration::from_millis(300);
/// A run that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);
/// Name of the tiny function that is timed.
const TIMED: &str = "tiny";

/// Adds the figures.
pub fn measure(outcome: &mut Outcome, run: &Run) -> Result<()> {
    let folder = Folder::new("bench-tracing-cost")?;
    for (index, world) in [World::Process, World::Kvm].into_iter().enumerate() {
        if let Some(reason) = world.obstacle() {
            outcome.note(format!("cost of an event ({world}) left out: {reason}"));
            continue;
        }
        events(outcome, world, &folder, &run.part(index, 3))?;
    }
    calls(outcome, &folder, &run.part(2, 3))?;
    outcome.note(format!(
        "an event reads the clock (`rdtsc`), which is the lower bound; {RUNS} runs of trace-cost, whose numbers are medians of rounds in turn"
    ));
    Ok(())
}

/// Off, on and floor as the program itself times them.
fn events(outcome: &mut Outcome, world: World, folder: &Folder, run: &Run) -> Result<()> {
    let mut samples: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for _ in run.rounds(RUNS) {
        let output = run_to_end(&mut command("trace-cost", world, &[])?, &folder.file("cost.log"))?;
        for line in output.lines() {
            if let Some((name, Ok(ns))) = line.trim().split_once(' ').map(|(name, ns)| (name, ns.parse::<f64>())) {
                samples.entry(name.to_owned()).or_default().push(ns);
            }
        }
    }
    let prefix = if world == World::Process { "tracing".to_owned() } else { format!("tracing.{world}") };
    let floor = samples.get("floor").and_then(|samples| Summary::of(samples)).context("trace-cost prints nothing")?;
    for (name, figure) in [
        ("floor", "floor_ns"),
        ("off", "event_off_ns"),
        ("on", "event_on_ns"),
        ("span-off", "span_off_ns"),
        ("span-on", "span_on_ns"),
    ] {
        let samples = samples.get(name).with_context(|| format!("trace-cost does not print {name:?}"))?;
        let figure = Figure::of(&format!("{prefix}.{figure}"), "ns", samples);
        outcome.add(if name.ends_with("on") {
            figure.map(|figure| figure.against("rdtsc", floor.median))
        } else {
            figure
        });
    }
    run.figures(outcome);
    Ok(())
}

fn command(app: &str, world: World, service: &[&str]) -> Result<Command> {
    let mut command = if world == World::Process {
        Command::new(programs::built(app).with_context(|| format!("{app} is not built"))?)
    } else {
        let mut command = Command::new(programs::built("glass").context("glass is not built")?);
        let image = programs::image(app).with_context(|| format!("the image of {app} is not built"))?;
        command.arg("run").arg(image).args(["--accel", &world.to_string(), "--net", "none"]);
        command
    };
    command.arg("--").args(service);
    Ok(command)
}

fn run_to_end(command: &mut Command, log: &Path) -> Result<String> {
    let mut process = Process::spawn(command, log)?;
    let status = process.wait(PATIENCE).with_context(|| format!("it does not end:\n{}", process.output()))?;
    if !status.success() {
        bail!("{status}:\n{}", process.output());
    }
    Ok(process.output())
}

/// A call of a small function: without sleds, with sleds that are off, and traced.
fn calls(outcome: &mut Outcome, folder: &Folder, run: &Run) -> Result<()> {
    let start = |variant, name: &str| -> Result<Process> {
        let program = programs::variant("busy", variant, false).context("busy is not built")?;
        Process::spawn(Command::new(program).args(["--", "--calls"]), &folder.file(name))
    };
    let (plain, sleds) = (start(Variant::Usual, "plain.log")?, start(Variant::Functions, "sleds.log")?);
    let mut samples: [Vec<f64>; 3] = Default::default();
    for round in run.rounds(WINDOWS) {
        for index in turn(samples.len(), round) {
            let mut tracer = None;
            if index == 2 {
                let arguments = ["--groups", "functions", "--functions", TIMED];
                tracer = Some(trace(sleds.pid(), &arguments, folder)?);
            }
            let process = if index == 0 { &plain } else { &sleds };
            samples[index].push(median_of_window(process)?);
            if let Some(mut tracer) = tracer
                && !tracer.interrupt(PATIENCE)
            {
                bail!("glass trace: {}", trace_log(&tracer));
            }
        }
    }
    let median = |samples: &[f64]| Summary::of(samples).map_or(0.0, |summary| summary.median);
    outcome.add(Figure::of("tracing.call_ns", "ns", &samples[0]));
    let sleds_off = Figure::of("tracing.call_sleds_off_ns", "ns", &samples[1]);
    outcome.add(sleds_off.map(|figure| figure.against("no sleds", median(&samples[0]))));
    let traced = Figure::of("tracing.call_traced_ns", "ns", &samples[2]);
    outcome.add(traced.map(|figure| figure.against("no sleds", median(&samples[0]))));
    // A call is two events: entry and exit.
    let untraced = median(&samples[1]);
    let events: Vec<f64> = samples[2].iter().map(|traced| (traced - untraced) / 2.0).collect();
    outcome.add(Figure::of("tracing.function_event_ns", "ns", &events));
    Ok(())
}

/// Median of the program's values within a window: `function 1.23`.
fn median_of_window(process: &Process) -> Result<f64> {
    let numbers = || -> Vec<f64> {
        let output = process.output();
        output.lines().filter_map(|line| line.trim().strip_prefix("function ")?.parse().ok()).collect()
    };
    let (mark, deadline) = (numbers().len(), Instant::now() + PATIENCE);
    std::thread::sleep(WINDOW);
    loop {
        let all = numbers();
        // The first may have started before the window.
        let window = all.get(mark + 1..).unwrap_or_default();
        if window.len() >= 5 {
            return Summary::of(window).map(|summary| summary.median).context("no number");
        }
        if Instant::now() > deadline {
            bail!("busy --calls prints nothing:\n{}", process.output());
        }
        std::thread::sleep(WINDOW);
    }
}
