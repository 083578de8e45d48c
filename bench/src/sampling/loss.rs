//! How much of its speed a guest loses while it is sampled.

use super::guest::Guest;
use super::record::recorder;
use crate::figure::Figure;
use crate::outcome::{Outcome, in_turn};
use crate::run::Run;
use crate::statistics::Summary;
use anyhow::{Context, Result, bail};
use glass_tests::process::Process;
use glass_tests::programs;
use glass_tests::queue::World;
use std::process::Command;
use std::time::Duration;

/// The samplers of the guest, in turn.
#[derive(Clone, Copy)]
enum Sampler {
    Unheld,
    /// `glass record` with so many samples per second.
    Record(u32),
    /// So many stops per second, at the moments of samples, in which nothing is read: the cost of any backend that stops the guest.
    Stops(u32),
}

const SAMPLERS: [Sampler; 4] = [Sampler::Unheld, Sampler::Record(100), Sampler::Record(1000), Sampler::Stops(1000)];
/// Windows for each.
const ROUNDS: usize = 9;
/// Length of a window.
const WINDOW: Duration = Duration::from_millis(1500);
/// Long enough for some lines of the guest.
const WINDOW_SHORT: Duration = Duration::from_millis(500);
/// From the start of the recorder until it samples, and from its end until the guest runs undisturbed.
const SETTLE: Duration = Duration::from_millis(400);
/// How long a sampler may take after its window, on a machine that tests fill.
const PATIENCE: Duration = Duration::from_secs(60);

/// Measures both backends, each with its accelerator.
pub fn measure(outcome: &mut Outcome, run: &Run) -> Result<()> {
    let worlds = outcome.available([World::Kvm, World::Tcg]);
    for (index, world) in worlds.iter().enumerate() {
        // A plain stop is one of a vCPU under KVM.
        let (backend, samplers) =
            if *world == World::Kvm { ("kvm", &SAMPLERS[..]) } else { ("gdbstub", &SAMPLERS[..3]) };
        let guest = Guest::start(&world.to_string())?;
        let run = run.part(index, worlds.len());
        let window = run.size(WINDOW, WINDOW_SHORT);
        let add = |outcome: &mut Outcome, speeds: &[Vec<f64>]| add(outcome, backend, samplers, speeds);
        in_turn(outcome, samplers.len(), ROUNDS, &run, |index| speed(&guest, samplers[index], window), add)?;
    }
    outcome.note(format!(
        "loss: a VM that computes all the time on one of the host's cores, {ROUNDS} windows of {} ms for each rate in turn, against the median of the windows without a sampler; the lower bound is stops of the vCPU at the same moments, in which nothing is read",
        WINDOW.as_millis()
    ));
    Ok(())
}

/// Figures of one guest; `speeds` are rounds per second in each window, by sampler.
fn add(outcome: &mut Outcome, backend: &str, samplers: &[Sampler], speeds: &[Vec<f64>]) {
    let Some(undisturbed) = Summary::of(&speeds[0]).map(|summary| summary.median) else { return };
    outcome.add(Figure::of(&format!("sampling.{backend}.undisturbed_rounds_s"), "rounds/s", &speeds[0]));
    for (sampler, speeds) in samplers.iter().zip(speeds) {
        let losses: Vec<f64> = speeds.iter().map(|speed| (1.0 - speed / undisturbed) * 100.0).collect();
        let name = match sampler {
            Sampler::Unheld => continue,
            Sampler::Record(rate) => format!("sampling.{backend}.loss_percent_{rate}hz"),
            Sampler::Stops(rate) => format!("floor.stop_loss_percent_{rate}hz"),
        };
        outcome.add(Figure::of(&name, "%", &losses));
    }
}

/// Rounds per second of the guest in a window.
fn speed(guest: &Guest, sampler: Sampler, window: Duration) -> Result<f64> {
    let mut sampling = start(sampler, guest, window)?;
    std::thread::sleep(SETTLE);
    let mark = guest.mark();
    std::thread::sleep(window);
    let speed = guest.speed_since(mark).context("the guest prints nothing")?;
    if let Some(sampling) = &mut sampling {
        let Some(status) = sampling.wait(PATIENCE) else {
            bail!("the sampler does not end in {} s; it printed: {}", PATIENCE.as_secs(), sampling.output());
        };
        if !status.success() {
            bail!("the sampler failed: {}", sampling.output());
        }
    }
    std::thread::sleep(SETTLE / 2);
    Ok(speed)
}

/// Starts a sampler, for a window and the time around it.
fn start(sampler: Sampler, guest: &Guest, window: Duration) -> Result<Option<Process>> {
    let time = window + SETTLE * 2;
    let mut command = match sampler {
        Sampler::Unheld => return Ok(None),
        Sampler::Record(rate) => recorder(guest.pid(), rate, time.as_secs_f64(), &guest.file("recording"))?,
        Sampler::Stops(rate) => {
            let mut command = Command::new(programs::built("examples/pauses").context("`pauses` is not built")?);
            let count = (time.as_secs_f64() * f64::from(rate)) as u64;
            command.args(["stops", &guest.pid().to_string(), &count.to_string(), &rate.to_string()]);
            command
        }
    };
    Ok(Some(Process::spawn(&mut command, &guest.file("look.log"))?))
}
