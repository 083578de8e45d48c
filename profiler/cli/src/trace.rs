//! `glass trace`: records what a service of Glasshouse tells of itself.

pub mod tell;
pub mod tracer;
pub mod wanted;

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use glass_guests::trace::{self, Guest as TracedGuest, Live, LiveCounts, LiveSettings, Start};
use glass_guests::{Counts, Flow, GuestError, Source, SymbolFile, read_clocks};
use glass_profile::arch::Architecture;
use glass_profile::event::Event;
use glass_profile::guest::{Guest, GuestId, GuestKind};
use glass_profile::model::Origin;

use crate::console::{Busy, say};
use crate::record::output::Output;
use crate::record::pipeline::Pipeline;
use crate::record::{ROUND, announce, parse_seconds, progress, tell_of_command, watch_signals};
use crate::target::{self, Backend, GuestArgs, Target, TargetArgs};
use tell::Line;
use tracer::Tracer;
use wanted::{Groups, WantedArgs};

/// How long a command may take until it keeps a trace.
const START_PATIENCE: Duration = Duration::from_secs(5);
const START_LOOK: Duration = Duration::from_millis(1);
/// How long a snapshot waits for a VM to tell the time: one that sleeps looks four times a second.
const SNAPSHOT_PATIENCE: Duration = Duration::from_millis(400);
/// How long is waited for groups that are to be off.
const OFF_PATIENCE: Duration = Duration::from_millis(1500);

/// Records tasks, waits, device requests, segments, counters, spans and calls of a service of Glasshouse.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    guest: GuestArgs,
    /// What a service left behind: a dump of its VM (`dump-guest-memory`), the core of its process, a copy of memory.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pid", "name", "command", "sample", "last", "duration"])]
    post_mortem: Option<PathBuf>,
    /// The image that a VM runs or ran, if glass cannot know it.
    #[arg(long, value_name = "FILE", conflicts_with = "command")]
    symbols: Option<PathBuf>,
    #[command(flatten)]
    wanted: WantedArgs,
    /// Switch nothing, and take the newest events that are there already.
    #[arg(long, conflicts_with_all = ["duration", "sample", "command", "functions", "include", "exclude"])]
    last: bool,
    /// Sample call stacks too, so many a second, as `glass record` does.
    #[arg(long, value_name = "HZ", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    sample: Option<u32>,
    /// Stop after this time; without it, at Ctrl-C or when the guest ends.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    duration: Option<Duration>,
    /// Where to write the recording.
    #[arg(short, long, value_name = "FILE", default_value = "glass.pftrace")]
    output: PathBuf,
    /// Command to run and trace from its start.
    #[arg(last = true)]
    command: Vec<String>,
}

/// What ends a recording from outside.
struct Signals {
    interrupted: Arc<AtomicBool>,
    is_detached: Arc<AtomicBool>,
}

/// Traces as the arguments say.
pub fn run(arguments: Args) -> Result<()> {
    if arguments.wanted.groups() == Groups(0) && !arguments.last && arguments.post_mortem.is_none() {
        return switch_off(&arguments);
    }
    // A pipe may wait for its reader here, which Ctrl-C ends.
    let output = Output::prepare(&arguments.output)?;
    let signals = Signals { interrupted: Arc::default(), is_detached: Arc::default() };
    watch_signals(&signals.interrupted, &signals.is_detached).context("cannot watch for Ctrl-C")?;
    if let Some(file) = &arguments.post_mortem {
        return post_mortem(&arguments, file, output);
    }
    if arguments.last {
        return snapshot(&arguments, output);
    }
    live(&arguments, output, &signals)
}

/// The running guest that is meant; `program` is what it runs, if it is given.
pub(crate) fn open(guest: &GuestArgs, program: Option<&Path>) -> Result<TracedGuest> {
    Ok(match (&guest.name, guest.pid) {
        (Some(name), _) => trace::open_vm(&target::find_vm(name)?, program)?,
        (None, Some(pid)) => trace::open(pid, program)?,
        (None, None) => bail!("no guest is named: give --pid, --name or `-- COMMAND`"),
    })
}

