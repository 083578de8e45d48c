//! How much of its speed a guest loses while it is sampled.

use super::guest::Guest;
use super::record::recorder;
use crate::figure::Figure;
use crate::outcome::{Outcome, Progress, in_turn};
use crate::statistics::Summary;
use anyhow::{Context, Result, bail};
use glass_tests::process::Process;
use glass_tests::programs;
use std::process::Command;
use std::time::Duration;

/// The samplers of the guest, in turn.
#[derive(Clone, Copy)]
enum Look {
    Nobody,
    /// `glass record` with so many samples per second.
    Record(u32),
    /// So many stops per second, at the moments of samples, in which nothing is read: the cost of any backend that stops the guest.
    Stops(u32),
}

const LOOKS: [Look; 4] = [Look::Nobody, Look::Record(100), Look::Record(1000), Look::Stops(1000)];
/// Windows for each.
const ROUNDS: usize = 9;
/// Length of a window.
const WINDOW: Duration = Duration::from_millis(1500);
/// From the start of the recorder until it samples, and from its end until the guest runs undisturbed.
const SETTLE: Duration = Duration::from_millis(400);

/// Measures both backends, each with its accelerator.
pub fn measure(outcome: &mut Outcome, progress: Progress) -> Result<()> {
    for (index, accel) in ["kvm", "tcg"].into_iter().enumerate() {
        if accel == "kvm" && !programs::has_kvm() {
            continue;
        }
        // A plain stop is one of a vCPU under KVM.
        let (backend, looks) = if accel == "kvm" { ("kvm", &LOOKS[..]) } else { ("gdbstub", &LOOKS[..3]) };
        let speeds = speeds(accel, looks, &|done, total| progress(index as u64 * total + done, 2 * total))?;
        let undisturbed = Summary::of(&speeds[0]).context("no window was measured")?.median;
        outcome.add(Figure::of(&format!("sampling.{backend}.undisturbed_rounds_s"), "rounds/s", &speeds[0]));
        for (look, speeds) in looks.iter().zip(&speeds) {
            let losses: Vec<f64> = speeds.iter().map(|speed| (1.0 - speed / undisturbed) * 100.0).collect();
            let name = match look {
                Look::Nobody => continue,
                Look::Record(rate) => format!("sampling.{backend}.loss_percent_{rate}hz"),
                Look::Stops(rate) => format!("floor.stop_loss_percent_{rate}hz"),
            };
            outcome.add(Figure::of(&name, "%", &losses));
        }
    }
    outcome.note(format!(
        "loss: a VM that computes all the time on one of the host's cores, {ROUNDS} windows of {} ms for each rate in turn, against the median of the windows without a sampler; the lower bound is stops of the vCPU at the same moments, in which nothing is read",
        WINDOW.as_millis()
    ));
    Ok(())
}

/// Rounds per second in each window, by sampler.
fn speeds(accel: &str, looks: &[Look], progress: Progress) -> Result<Vec<Vec<f64>>> {
    let guest = Guest::start(accel)?;
    in_turn(looks.len(), ROUNDS, progress, |index| {
        let mut looking = start(looks[index], &guest)?;
        std::thread::sleep(SETTLE);
        let mark = guest.mark();
        std::thread::sleep(WINDOW);
        let speed = guest.speed_since(mark).context("the guest prints nothing")?;
        if let Some(looking) = &mut looking {
            let status = looking.wait(Duration::from_secs(20)).context("the sampler does not end")?;
            if !status.success() {
                bail!("the sampler failed: {}", looking.output());
            }
        }
        std::thread::sleep(SETTLE / 2);
        Ok(speed)
    })
}

/// Starts a sampler, for a window and the time around it.
fn start(look: Look, guest: &Guest) -> Result<Option<Process>> {
    let time = WINDOW + SETTLE * 2;
    let mut command = match look {
        Look::Nobody => return Ok(None),
        Look::Record(rate) => recorder(guest.pid(), rate, time.as_secs_f64(), &guest.file("recording"))?,
        Look::Stops(rate) => {
            let mut command = Command::new(programs::built("examples/pauses").context("`pauses` is not built")?);
            let count = (time.as_secs_f64() * f64::from(rate)) as u64;
            command.args(["stops", &guest.pid().to_string(), &count.to_string(), &rate.to_string()]);
            command
        }
    };
    Ok(Some(Process::spawn(&mut command, &guest.file("look.log"))?))
}
