//! `glass record`: samples a guest or a process into a recording.

pub(crate) mod output;
pub(crate) mod progress;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use glass_profiler_guests::proc::has_ended;
use glass_profiler_guests::return_memory;
use glass_profiler_guests::systems::glasshouse::{self, Live};
use glass_profiler_session::{Session, Sources, Tracing, Wish};

use crate::arguments::parse_duration;
use crate::console::{exit_code, say};
use crate::holder;
use crate::jail;
use crate::open;
use crate::report;
use crate::target::{self, TargetArgs};
use crate::trace::groups::{GroupArgs, Groups, parse_groups};
use crate::trace::open as open_traced;
use output::Output;
use progress::Progress;

/// Samples the call stacks of a running VM or process, or of a command.
///
/// The exit status is that of the command, if it has failed.
#[derive(clap::Args)]
#[command(
    override_usage = "glass record [OPTIONS] <--pid PID | --name NAME | --domain NAME|ID | --post-mortem FILE | -- COMMAND...>"
)]
pub struct Args {
    #[command(flatten)]
    target: TargetArgs,
    /// Stop after this time, in seconds or with a unit (500ms, 2m); without it, at Ctrl-C or when the VM or process ends. The command itself is not stopped.
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration)]
    duration: Option<Duration>,
    /// Also trace these groups of events of a Glasshouse service, into the same recording: see `glass trace`.
    #[arg(long, value_name = "GROUPS", value_parser = parse_groups, num_args = 0..=1, default_missing_value = "all",
        require_equals = true, conflicts_with_all = ["post_mortem", "domain"])]
    trace: Option<Groups>,
    /// With --trace, record a guest that keeps no trace without one.
    #[arg(long, requires = "trace")]
    trace_if_kept: bool,
    /// With --trace, also calls of these functions: see `glass trace --functions`.
    #[arg(long, value_name = "PATTERN", requires = "trace")]
    functions: Vec<String>,
    /// Functions to leave out of the trace.
    #[arg(long, value_name = "PATTERN", requires = "trace")]
    exclude: Vec<String>,
    /// Output file for the recording.
    #[arg(short, long, value_name = "FILE", default_value = "glass.pftrace")]
    output: PathBuf,
    /// Make the page of the recording, and open it in a browser.
    #[arg(long)]
    open: bool,
}

impl Args {
    /// The recording of a guest with its trace, with a rate of samples: what `glass trace --sample` was.
    pub(crate) fn with_trace(
        target: TargetArgs,
        wanted: GroupArgs,
        duration: Option<Duration>,
        output: PathBuf,
    ) -> Args {
        let GroupArgs { groups, functions, exclude } = wanted;
        Args { target, duration, trace: Some(groups), trace_if_kept: false, functions, exclude, output, open: false }
    }

    /// What is traced, if anything is.
    fn traced(&self) -> Option<GroupArgs> {
        let (functions, exclude) = (self.functions.clone(), self.exclude.clone());
        self.trace.map(|groups| GroupArgs { groups, functions, exclude })
    }
}

/// Makes Ctrl-C, SIGTERM and the loss of the terminal end the recording. A second one while we
/// are attached has no effect: we detach from the guest first. After that, a second one ends us
/// immediately, and the recording lacks the names, which a report then takes from the files.
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

/// Records until the time limit, the end of the guest or Ctrl-C.
pub fn run(arguments: Args) -> Result<ExitCode> {
    if arguments.open {
        return match open::run_without_option()? {
            None => report::open(&arguments.output).map(|()| ExitCode::SUCCESS),
            Some(code) => Ok(code),
        };
    }
    // A pipe may wait for its reader here, which Ctrl-C ends.
    let output = Output::prepare(&arguments.output)?;
    // Before anything is attached to: from here on Ctrl-C ends the recording, not us.
    let interrupted = Arc::new(AtomicBool::new(false));
    let is_detached = Arc::new(AtomicBool::new(false));
    watch_signals(&interrupted, &is_detached).context("cannot watch for Ctrl-C")?;
    record(&arguments, output, &interrupted, &is_detached)
}