/// Starts a command and waits until it keeps a trace, or until `stop` is set.
pub(crate) fn open_command(words: &[String], stop: &AtomicBool) -> Result<(TracedGuest, Child)> {
    let (program, rest) = words.split_first().context("there is no command")?;
    // What is on is for us to say.
    let child = Command::new(program).args(rest).env_remove("GLASS_TRACE").spawn();
    let mut child = child.map_err(|error| GuestError::Command { program: program.clone(), error })?;
    let begun = Instant::now();
    let _busy = Busy::with(&format!("waiting for {program} to keep a trace"));
    let error = loop {
        let is_over = || begun.elapsed() > START_PATIENCE || stop.load(Ordering::Relaxed);
        match trace::open_process(child.id()) {
            Ok(guest) => return Ok((guest, child)),
            Err(error) if is_over() => break error,
            Err(_) => {}
        }
        if let Some(status) = child.try_wait().context("cannot wait for the command")? {
            bail!("{program} has ended ({status}) and kept no trace: is it a service of Glasshouse?");
        }
        std::thread::sleep(START_LOOK);
    };
    let _ = child.kill();
    let _ = child.wait();
    bail!("{error}; it was started to be traced, so it was ended")
}

/// The running guest that is meant, or a command that is started for it.
pub(crate) fn open_any(
    guest: &GuestArgs,
    program: Option<&Path>,
    command: &[String],
    stop: &AtomicBool,
) -> Result<(TracedGuest, Option<Child>)> {
    match command.is_empty() {
        true => Ok((open(guest, program)?, None)),
        false => open_command(command, stop).map(|(guest, child)| (guest, Some(child))),
    }
}

/// What is sampled besides.
fn sampled(arguments: &Args, pid: u32, rate: u32) -> Result<Target> {
    target::find(&TargetArgs {
        guest: GuestArgs { pid: Some(pid), name: None },
        post_mortem: None,
        symbols: arguments.symbols.iter().map(|path| SymbolFile::from(path.clone())).collect(),
        load_address: None,
        force_symbols: false,
        rate: Some(rate),
        vcpus: Vec::new(),
        stack_bytes: None,
        backend: Backend::Auto,
        command: Vec::new(),
        quiet_command: false,
    })
}

fn origin(arguments: &Args, guest: String, backend: &str) -> Origin {
    let symbols = arguments.symbols.as_ref().map_or(String::new(), |path| path.display().to_string());
    target::origin_of(0, guest, backend, symbols)
}

fn live(arguments: &Args, output: Output, signals: &Signals) -> Result<()> {
    let (guest, child) =
        open_any(&arguments.guest, arguments.symbols.as_deref(), &arguments.command, &signals.interrupted)?;
    let (pid, is_vm, title) = (guest.pid, guest.is_vm, guest.title.clone());
    let settings = arguments.wanted.settings(&guest)?;
    let live = Live::new(guest, settings)?;
    let mut target = match arguments.sample {
        Some(rate) => Some(sampled(arguments, pid, rate)?),
        None => None,
    };
    let origin = match &target {
        Some(target) => {
            Origin { backend: format!("{}; its own trace", target.origin.backend), ..target.origin.clone() }
        }
        None => origin(arguments, title.clone(), "its own trace"),
    };
    let clocks = read_clocks();
    let announced = match &mut target {
        Some(target) => announce(target.source.as_mut())?,
        None => Vec::new(),
    };
    let start = Instant::now();
    let mut pipeline = Pipeline::start(output, clocks, &origin)?;
    if target.is_none() {
        pipeline.event(traced_guest(is_vm, pid, &title));
    }
    let until =
        arguments.duration.map_or("until Ctrl-C".to_owned(), |duration| format!("for {} s", duration.as_secs_f64()));
    say!("glass: tracing {} of {title}, {until}", arguments.wanted.groups().names());
    let tracer = Tracer::start(live, &mut pipeline)?;
    let line = Line::start(arguments.duration);
    announced.into_iter().for_each(|event| pipeline.event(event));
    let mut result = Ok(Flow::More);
    let mut checkpoint = Instant::now();
    let counts_of =
        |target: &Option<Target>| target.as_ref().map_or(Counts::default(), |target| target.source.counts());
    while let Ok(Flow::More) = result {
        let left = arguments.duration.map(|duration| duration.saturating_sub(start.elapsed()));
        let is_over = left.is_some_and(|left| left.is_zero()) || tracer.has_ended() || pipeline.has_failed();
        if is_over || signals.interrupted.load(Ordering::Relaxed) {
            break;
        }
        let wait = left.map_or(ROUND, |left| left.min(ROUND));
        match &mut target {
            Some(target) => result = target.source.collect(wait, &mut |event| pipeline.event(event)),
            None => std::thread::sleep(wait),
        }
        line.show(start.elapsed(), &tracer.counts());
        if checkpoint.elapsed() >= Duration::from_secs(1) {
            checkpoint = Instant::now();
            pipeline.checkpoint(counts_of(&target));
        }
    }
    let detached = match &mut target {
        Some(target) => target.source.detach(&mut |event| pipeline.event(event)),
        None => Ok(()),
    };
    let traced = tracer.finish();
    signals.is_detached.store(true, Ordering::Relaxed);
    line.clear();
    finish(arguments, pipeline, counts_of(&target), &clocks, start.elapsed(), traced.as_ref().ok(), target.is_some())?;
    if child.is_some() {
        tell_of_command(pid, &title);
    }
    result?;
    detached?;
    traced.map(|_| ())
}

