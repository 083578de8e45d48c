//! `glass trace`: records the trace of a Glasshouse service.

pub mod groups;
pub mod summary;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use glass_formats::trace::Group;
use glass_profiler_core::arch::Architecture;
use glass_profiler_core::elf;
use glass_profiler_core::event::Event;
use glass_profiler_core::guest::{Guest, GuestId, GuestKind};
use glass_profiler_core::model::Origin;
use glass_profiler_guests::files::{HostFile, HostFiles};
use glass_profiler_guests::systems::glasshouse::{self, Guest as TracedGuest, Live, LiveCounts, LiveSettings, Start};
use glass_profiler_guests::{Counts, Flow, GuestError, Source, SymbolFile, read_clocks};
use glass_profiler_session::target;
use glass_profiler_session::{Feed, Session, Sources, Tracing, Wish, Written};

use crate::arguments::parse_duration;
use crate::console::{Busy, say};
use crate::jail;
use crate::record::output::{self, Output};
use crate::record::{self, print_command, progress, watch_signals, wish};
use crate::target::{GuestArgs, TargetArgs};
use groups::{GroupArgs, Groups};
use summary::Line;

/// How long a command may take until it has a trace.
const START_PATIENCE: Duration = Duration::from_secs(5);
const START_POLL_PERIOD: Duration = Duration::from_millis(1);
/// How long a snapshot waits for a VM's time: one that sleeps polls four times a second.
const SNAPSHOT_PATIENCE: Duration = Duration::from_millis(400);
/// How long to wait for groups to be switched off.
const OFF_PATIENCE: Duration = Duration::from_millis(1500);

/// Records what a Glasshouse service waits for: tasks, devices, TCP segments, spans.
#[derive(clap::Args)]
#[command(override_usage = "glass trace [OPTIONS] <--pid PID | --name NAME | --post-mortem FILE | -- COMMAND...>")]
pub struct Args {
    #[command(flatten)]
    guest: GuestArgs,
    /// Read the trace from a file: a dump of the VM (`dump-guest-memory`), a core dump of the process, or a raw copy of guest memory
    /// (with --symbols). For call stacks use `glass record --post-mortem`.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pid", "name", "command", "sample", "last", "duration"])]
    post_mortem: Option<PathBuf>,
    /// The image of the VM, if glass cannot find it.
    #[arg(long, value_name = "FILE", conflicts_with = "command")]
    symbols: Option<PathBuf>,
    #[command(flatten)]
    wanted: GroupArgs,
    /// Read the events that the service has already recorded, without switching groups.
    #[arg(long, conflicts_with_all = ["duration", "sample", "command", "functions", "exclude"])]
    last: bool,
    /// Also sample call stacks: the earlier name of `glass record --trace --rate HZ`.
    #[arg(long, value_name = "HZ", hide = true, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    sample: Option<u32>,
    /// Stop after this time, in seconds or with a unit (500ms, 2m); without it, at Ctrl-C or when the VM or process ends.
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration)]
    duration: Option<Duration>,
    /// Output file for the recording.
    #[arg(short, long, value_name = "FILE", default_value = "glass.pftrace")]
    output: PathBuf,
    /// Command to run and trace from its start.
    #[arg(last = true)]
    command: Vec<OsString>,
}

/// The signals that end a recording.
struct Signals {
    interrupted: Arc<AtomicBool>,
    is_detached: Arc<AtomicBool>,
}

/// Traces according to the arguments.
pub fn run(arguments: Args) -> Result<ExitCode> {
    if let Some(rate) = arguments.sample {
        say!("glass: `glass trace --sample {rate}` is now `glass record --trace --rate {rate}`, which runs instead");
        return record::run(sampled(arguments, rate));
    }
    traced(&arguments).map(|()| ExitCode::SUCCESS)
}

fn traced(arguments: &Args) -> Result<()> {
    if arguments.wanted.groups() == Groups(0) && !arguments.last && arguments.post_mortem.is_none() {
        return switch_off(arguments);
    }
    // A pipe may wait for its reader here, which Ctrl-C ends.
    let output = Output::prepare(&arguments.output)?;
    let signals = Signals { interrupted: Arc::default(), is_detached: Arc::default() };
    watch_signals(&signals.interrupted, &signals.is_detached).context("cannot watch for Ctrl-C")?;
    if let Some(file) = &arguments.post_mortem {
        return post_mortem(arguments, file, output);
    }
    if arguments.last {
        return snapshot(arguments, output);
    }
    live(arguments, output, &signals)
}

/// The selected running guest; `program` is its program, if it is given.
pub(crate) fn open(guest: &GuestArgs, program: Option<&Path>) -> Result<TracedGuest> {
    Ok(match (&guest.name, guest.pid()?) {
        (Some(name), _) => glasshouse::open_vm(&target::find_vm(name)?, program)?,
        (None, Some(pid)) => glasshouse::open(pid, program)?,
        (None, None) => bail!("no target is named: give --pid, --name or `-- COMMAND`"),
    })
}

