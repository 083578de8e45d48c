//! `xen traces`: the pause of a domain for one stack trace, beside the hypercalls of uniprof and beside xenctx.

use super::is_skipped;
use crate::figure::Figure;
use crate::outcome::Outcome;
use crate::run::Run;
use crate::statistics::Summary;
use anyhow::{Context, Result, bail};
use glass_tests::folder::Folder;
use glass_tests::programs;
use glass_tests::xen::guests::{self, Guest, judge};
use glass_tests::xen::{SHARED, World};
use std::process::Command;
use std::time::Duration;

/// Traces by each way, and how many of them begin in a second where each comes after a rest.
const SAMPLES: usize = 1000;
const RATE_HZ: u32 = 250;
/// Traces that are made one after the other without a rest.
const ROW: usize = 20;
/// Parts into which the traces of each guest are divided, so that all see the same noise.
const TURNS: usize = 3;
/// Runs of xenctx in a turn; one makes one trace.
const XENCTX_RUNS: usize = 10;
/// Samples that are looked through for torn stacks, of each guest.
const JUDGED: u64 = 10_000;
/// The rate that `glass record` has without another one.
const USUAL_RATE_HZ: f64 = 199.0;
const LIMIT: Duration = Duration::from_secs(300);

const GUESTS: [(&str, Guest); 3] = [("pv", guests::PV), ("pvh", guests::PVH_4K), ("pvh_2m", guests::PVH_2M)];

/// Microseconds, by who has looked.
#[derive(Default)]
struct Times {
    ours: Vec<f64>,
    cpu: Vec<f64>,
    uniprof: Vec<f64>,
    null: Vec<f64>,
}

/// Measures guest after guest, each alone with dom0.
pub fn run(outcome: &mut Outcome, run: &Run) -> Result<()> {
    if is_skipped(outcome, run) {
        return Ok(());
    }
    let mut world = World::boot()?;
    for file in ["glass", "examples/xen_looks"] {
        world.bring(&programs::built_static(file, true).with_context(|| format!("{file} is not built for dom0"))?)?;
    }
    world.expect(&format!("cp {SHARED}/glass {SHARED}/xen_looks /usr/bin/"), LIMIT)?;
    let (mut torn, mut judged) = (0, 0);
    for (index, (name, guest)) in GUESTS.iter().enumerate() {
        world.start(guest)?;
        let (mut in_a_row, mut rested, mut by_xenctx) = (Times::default(), Times::default(), Vec::new());
        for turn in 0..TURNS {
            measure(&mut world, guest, ROW, &mut in_a_row)?;
            measure(&mut world, guest, 0, &mut rested)?;
            xenctx(&mut world, guest, &mut by_xenctx)?;
            run.done(index * (TURNS + 1) + turn + 1, GUESTS.len() * (TURNS + 1));
        }
        add(outcome, name, "", &in_a_row);
        outcome.add(beside(&format!("xen.{name}.trace_us"), &in_a_row.ours, "xenctx", &by_xenctx));
        outcome.add(Figure::of(&format!("xen.{name}.xenctx_us"), "us", &by_xenctx));
        add(outcome, name, "rested_", &rested);
        let cpu = median(&rested.cpu);
        outcome.add(Figure::of(&format!("xen.{name}.cpu_us"), "us", &rested.cpu));
        let share = cpu * USUAL_RATE_HZ / 1e4;
        outcome.note(format!(
            "{name}: at {USUAL_RATE_HZ} samples a second the profiler takes {share:.1} % of dom0's CPU to look"
        ));
        let (of_guest, samples) = torn_stacks(&mut world, guest)?;
        torn += of_guest;
        judged += samples;
        run.done((index + 1) * (TURNS + 1), GUESTS.len() * (TURNS + 1));
        run.figures(outcome);
        world.destroy(guest.name)?;
    }
    outcome.add(Figure::of("xen.torn_stacks", "stacks", &[torn as f64]));
    outcome.note(format!("torn: {torn} of {judged} stacks of guests whose call chains show it"));
    outcome.note(format!(
        "rested_: each at {RATE_HZ} a second, as a recording makes them; the others: {ROW} of a kind without a rest"
    ));
    outcome.note("trace_us: pause, registers, the stack up to the end of its chain of frame pointers (24 KiB at most), end of the pause; uniprof_sequence: pause, registers, end of the pause as three hypercalls, nothing of the stack; xenctx: a process for each trace (-f -S), less the time of one that only prints its help");
    outcome.note("uniprof's own figures are 12 us for a trace on its authors' hardware, and 3 ms for xenctx (2017)");
    world.power_off()
}

