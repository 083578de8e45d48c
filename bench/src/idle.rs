//! `idle`: the cost of an idle VM: CPU time of QEMU, all threads, as accounted by the kernel.

use crate::figure::Figure;
use crate::outcome::Outcome;
use crate::run::Run;
use crate::transfer;
use anyhow::{Context, Result};
use glass_tests::folder::Folder;
use glass_tests::process::cpu_time;
use glass_tests::queue::{Queue, WORLDS};
use std::time::{Duration, Instant};

/// Length of a window.
const WINDOW: Duration = Duration::from_secs(2);
const WINDOW_SHORT: Duration = Duration::from_millis(200);
/// Number of windows.
const ROUNDS: usize = 10;
/// Time after the start in which the service may still be setting itself up.
const SETTLE: Duration = Duration::from_secs(2);

/// Measures each platform of this machine, all idle at the same time.
pub fn run(outcome: &mut Outcome, run: &Run) -> Result<()> {
    let folder = Folder::new("bench-idle")?;
    let mut queues: Vec<(String, Queue, Vec<f64>)> = Vec::new();
    for world in outcome.available(WORLDS) {
        queues.push((world.to_string(), transfer::start(world, &folder)?, Vec::new()));
    }
    std::thread::sleep(run.size(SETTLE, WINDOW_SHORT));
    for _ in run.rounds(ROUNDS) {
        let before: Vec<(Instant, Duration)> = queues.iter().map(|(_, queue, _)| used(queue)).collect::<Result<_>>()?;
        std::thread::sleep(run.size(WINDOW, WINDOW_SHORT));
        for ((_, queue, samples), (begin, used_before)) in queues.iter_mut().zip(before) {
            let (end, used_after) = used(queue)?;
            let share = (used_after.saturating_sub(used_before)).as_secs_f64() / (end - begin).as_secs_f64();
            samples.push(share * 100.0);
        }
        run.so_far(outcome, |outcome| add(outcome, &queues));
    }
    add(outcome, &queues);
    outcome.note(format!("{ROUNDS} windows of {} s; the queue waits for requests", WINDOW.as_secs()));
    Ok(())
}

fn add(outcome: &mut Outcome, queues: &[(String, Queue, Vec<f64>)]) {
    for (name, _, samples) in queues {
        outcome.add(Figure::of(&format!("idle.{name}.cpu_percent"), "% of a core", samples));
    }
}

fn used(queue: &Queue) -> Result<(Instant, Duration)> {
    let pid = queue.service_pid()?;
    Ok((Instant::now(), cpu_time(pid).with_context(|| format!("process {pid} is gone"))?))
}