/// Starts a command with these groups on and waits until it has a trace, or until `stop` is set.
fn open_command(words: &[OsString], groups: Groups, stop: &AtomicBool) -> Result<(TracedGuest, Child)> {
    let (program, rest) = words.split_first().context("there is no command")?;
    // Until we have found its trace, the command writes events already. Functions are switched on when they are selected.
    let groups = Groups(groups.0 & !(Group::Functions as u32));
    let mut command = Command::new(program);
    command.args(rest).env_remove("GLASS_TRACE");
    if groups != Groups(0) {
        command.env("GLASS_TRACE", groups.names());
    }
    let child = command.spawn();
    let program = program.to_string_lossy().into_owned();
    let mut child = child.map_err(|error| GuestError::Command { program: program.clone(), error })?;
    let begun = Instant::now();
    let _busy = Busy::with(&format!("waiting for {program} to keep a trace"));
    let error = loop {
        let is_over = || begun.elapsed() > START_PATIENCE || stop.load(Ordering::Relaxed);
        match glasshouse::open_process(child.id()) {
            Ok(guest) => return Ok((guest, child)),
            Err(error) if is_over() => break error,
            Err(_) => {}
        }
        if let Some(status) = child.try_wait().context("cannot wait for the command")? {
            bail!("{program} has ended ({status}) and kept no trace: is it a service of Glasshouse?");
        }
        std::thread::sleep(START_POLL_PERIOD);
    };
    let _ = child.kill();
    let _ = child.wait();
    bail!("{error}; the command was killed")
}

/// The selected running guest, or a command that is started with these groups on; then the settings of its trace are
/// [`LiveSettings::of_command`].
pub(crate) fn open_any(
    guest: &GuestArgs,
    program: Option<&Path>,
    command: &[OsString],
    groups: Groups,
    stop: &AtomicBool,
) -> Result<(TracedGuest, Option<Child>)> {
    match command.is_empty() {
        true => Ok((open(guest, program)?, None)),
        false => open_command(command, groups, stop).map(|(guest, child)| (guest, Some(child))),
    }
}

/// The same as arguments of `glass record`.
fn sampled(arguments: Args, rate: u32) -> record::Args {
    let Args { guest, symbols, wanted, duration, output, command, .. } = arguments;
    let symbols = symbols.into_iter().map(SymbolFile::from).collect();
    let target = TargetArgs { guest, symbols, rate: Some(rate), command, ..TargetArgs::default() };
    record::Args::with_trace(target, wanted, duration, output)
}

fn origin(arguments: &Args, guest: String, backend: &str) -> Origin {
    let symbols = arguments.symbols.as_ref().map_or(String::new(), |path| path.display().to_string());
    target::origin(0, guest, backend, symbols)
}

fn live(arguments: &Args, mut output: Output, signals: &Signals) -> Result<()> {
    let (symbols, groups) = (arguments.symbols.as_deref(), arguments.wanted.groups());
    let (guest, child) = open_any(&arguments.guest, symbols, &arguments.command, groups, &signals.interrupted)?;
    let (pid, is_vm, title) = (guest.pid, guest.is_vm, guest.title.clone());
    let recorded = traced_guest(is_vm, pid, &title, &guest.program);
    let settings = arguments.wanted.settings(&guest)?.of_command(child.is_some());
    let live = Live::new(guest, settings)?;
    output.commit();
    // What has the memory of the trace open needs no rights to read it.
    jail::enter_and_say();
    let origin = origin(arguments, title.clone(), "its own trace");
    let guest = Some(recorded);
    let session = Session::announce(Sources { guest, samples: None, trace: Some(Tracing::Open(Box::new(live))) })?;
    let file = output.into_recording(session.clocks(), &origin, HostFiles::default())?;
    let running = session.start(file)?;
    let until =
        arguments.duration.map_or("until Ctrl-C".to_owned(), |duration| format!("for {} s", duration.as_secs_f64()));
    say!("glass: tracing {} of {title}, {until}", arguments.wanted.groups().names());
    let line = Line::start(arguments.duration);
    let ended = running.run(arguments.duration, |status| match &status.trace {
        Some(traced) if !traced.has_ended => {
            line.show(status.elapsed, &traced.counts);
            wish(&signals.interrupted)
        }
        _ => Wish::Stop,
    });
    signals.is_detached.store(true, Ordering::Relaxed);
    line.clear();
    let (written, outcome) = ended.finish().with_context(|| output::cannot_go_on(&arguments.output))?;
    let elapsed = outcome.status.elapsed;
    let traced = outcome.traced.as_ref().and_then(|traced| traced.as_ref().ok());
    summary(arguments, &written, elapsed, traced);
    if child.is_some() {
        print_command(pid, &title);
    }
    Ok(outcome.result()?)
}

