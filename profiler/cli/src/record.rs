//! `glass record`: samples a guest or a process into a recording.

pub(crate) mod output;
pub(crate) mod pipeline;
pub(crate) mod progress;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use glass_guests::trace::{self, Live};
use glass_guests::{Flow, GuestError, Source, read_clocks};
use glass_profile::event::Event;

use crate::console::say;
use crate::target::{self, TargetArgs};
use crate::trace::tracer::Tracer;
use crate::trace::wanted::{Groups, parse_groups};
use output::Output;
use pipeline::Pipeline;
use progress::Progress;

/// The period in which losses, Ctrl-C and the progress line are looked after.
pub(crate) const ROUND: Duration = Duration::from_millis(100);

/// Samples the call stacks of a running VM or process, or of a command.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: TargetArgs,
    /// Stop after this time; without it, at Ctrl-C or when the guest ends.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    duration: Option<Duration>,
    /// Trace these groups of events of a service of Glasshouse too, into the same recording: see `glass trace`.
    #[arg(long, value_name = "GROUPS", value_parser = parse_groups, num_args = 0..=1, default_missing_value = "all",
        require_equals = true, conflicts_with = "post_mortem")]
    trace: Option<Groups>,
    /// Where to write the recording.
    #[arg(short, long, value_name = "FILE", default_value = "glass.pftrace")]
    output: PathBuf,
}

pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err("not a time above zero".to_owned()),
    }
}

/// Has Ctrl-C, a request to end and the loss of the terminal end the recording. A second one while we
/// are attached changes nothing: the guest comes first. Once it is rid of us, a second one ends us at
/// once, and the recording lacks the names, which a report then takes from the files.
pub(crate) fn watch_signals(interrupted: &Arc<AtomicBool>, is_detached: &Arc<AtomicBool>) -> std::io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
    use signal_hook::flag;
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        flag::register_conditional_shutdown(signal, 130, is_detached.clone())?;
        flag::register(signal, interrupted.clone())?;
    }
    // A limit of file sizes (ulimit -f) is then an error like a full disk instead of our death.
    flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    Ok(())
}

/// Records until the time is over, the guest ends or Ctrl-C.
pub fn run(arguments: Args) -> Result<()> {
    // A pipe may wait for its reader here, which Ctrl-C ends.
    let output = Output::prepare(&arguments.output)?;
    // Before anything is attached to: from here on Ctrl-C ends the recording, not us.
    let interrupted = Arc::new(AtomicBool::new(false));
    let is_detached = Arc::new(AtomicBool::new(false));
    watch_signals(&interrupted, &is_detached).context("cannot watch for Ctrl-C")?;
    record(&arguments, output, &interrupted, &is_detached)
}

/// What a source tells at its start. An error here costs no earlier recording.
pub(crate) fn announce(source: &mut dyn Source) -> Result<Vec<Event>, GuestError> {
    let mut events = Vec::new();
    source.announce(&mut |event| events.push(event))?;
    Ok(events)
}

/// Says that a command that was started goes on without us, if it does.
pub(crate) fn tell_of_command(pid: u32, title: &str) {
    if target::is_running(pid) {
        say!("glass: {title} goes on");
    }
}

/// Records what is to be sampled, and traced with it.
fn record(arguments: &Args, output: Output, interrupted: &AtomicBool, is_detached: &AtomicBool) -> Result<()> {
    let mut target = target::find(&arguments.target)?;
    let is_new = !arguments.target.command.is_empty();
    let program = arguments.target.symbols.first().map(|file| file.path.as_path());
    // A service that was just started has its trace in a moment; one that runs has it, or an error is due now.
    let opened = match arguments.trace {
        Some(groups) if !is_new => Some(Live::new(trace::open(target.pid, program)?, groups.live())?),
        _ => None,
    };
    let clocks = read_clocks();
    let announced = announce(target.source.as_mut())?;
    let start = Instant::now();
    let mut pipeline = Pipeline::start(output, clocks, &target.origin)?;
    let tracer = match (opened, arguments.trace) {
        (Some(live), _) => Some(Tracer::start(live, &mut pipeline)?),
        (None, Some(groups)) => {
            let pid = target.pid;
            Some(Tracer::start_with(move || trace::open_process(pid), groups.live(), &pipeline))
        }
        (None, None) => None,
    };
    let mut progress = Progress::start(&target.origin, arguments.duration);
    announced.into_iter().for_each(|event| pipeline.event(event));
    let mut result = Ok(Flow::More);
    let mut checkpoint = Instant::now();
    while let Ok(Flow::More) = result {
        let left = arguments.duration.map(|duration| duration.saturating_sub(start.elapsed()));
        if interrupted.load(Ordering::Relaxed) || left.is_some_and(|left| left.is_zero()) || pipeline.has_failed() {
            break;
        }
        let wait = left.map_or(ROUND, |left| left.min(ROUND));
        result = target.source.collect(wait, &mut |event| pipeline.event(event));
        progress.show(start.elapsed(), &pipeline.progress(), pipeline.lost(target.source.counts()));
        if checkpoint.elapsed() >= Duration::from_secs(1) {
            checkpoint = Instant::now();
            pipeline.checkpoint(target.source.counts());
        }
    }
    // What was recorded is kept, whatever happened.
    let traced = tracer.map(Tracer::finish);
    let detached = target.source.detach(&mut |event| pipeline.event(event));
    is_detached.store(true, Ordering::Relaxed);
    let counts = target.source.counts();
    let elapsed = start.elapsed();
    if let Err(error) = &result {
        pipeline.event(Event::Warning(format!("recording ended early: {error}")));
    }
    let end_ns = clocks.monotonic_ns + elapsed.as_nanos() as u64;
    progress.clear();
    let written = pipeline.finish(counts, end_ns)?;
    let counts = traced.as_ref().and_then(|traced| traced.as_ref().ok());
    progress::summary(&arguments.output, elapsed, &written, counts);
    if is_new {
        tell_of_command(target.pid, &target.origin.guest);
    }
    result?;
    detached?;
    traced.transpose()?;
    Ok(())
}
