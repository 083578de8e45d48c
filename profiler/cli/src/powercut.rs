//! `glass powercut`: the states that a power cut may leave of a VM's disk, and what a check finds in each.

mod http;

use crate::arguments::parse_duration;
use crate::console::{columns_max, say, spinner};
use anyhow::{Context, Result};
use glass_profiler_powercut::campaign::{self, Options, Outcome};
use glass_profiler_powercut::commands::Commands;
use glass_profiler_powercut::image::Builder;
use glass_profiler_powercut::log::{self, Log};
use glass_profiler_powercut::progress::{Kept, Nowhere, StateFile};
use glass_profiler_powercut::{page, text};
use indicatif::ProgressBar;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Cuts the power of a VM at every flush, and in between, and shows who keeps what was acknowledged.
///
/// LOG is a file of `glass run --record-writes` or `glass disk --record-writes`, for any VM of QEMU. Each state of the disk that a power cut may leave is booted and checked on a copy of IMAGE. The commands
/// run in the shell with GLASS_IMAGE, the copy (raw); GLASS_CUT_NS, the time of the cut in nanoseconds since 1970: what was acknowledged
/// before must be there; GLASS_STATE, the number of the state; and GLASS_FOLDER, a folder for files. Lines `lost TIME_NS WORDS` that the check prints are shown on the timeline.
/// Exit status: 0 nothing was lost; 1 something was, or a failure.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    client: Option<http::Client>,
    #[command(flatten)]
    states: Option<States>,
}

#[derive(clap::Args)]
struct States {
    /// The log of the disk's writes.
    log: PathBuf,
    /// The image as it was before the log; it is only read.
    #[arg(long, value_name = "IMAGE")]
    base: PathBuf,
    /// Boots a state, and runs while it is checked [default: the check does all].
    #[arg(long, value_name = "COMMAND")]
    boot: Option<String>,
    /// Exits with 0 if all is there that was acknowledged before the cut; it waits for the service itself.
    #[arg(long, value_name = "COMMAND")]
    check: String,
    /// Different states to try, at most.
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    states: u64,
    /// How long to try, at most.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    time: Option<Duration>,
    /// How long a boot with its check may take.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "60s")]
    limit: Duration,
    /// The same seed chooses the same states.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Do not stop at the first loss.
    #[arg(long)]
    all: bool,
    /// Take no flush as having made anything durable: a control, which shows that the check sees a loss.
    #[arg(long)]
    ignore_flushes: bool,
    /// Tests to find the fewest writes whose loss is enough.
    #[arg(long, value_name = "COUNT", default_value_t = 24)]
    reductions: u64,
    /// Write here what was tested; a later run with the same file continues.
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
    /// Where the copies of the image are made, and stay if something was lost [default: a temporary folder].
    #[arg(long, value_name = "PATH")]
    folder: Option<PathBuf>,
    /// Write a page of the result.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// A folder that is removed at the end, if it is not the user's.
struct Folder {
    path: PathBuf,
    is_ours: bool,
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.is_ours {
            // Left over at worst, in a temporary place.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode> {
    if let Some(client) = args.client {
        return http::run(client);
    }
    let args = args.states.context("no log is named: see `glass powercut --help`")?;
    let path = &args.log;
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut log = log::open(&file).with_context(|| format!("cannot use {}", path.display()))?;
    say!("glass: {}", text::of_log(&log));
    if args.ignore_flushes {
        log.ignore_flushes();
    }
    log.remarks.iter().for_each(|remark| say!("glass: {remark}"));
    let temporary = std::env::temp_dir().join(format!("glass-powercut-{}", std::process::id()));
    let mut folder = Folder { is_ours: args.folder.is_none(), path: args.folder.clone().unwrap_or(temporary) };
    campaign::make_folder(&folder.path)?;
    // The commands may go to other folders.
    folder.path = folder.path.canonicalize().with_context(|| format!("cannot find {}", folder.path.display()))?;
    let mut builder = Builder::new(&log, &file, &args.base, &folder.path)?;
    let mut kept = kept(&args, &log)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, stop.clone()).context("cannot watch for Ctrl-C")?;
    }
    Commands::prepare()?;
    let mut commands = Commands {
        boot: args.boot.clone(),
        check: args.check.clone(),
        limit: args.limit,
        folder: folder.path.clone(),
        stop: &stop,
    };
    let options = Options {
        states: args.states,
        seed: args.seed,
        time: args.time,
        continues: args.all,
        reductions: args.reductions,
        folder: folder.path.clone(),
    };
    let progress = Progress::start(args.states);
    let outcome =
        campaign::run(&log, &mut builder, &mut commands, &options, kept.as_mut(), |outcome| progress.show(outcome))?;
    progress.clear();
    for loss in &outcome.losses {
        say!("{}", text::loss(&log, loss).trim_end());
    }
    say!("glass: {} (seed {})", text::summary(&outcome), args.seed);
    if let (Some(loss), false) = (outcome.losses.last(), folder.is_ours) {
        let image = folder.path.join("state.img");
        say!("glass: {} is what the last test of state {} left", image.display(), loss.cut.number);
    }
    if let Some(output) = &args.output {
        let title = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        let shown = page::Shown { title: &title, boot: args.boot.as_deref(), check: &args.check, seed: args.seed };
        let written = fs::write(output, page::html(&log, &outcome, &shown));
        written.with_context(|| format!("cannot write {}", output.display()))?;
        say!("glass: the result is in {}", output.display());
    }
    Ok(if outcome.losses.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Where states that were tested are kept.
fn kept(args: &States, log: &Log) -> Result<Box<dyn Kept>> {
    let Some(path) = &args.resume else { return Ok(Box::new(Nowhere)) };
    let header = log.header;
    let subject = format!(
        "glass powercut 1: log {} {} {:016x} {} {}, seed {}, states {}",
        header.start_ns,
        log.end_ns,
        header.fingerprint,
        log.writes.len(),
        log.epochs.len(),
        args.seed,
        args.states
    );
    let file = StateFile::open(path, &subject)?;
    if file.count() > 0 {
        say!("glass: {} states were tested before", file.count());
    }
    Ok(Box::new(file))
}

/// A line that shows how far it is, if there is a terminal to show it on.
struct Progress {
    bar: Option<ProgressBar>,
    start: Instant,
    states: u64,
}

impl Progress {
    fn start(states: u64) -> Progress {
        Progress { bar: spinner(), start: Instant::now(), states }
    }

    fn show(&self, outcome: &Outcome) {
        let Some(bar) = &self.bar else { return };
        let (tested, seconds) = (outcome.tested, self.start.elapsed().as_secs_f64());
        let rate = tested as f64 / seconds.max(1e-3);
        let left = self.states.saturating_sub(tested) as f64 / rate.max(1e-9);
        let lost = outcome.losses.len();
        let line = format!("{tested} of {} states, {lost} lost something, {rate:.1}/s, {left:.0} s left", self.states);
        bar.set_message(line.chars().take(columns_max()).collect::<String>());
        bar.tick();
    }

    fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
