//! `glass record`: samples a guest or a process into a recording.

mod pipeline;
mod progress;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use glass_guests::{Flow, read_clocks};
use glass_profile::event::Event;

use crate::target::{self, TargetArgs};
use pipeline::Pipeline;
use progress::Progress;

/// The period in which losses, Ctrl-C and the progress line are looked after.
const ROUND: Duration = Duration::from_millis(100);

/// Samples the call stacks of a running VM or process, or of a command.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: TargetArgs,
    /// Stop after this time; without it, at Ctrl-C or when the guest ends.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    duration: Option<Duration>,
    /// Where to write the recording.
    #[arg(short, long, default_value = "glass.pftrace")]
    output: PathBuf,
}

pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err("not a time above zero".to_owned()),
    }
}

/// Records until the time is over, the guest ends or Ctrl-C.
pub fn run(arguments: Args) -> Result<()> {
    // Before anything is attached to: from here on Ctrl-C ends the recording, not us.
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, interrupted.clone()).context("cannot watch for Ctrl-C")?;
    }
    let mut target = target::find(&arguments.target)?;
    let clocks = read_clocks();
    let start = Instant::now();
    let mut pipeline = Pipeline::start(&arguments.output, clocks, &target)?;
    let mut progress = Progress::start(&target.origin, arguments.duration);
    let mut result = target.source.announce(&mut |event| pipeline.event(event)).map(|()| Flow::More);
    let mut checkpoint = Instant::now();
    while let Ok(Flow::More) = result {
        let left = arguments.duration.map(|duration| duration.saturating_sub(start.elapsed()));
        if interrupted.load(Ordering::Relaxed) || left.is_some_and(|left| left.is_zero()) || pipeline.has_failed() {
            break;
        }
        let wait = left.map_or(ROUND, |left| left.min(ROUND));
        result = target.source.collect(wait, &mut |event| pipeline.event(event));
        progress.show(start.elapsed(), &pipeline.progress());
        if checkpoint.elapsed() >= Duration::from_secs(1) {
            checkpoint = Instant::now();
            pipeline.checkpoint(target.source.counts());
        }
    }
    // What was recorded is kept, whatever happened.
    let detached = target.source.detach(&mut |event| pipeline.event(event));
    let counts = target.source.counts();
    let elapsed = start.elapsed();
    if let Err(error) = &result {
        pipeline.event(Event::Warning(format!("recording ended early: {error}")));
    }
    let end_ns = clocks.monotonic_ns + elapsed.as_nanos() as u64;
    progress.clear();
    let cost = pipeline.finish(counts, end_ns)?;
    progress::summary(&arguments.output, elapsed, &cost);
    result?;
    Ok(detached?)
}