/// What a session is to do, as long as Ctrl-C has not ended it.
pub(crate) fn wish(interrupted: &AtomicBool) -> Wish {
    if interrupted.load(Ordering::Relaxed) { Wish::Stop } else { Wish::Continue }
}

/// Prints that a started command continues, if it does.
pub(crate) fn print_command(pid: u32, title: &str) {
    // Its number may have been reused.
    if !has_ended(pid) {
        say!("glass: {title} continues to run");
    }
}

/// Records samples, and the trace if requested.
fn record(
    arguments: &Args,
    mut output: Output,
    interrupted: &AtomicBool,
    is_detached: &AtomicBool,
) -> Result<ExitCode> {
    let is_new = !arguments.target.command.is_empty();
    // The trace of a guest that runs is open before this process gives up its rights. A service that was just started has its trace in
    // a moment, and finding it needs them.
    let is_prisoner = !(is_new && arguments.trace.is_some());
    let launcher = if is_prisoner {
        holder::launcher_of_prisoner(jail::enter, output.files_for_holder())
    } else {
        holder::launcher()
    };
    let program = arguments.target.symbols.first().map(|file| file.path.as_path());
    let wanted = arguments.traced();
    let open = match &wanted {
        Some(wanted) if !is_new => match open_traced(&arguments.target.guest, program) {
            Ok(guest) => {
                let settings = wanted.settings(&guest)?;
                Some(Live::new(guest, settings)?)
            }
            Err(_) if arguments.trace_if_kept => None,
            Err(error) => return Err(error),
        },
        _ => None,
    };
    let starting = match (&wanted, arguments.target.command.first()) {
        (Some(wanted), Some(program)) => Some(wanted.settings_of(Path::new(program), &program.to_string_lossy())?),
        _ => None,
    };
    let mut target = target::find(&arguments.target, launcher)?;
    let pid = target.pid;
    let trace = match (open, starting) {
        (Some(open), _) => Some(Tracing::Open(Box::new(open))),
        (None, Some(settings)) => {
            Some(Tracing::Starting { open: Box::new(move || glasshouse::open_process(pid)), settings })
        }
        (None, None) => None,
    };
    let session = Session::announce(Sources { samples: Some(target.source.as_mut()), trace, guest: None })?;
    let files = match is_prisoner && target.is_remote {
        true => output::files_of_guest(target.opened.clone()),
        false => output::host_files().with_opened(target.opened.clone()),
    };
    // Its path may lead nowhere for this process by now.
    let file = output.file();
    let recording = output.into_recording(session.clocks(), &target.origin, files)?;
    let running = session.start(recording)?;
    // To find a Linux takes tens of megabytes more than to sample it.
    return_memory();
    // The mode of an agent.
    let running = if arguments.target.leave_idle { running.unwatched() } else { running };
    let progress = Progress::start(&target.origin, arguments.duration, arguments.target.post_mortem.is_some());
    let ended = running.run(arguments.duration, |status| {
        progress.show(status);
        wish(interrupted)
    });
    is_detached.store(true, Ordering::Relaxed);
    progress.clear();
    let (written, outcome) = ended.finish().with_context(|| output::cannot_go_on(&arguments.output))?;
    let traced = outcome.traced.as_ref().and_then(|traced| traced.as_ref().ok());
    let bytes = file.and_then(|file| file.metadata().ok()).map_or(0, |metadata| metadata.len());
    progress::summary(&arguments.output, bytes, outcome.status.elapsed, &written, traced);
    if is_new {
        print_command(pid, &target.origin.guest);
    }
    outcome.result()?;
    Ok(match target.source.exit_status().filter(|status| !status.success()) {
        Some(status) => {
            say!("glass: {} has ended with {status}", target.origin.guest);
            ExitCode::from(exit_code(status))
        }
        None => ExitCode::SUCCESS,
    })
}