fn median(samples: &[f64]) -> f64 {
    Summary::of(samples).map_or(0.0, |summary| summary.median)
}

/// A figure of times, against those of a peer.
fn beside(figure: &str, samples: &[f64], peer: &str, of_peer: &[f64]) -> Option<Figure> {
    Some(Figure::of(figure, "us", samples)?.against(peer, median(of_peer)))
}

fn add(outcome: &mut Outcome, guest: &str, how: &str, times: &Times) {
    let name = |what: &str| format!("xen.{guest}.{how}{what}_us");
    outcome.add(beside(&name("trace"), &times.ours, "uniprof_sequence", &times.uniprof));
    outcome.add(beside(&name("uniprof_sequence"), &times.uniprof, "null_hypercall", &times.null));
    outcome.add(Figure::of(&name("null_hypercall"), "us", &times.null));
}

/// One turn of ours, of uniprof's hypercalls and of one that does nothing.
fn measure(world: &mut World, guest: &Guest, row: usize, times: &mut Times) -> Result<()> {
    let name = guest.name;
    let samples = SAMPLES / TURNS;
    let text = world.expect(&format!("xen_looks {name} {SHARED}/{name}.elf {samples} {RATE_HZ} {row}"), LIMIT)?;
    for line in text.lines() {
        let (what, value) = line.split_once(' ').with_context(|| format!("xen_looks printed {line:?}"))?;
        let value = value.parse()?;
        match what {
            "sample" => times.ours.push(value),
            "uniprof" => times.uniprof.push(value),
            "null" => times.null.push(value),
            "cpu" => times.cpu.push(value),
            _ => bail!("xen_looks printed {line:?}"),
        }
    }
    Ok(())
}

/// One turn of xenctx: the mean of some runs, since the shell's clock has steps of 10 ms.
fn xenctx(world: &mut World, guest: &Guest, times: &mut Vec<f64>) -> Result<()> {
    let script = format!(
        "id=$(xl domid {})
        now() {{ cut -d' ' -f1 /proc/uptime; }}
        echo $(now); for run in $(seq {XENCTX_RUNS}); do xenctx -f -S $id >/tmp/xenctx; done
        echo $(now); for run in $(seq {XENCTX_RUNS}); do xenctx -h >/dev/null 2>&1; done
        echo $(now); grep -q . /tmp/xenctx",
        guest.name
    );
    let text = world.expect(&script, LIMIT)?;
    let moments: Vec<f64> = text.lines().filter_map(|line| line.trim().parse().ok()).collect();
    let [start, traced, helped] = moments[..] else { bail!("xenctx printed {text}") };
    times.push(((traced - start) - (helped - traced)) * 1e6 / XENCTX_RUNS as f64);
    Ok(())
}

/// How many stacks of a recording are torn, and how many there are.
fn torn_stacks(world: &mut World, guest: &Guest) -> Result<(u64, u64)> {
    let glass = programs::built("glass").context("glass is not built")?;
    let folder = Folder::new("bench-xen")?;
    let name = guest.name;
    let record =
        format!("glass record --domain {name} --symbols {SHARED}/{name}.elf --rate 1000 --output /tmp/torn.pftrace");
    let seconds = JUDGED / 500;
    world.expect(&format!("{record} --duration {seconds} && mv /tmp/torn.pftrace {SHARED}/"), LIMIT)?;
    let recording = folder.file("torn.pftrace");
    std::fs::rename(world.folder().join("torn.pftrace"), &recording)?;
    let output =
        Command::new(glass).arg("export").arg(&recording).args(["--format", "folded", "--output", "-"]).output()?;
    if !output.status.success() {
        bail!("glass export: {}", String::from_utf8_lossy(&output.stderr));
    }
    let judged = judge(&String::from_utf8_lossy(&output.stdout));
    Ok((judged.torn + judged.broken, judged.samples))
}
