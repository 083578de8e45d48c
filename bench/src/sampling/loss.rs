//! How much of its speed a guest loses while it is sampled.

use super::guest::Guest;
use super::record::recorder;
use crate::figure::Figure;
use crate::outcome::Outcome;
use crate::statistics::{Summary, turn};
use anyhow::{Context, Result, bail};
use glass_tests::process::Process;
use glass_tests::programs;
use std::time::Duration;

/// Samples per second, in turn; at 0 nobody looks.
const RATES_HZ: [u32; 3] = [0, 100, 1000];
/// Windows for each rate.
const ROUNDS: usize = 9;
/// Length of a window.
const WINDOW: Duration = Duration::from_millis(1500);
/// From the start of the recorder until it samples, and from its end until all is as before.
const SETTLE: Duration = Duration::from_millis(400);

/// Measures by both backends, each on its own ground.
pub fn measure(outcome: &mut Outcome) -> Result<()> {
    for accel in ["kvm", "tcg"] {
        if accel == "kvm" && !programs::has_kvm() {
            continue;
        }
        let speeds = speeds(accel)?;
        let undisturbed = Summary::of(&speeds[0]).context("no window was measured")?.median;
        let backend = if accel == "kvm" { "kvm" } else { "gdbstub" };
        outcome.add(Figure::of(&format!("sampling.{backend}.undisturbed_rounds_s"), "rounds/s", &speeds[0]));
        for (rate, speeds) in RATES_HZ.into_iter().zip(&speeds).skip(1) {
            let losses: Vec<f64> = speeds.iter().map(|speed| (1.0 - speed / undisturbed) * 100.0).collect();
            outcome.add(Figure::of(&format!("sampling.{backend}.loss_percent_{rate}hz"), "%", &losses));
        }
    }
    outcome.note(format!(
        "loss: a VM that computes all the time on one of the host's cores, {ROUNDS} windows of {} ms for each rate in turn, against the median of the windows in which nobody looks",
        WINDOW.as_millis()
    ));
    Ok(())
}

/// Rounds per second in each window, by rate.
fn speeds(accel: &str) -> Result<[Vec<f64>; RATES_HZ.len()]> {
    let guest = Guest::start(accel)?;
    let mut speeds: [Vec<f64>; RATES_HZ.len()] = Default::default();
    for round in 0..ROUNDS {
        for index in turn(RATES_HZ.len(), round) {
            let rate = RATES_HZ[index];
            let mut recording = None;
            if rate > 0 {
                let seconds = (WINDOW + SETTLE * 2).as_secs_f64();
                let mut command = recorder(guest.pid(), rate, seconds, &guest.file("recording"))?;
                recording = Some(Process::spawn(&mut command, &guest.file("record.log"))?);
            }
            std::thread::sleep(SETTLE);
            let mark = guest.mark();
            std::thread::sleep(WINDOW);
            let speed = guest.speed_since(mark).context("the guest says nothing")?;
            speeds[index].push(speed);
            if let Some(mut recording) = recording {
                let status = recording.wait(Duration::from_secs(20)).context("glass record does not end")?;
                if !status.success() {
                    bail!("glass record: {}", recording.output());
                }
            }
            std::thread::sleep(SETTLE / 2);
        }
    }
    Ok(speeds)
}
