//! `glass top`: a live table of where a guest or a process spends its time.

mod app;
mod draw;
mod keys;
mod plain;
mod screen;
mod tasks;
mod text;
mod work;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use glass_guests::{Flow, GuestError};

use crate::console::{self, Busy, say};
use crate::record::{announce, parse_seconds, tell_of_command};
use crate::target::{self, Target, TargetArgs};
use work::{Shared, Status};

/// The period in which losses and the end are looked after.
const ROUND: Duration = Duration::from_millis(100);
/// How long is sampled for a single table, if nothing is said.
const ONCE: Duration = Duration::from_secs(5);

/// Shows where a running VM or process spends its time, live.
///
/// Without a terminal, or with --once, prints one table and ends.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: TargetArgs,
    /// Stop after this time; for a single table, 5 s if not given.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    duration: Option<Duration>,
    /// Show tasks instead of functions, for a service of Glasshouse: what each does, what it waits for and since when.
    #[arg(long, conflicts_with_all = ["post_mortem", "backend", "vcpus"])]
    tasks: bool,
    /// Print one table at the end instead of a live screen.
    #[arg(long)]
    once: bool,
    /// Functions or tasks in a printed table.
    #[arg(long, value_name = "N", default_value_t = 20)]
    rows: usize,
    /// On the live screen, a sample counts half after this time.
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_seconds)]
    half_life: Duration,
}

/// Why there will be no more samples.
enum End {
    /// The user wants no more, or the time is over.
    Asked,
    /// The guest has ended.
    GuestEnded,
    /// Sampling failed.
    Failed(GuestError),
}

/// Shows tables until the user wants no more, the time is over or the guest ends.
pub fn run(mut arguments: Args) -> Result<()> {
    if arguments.tasks {
        return tasks::run(&arguments);
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, stop.clone()).context("cannot watch for Ctrl-C")?;
    }
    let live = !arguments.once && console::has_screen();
    arguments.target.quiet_command = live;
    let mut target = target::find(&arguments.target)?;
    let announced = announce(target.source.as_mut())?;
    let duration = if live { arguments.duration } else { Some(arguments.duration.unwrap_or(ONCE)) };
    let half_life = live.then_some(arguments.half_life);
    let shared = Arc::new(Shared::new(&target, half_life));
    let (mut events, counter) = work::start_counting(shared.clone())?;
    let screen = match live {
        true => Some(screen::start(shared.clone(), &target, stop.clone())?),
        false => None,
    };

    let busy = busy(live, duration, "sampling", &target.origin.guest);
    let start = Instant::now();
    announced.into_iter().for_each(|event| events.event(event));
    let mut result = Ok(Flow::More);
    let end = loop {
        match result {
            Ok(Flow::More) => {}
            Ok(Flow::Ended) => break End::GuestEnded,
            Err(error) => break End::Failed(error),
        }
        let left = duration.map(|duration| duration.saturating_sub(start.elapsed()));
        let is_over = left.is_some_and(|left| left.is_zero()) || counter.is_finished();
        if is_over || stop.load(Ordering::Relaxed) || screen.as_ref().is_some_and(|screen| screen.is_finished()) {
            break End::Asked;
        }
        let wait = left.map_or(ROUND, |left| left.min(ROUND));
        result = target.source.collect(wait, &mut |event| events.event(event));
        shared.set_status(Status { counts: target.source.counts(), dropped: events.dropped() });
    };
    // First of all the guest is rid of us; what we hold is shown after that.
    let detached = target.source.detach(&mut |event| events.event(event));
    shared.set_status(Status { counts: target.source.counts(), dropped: events.dropped() });
    drop(events);
    let counted = counter.join();
    stop.store(true, Ordering::Relaxed);
    if let Some(screen) = screen {
        screen.join().map_err(|_| anyhow!("the screen's thread ended unexpectedly"))??;
    }
    drop(busy);
    counted.map_err(|_| anyhow!("the counting thread ended unexpectedly"))?;
    finish(&arguments, &target, &shared, live, end)?;
    Ok(detached?)
}

/// Says on a terminal what takes its time before a single table is printed.
fn busy(live: bool, duration: Option<Duration>, what: &str, guest: &str) -> Option<Busy> {
    let duration = duration.filter(|_| !live)?;
    Some(Busy::with(&format!("{what} {guest} for {} s", duration.as_secs_f64())))
}

/// The last words, on the normal screen.
fn finish(arguments: &Args, target: &Target, shared: &Shared, live: bool, end: End) -> Result<()> {
    let (ended, failure) = match end {
        End::Asked => (false, None),
        End::GuestEnded => (true, None),
        End::Failed(error) => (true, Some(error)),
    };
    // Who leaves the live screen by a key has seen the table.
    if !live || ended {
        let table = plain::table(&shared.last_picture(), &target.origin, arguments.rows, console::output_columns());
        console::print(&table)?;
    }
    if live && ended && failure.is_none() {
        say!("glass: {} has ended", target.origin.guest);
    } else if live && !arguments.target.command.is_empty() {
        tell_of_command(target.pid, &target.origin.guest);
    }
    failure.map_or(Ok(()), |error| Err(error.into()))
}