/// The guest of a recording that only traces it.
pub(crate) fn traced_guest(is_vm: bool, pid: u32, name: &str) -> Event {
    let kind = if is_vm { GuestKind::Vm { vmm: pid } } else { GuestKind::Process { pid } };
    Event::Guest(Guest { id: GuestId(0), kind, name: name.to_owned(), architecture: Architecture::X86_64 })
}

/// Ends the recording and tells what it holds.
fn finish(
    arguments: &Args,
    pipeline: Pipeline,
    counts: Counts,
    clocks: &glass_profile::recording::Clocks,
    elapsed: Duration,
    traced: Option<&LiveCounts>,
    is_sampled: bool,
) -> Result<()> {
    let recorded = pipeline.finish(counts, clocks.monotonic_ns + elapsed.as_nanos() as u64)?;
    progress::written(&arguments.output, elapsed);
    if is_sampled {
        progress::samples(&recorded, elapsed);
    }
    if let Some(counts) = traced {
        let is_over_time = !arguments.last && arguments.post_mortem.is_none();
        tell::summary(counts, is_over_time.then_some(elapsed));
    }
    progress::profiler(&recorded.cost, elapsed);
    Ok(())
}

/// The newest events that are there, without a change to what is on.
fn snapshot(arguments: &Args, output: Output) -> Result<()> {
    let guest = open(&arguments.guest, arguments.symbols.as_deref())?;
    let (pid, is_vm, title) = (guest.pid, guest.is_vm, guest.title.clone());
    let settings = LiveSettings { groups: None, functions: None, start: Start::Oldest };
    let mut live = Live::new(guest, settings)?;
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
    let guest_event = traced_guest(is_vm, pid, &title);
    let origin = origin(arguments, title, "its own trace, a snapshot");
    let mut pipeline = Pipeline::start(output, clocks, &origin)?;
    pipeline.event(guest_event);
    kept.into_iter().for_each(|event| pipeline.event(event));
    finish(arguments, pipeline, Counts::default(), &clocks, start.elapsed(), Some(&counts), false)
}

/// What a guest left behind.
fn post_mortem(arguments: &Args, file: &Path, output: Output) -> Result<()> {
    let mut dump = trace::open_dump(file, arguments.symbols.as_deref())?;
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let origin = origin(arguments, format!("{name} (what a guest left behind)"), "its own trace, from a file");
    let guest = Guest { id: GuestId(0), kind: GuestKind::File, name, architecture: Architecture::X86_64 };
    let clocks = read_clocks();
    let start = Instant::now();
    let mut pipeline = Pipeline::start(output, clocks, &origin)?;
    pipeline.event(Event::Guest(guest));
    while dump.collect(ROUND, &mut |event| pipeline.event(event))? == Flow::More {}
    let read = dump.read_counts();
    let counts = LiveCounts { read, clock_error_ns: Some(u64::MAX), ..LiveCounts::default() };
    finish(arguments, pipeline, Counts::default(), &clocks, start.elapsed(), Some(&counts), false)?;
    if read.events == 0 {
        say!("glass: the guest had written no events: none were on");
    }
    Ok(())
}

/// Switches all groups off: what a killed recorder left on, or what was on from the start.
fn switch_off(arguments: &Args) -> Result<()> {
    let guest = open(&arguments.guest, arguments.symbols.as_deref())?;
    let title = guest.title.clone();
    let has_answered = trace::switch(guest, 0, OFF_PATIENCE)?;
    match has_answered {
        true => say!("glass: {title} traces nothing any more"),
        false => say!("glass: {title} will trace nothing from its next round on; it sleeps"),
    }
    Ok(())
}
