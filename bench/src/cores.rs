//! `cores`: what cores cost each other, beside two cores that do nothing but spin on flags, measured in the same run.

use crate::figure::Figure;
use crate::outcome::{Outcome, in_turn};
use crate::run::Run;
use crate::statistics::Summary;
use anyhow::{Context, Result, bail};
use glass_tests::programs;
use glass_tests::queue::World;
use serde_json::Value;
use std::process::Command;

/// Runs on each platform.
const ROUNDS: usize = 5;
/// Arguments of a short run. Where cores are shared, a round trip takes a time slice.
const SHORT: [&str; 4] = ["--rounds", "1", "--trips", "10"];

/// The figures: the name, its part in the program's output, nanoseconds in its unit, and the part that it is compared with.
const FIGURES: [(&str, &str, &str, f64, Option<&str>); 7] = [
    ("gs_ns", "gs", "ns", 1.0, Some("apic_id")),
    ("ping_pong_ns", "ping_pong", "ns", 1.0, Some("floor")),
    ("wake_asleep_us", "wake", "us", 1000.0, None),
    ("spawn_us", "spawn", "us", 1000.0, None),
    ("allocation_1_core_ns", "alloc_1", "ns", 1.0, None),
    ("allocation_2_cores_ns", "alloc_2", "ns", 1.0, Some("alloc_1")),
    ("release_elsewhere_ns", "alloc_away", "ns", 1.0, Some("alloc_1")),
];

/// Measures; platforms that this machine does not have are left out with a note.
pub fn run(outcome: &mut Outcome, run: &Run) -> Result<()> {
    let worlds = outcome.available([World::Process, World::Kvm, World::Tcg]);
    let size = run.size(&[][..], &SHORT[..]);
    let measure = |index: usize| measure(worlds[index], size).with_context(|| worlds[index].to_string());
    in_turn(outcome, worlds.len(), ROUNDS, run, measure, |outcome, results| add(outcome, &worlds, results))?;
    outcome.note(
        "two cores; cores.NAME is the VM under KVM; apic_id reads the number of the core from its local APIC; floor is a round trip of \
         two cores that only spin on flags; wake_asleep is from the send until a halted core (a process: a thread in epoll_wait) has the value"
            .to_owned(),
    );
    Ok(())
}

fn add(outcome: &mut Outcome, worlds: &[World], results: &[Vec<Value>]) {
    for (world, results) in worlds.iter().zip(results) {
        let samples = |part: &str| -> Vec<f64> {
            results.iter().filter_map(|result| result[format!("{part}_ns")].as_f64()).collect()
        };
        for (name, part, unit, divisor, peer) in FIGURES {
            // A process has no register of its own for the data of a core.
            if part == "gs" && *world == World::Process {
                continue;
            }
            let name = match world {
                World::Kvm => format!("cores.{name}"),
                _ => format!("cores.{world}.{name}"),
            };
            let values: Vec<f64> = samples(part).iter().map(|value| value / divisor).collect();
            let figure = Figure::of(&name, unit, &values);
            let peer = peer.and_then(|peer| Some((peer, Summary::of(&samples(peer))?.median / divisor)));
            outcome.add(figure.map(|figure| figure.beside(peer)));
        }
    }
}

/// Runs the service and returns its line.
fn measure(world: World, size: &[&str]) -> Result<Value> {
    let mut command = match world {
        World::Process => {
            let mut command = Command::new(programs::built("bench-cores").context("bench-cores is not built")?);
            command.args(["--cores", "2", "--"]);
            command
        }
        World::Kvm | World::Tcg => {
            let image = programs::image("bench-cores").context("the image of bench-cores is not built")?;
            let mut command = Command::new(programs::built("glass").context("glass is not built")?);
            command.arg("run").arg(image).args(["--accel", &world.to_string(), "--net", "none", "--cores", "2"]);
            command.args(["--", "--registers"]);
            command
        }
    };
    let output = command.args(size).output().context("cannot start it")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let Some(line) = text.lines().find(|line| line.starts_with('{')) else {
        bail!("no result: {text}{}", String::from_utf8_lossy(&output.stderr));
    };
    serde_json::from_str(line).with_context(|| format!("no JSON: {line}"))
}