/// The guest of a recording that only traces it; `program` is what it runs.
pub(crate) fn traced_guest(is_vm: bool, pid: u32, name: &str, program: &Path) -> Guest {
    let kind = if is_vm { GuestKind::Vm { vmm: pid } } else { GuestKind::Process { pid } };
    Guest { id: GuestId(0), kind, name: name.to_owned(), architecture: architecture_of(program) }
}

/// The processor that a program is for; the default where that cannot be read.
fn architecture_of(program: &Path) -> Architecture {
    HostFile::open(program).ok().and_then(|file| elf::architecture_of(&file)).unwrap_or_default()
}

/// Prints what a recording holds.
fn summary(arguments: &Args, written: &Written, elapsed: Duration, traced: Option<&LiveCounts>) {
    progress::written(&arguments.output, elapsed);
    if let Some(counts) = traced {
        let is_over_time = !arguments.last && arguments.post_mortem.is_none();
        summary::summary(counts, is_over_time.then_some(elapsed));
    }
    progress::profiler(written, elapsed);
}

/// The newest existing events, without a change of the groups.
fn snapshot(arguments: &Args, mut output: Output) -> Result<()> {
    let guest = open(&arguments.guest, arguments.symbols.as_deref())?;
    let (pid, is_vm, title) = (guest.pid, guest.is_vm, guest.title.clone());
    let recorded = traced_guest(is_vm, pid, &title, &guest.program);
    let settings = LiveSettings { groups: None, functions: None, start: Start::Oldest, groups_after: None };
    let mut live = Live::new(guest, settings)?;
    output.commit();
    jail::enter_and_say();
    let mut kept = Vec::new();
    let clocks = read_clocks();
    let start = Instant::now();
    live.announce(&mut |event| kept.push(event))?;
    while is_vm && !live.live_counts().has_answered && start.elapsed() < SNAPSHOT_PATIENCE {
        if live.collect(Duration::from_millis(10), &mut |event| kept.push(event))? == Flow::Ended {
            break;
        }
    }
    live.detach(&mut |event| kept.push(event))?;
    let counts = live.live_counts();
    if counts.read.events == 0 {
        bail!(
            "{title} keeps no events: none were on (now: {}); switch some on with `glass trace` without --last, or start it with `glass run --trace`",
            Groups(counts.groups).names()
        );
    }
    let origin = origin(arguments, title, "its own trace, a snapshot");
    let cannot = || output::cannot_go_on(&arguments.output);
    let mut feed = Feed::start(output.into_recording(clocks, &origin, HostFiles::default())?)?;
    feed.event(Event::Guest(recorded));
    kept.into_iter().for_each(|event| feed.event(event));
    let elapsed = start.elapsed();
    let end_ns = clocks.monotonic_ns + elapsed.as_nanos() as u64;
    let written = feed.finish(Counts::default(), end_ns).with_context(cannot)?;
    summary(arguments, &written, elapsed, Some(&counts));
    Ok(())
}

/// The trace in a dump.
fn post_mortem(arguments: &Args, file: &Path, mut output: Output) -> Result<()> {
    output.commit();
    let mut dump = glasshouse::open_dump(file, arguments.symbols.as_deref(), jail::enter_and_say)?;
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let origin = origin(arguments, format!("{name} (dump)"), "its own trace, from a file");
    let architecture = arguments.symbols.as_deref().map(architecture_of).unwrap_or_default();
    let guest = Guest { id: GuestId(0), kind: GuestKind::File, name, architecture };
    let sources = Sources { samples: Some(&mut dump), trace: None, guest: Some(guest) };
    let session = Session::announce(sources)?;
    let file = output.into_recording(session.clocks(), &origin, HostFiles::default())?;
    let ended = session.start(file)?.run(None, |_| Wish::Continue);
    let (written, outcome) = ended.finish().with_context(|| output::cannot_go_on(&arguments.output))?;
    let read = dump.read_counts();
    let counts = LiveCounts { read, clock_error_ns: Some(u64::MAX), ..LiveCounts::default() };
    summary(arguments, &written, outcome.status.elapsed, Some(&counts));
    if read.events == 0 {
        say!("glass: the service had written no events: none were on");
    }
    Ok(outcome.result()?)
}

/// Switches all groups off: those that a killed recorder left on, or that were on from the start.
fn switch_off(arguments: &Args) -> Result<()> {
    let guest = open(&arguments.guest, arguments.symbols.as_deref())?;
    let title = guest.title.clone();
    let has_answered = glasshouse::switch(guest, 0, OFF_PATIENCE)?;
    match has_answered {
        true => say!("glass: all event groups of {title} are off"),
        false => say!("glass: all event groups of {title} will be off when it wakes up"),
    }
    Ok(())
}
