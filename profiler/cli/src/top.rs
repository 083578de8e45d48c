//! `glass top`: a live table of where a guest or a process spends its time.

mod app;
mod draw;
mod keys;
mod names;
mod plain;
mod screen;
mod tasks;
mod text;
mod work;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use glass_profiler_core::live::threads::By;
use glass_profiler_session::target::Target;
use glass_profiler_session::{End, Session, Sources, Wish};

use crate::arguments::parse_duration;
use crate::console::{self, Busy, say};
use crate::holder;
use crate::jail;
use crate::record::print_command;
use crate::target::{self, TargetArgs};
use work::{Counting, Shared};

/// How long is sampled for a single table by default.
const ONCE: Duration = Duration::from_secs(5);

/// Shows where a running VM or process spends its time, live.
///
/// Without a terminal, or with --once, prints one table and ends.
#[derive(clap::Args)]
#[command(
    override_usage = "glass top [OPTIONS] <--pid PID | --name NAME | --domain NAME|ID | --post-mortem FILE | -- COMMAND...>"
)]
pub struct Args {
    #[command(flatten)]
    target: TargetArgs,
    /// Stop after this time, in seconds or with a unit (500ms, 2m); for a single table, 5 s if not given.
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration)]
    duration: Option<Duration>,
    /// Show tasks instead of functions, for a Glasshouse service: what each does, what it waits on and since when.
    #[arg(long, conflicts_with_all = ["post_mortem", "domain", "backend", "vcpus"])]
    tasks: bool,
    /// What the rows are: functions, or processes or threads, of a Linux guest or of this machine. `g` changes it on the live screen.
    #[arg(long, value_enum, default_value_t = ByArg::Function, conflicts_with = "tasks")]
    by: ByArg,
    /// Print one table at the end instead of a live screen.
    #[arg(long)]
    once: bool,
    /// Rows of a printed table.
    #[arg(long, value_name = "N", default_value_t = 20)]
    rows: usize,
    /// Live screen: the weight of a sample halves in this time.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    half_life: Duration,
}

/// [`By`] on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ByArg {
    Function,
    Process,
    Thread,
}

impl From<ByArg> for By {
    fn from(by: ByArg) -> By {
        match by {
            ByArg::Function => By::Function,
            ByArg::Process => By::Process,
            ByArg::Thread => By::Thread,
        }
    }
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
    let enter = if live { jail::enter_with_screen } else { jail::enter };
    let mut target = target::find(&arguments.target, holder::launcher_of_prisoner(enter, None))?;
    let duration = if live { arguments.duration } else { Some(arguments.duration.unwrap_or(ONCE)) };
    let shared = Arc::new(Shared::new(&target, live.then_some(arguments.half_life), arguments.by.into()));
    let session = Session::announce(Sources { samples: Some(target.source.as_mut()), ..Default::default() })?;
    let running = session.start(Counting::new(shared.clone()))?;
    let screen = match live {
        true => Some(screen::start(shared.clone(), &target.origin, stop.clone())?),
        false => None,
    };
    let busy = busy(live, duration, "sampling", &target.origin.guest);
    let ended = running.run(duration, |status| {
        shared.set_status(status);
        let has_quit = screen.as_ref().is_some_and(|screen| screen.is_finished());
        if has_quit || stop.load(Ordering::Relaxed) { Wish::Stop } else { Wish::Continue }
    });
    shared.set_status(&ended.outcome.status);
    let counted = ended.finish();
    stop.store(true, Ordering::Relaxed);
    if let Some(screen) = screen {
        screen.join().map_err(|_| anyhow!("the screen's thread ended unexpectedly"))??;
    }
    drop(busy);
    let ((), outcome) = counted.context("the table is not complete")?;
    finish(&arguments, &target, &shared, live, &outcome.end)?;
    Ok(outcome.result()?)
}

/// Shows on a terminal what takes its time before a single table is printed.
fn busy(live: bool, duration: Option<Duration>, what: &str, guest: &str) -> Option<Busy> {
    let duration = duration.filter(|_| !live)?;
    Some(Busy::with(&format!("{what} {guest} for {} s", duration.as_secs_f64())))
}

/// The last table, on the normal screen.
fn finish(arguments: &Args, target: &Target, shared: &Shared, live: bool, end: &End) -> Result<()> {
    let has_ended = matches!(end, End::GuestEnded);
    // Who leaves the live screen by a key has seen the table.
    if !live || has_ended || matches!(end, End::Failed(_)) {
        let table = plain::table(&shared.last_picture(), &target.origin, arguments.rows, console::output_columns());
        console::print(&table)?;
    }
    if live && has_ended {
        say!("glass: {} has ended", target.origin.guest);
    } else if live && !arguments.target.command.is_empty() {
        print_command(target.pid, &target.origin.guest);
    }
    Ok(())
}
