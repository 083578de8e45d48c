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
use glass_guests::find;
use glass_guests::trace::{self, Guest, Live, LiveCounts, LiveSettings, Start};
use glass_guests::{Counts, Flow, GuestError, Source, SymbolFile, read_clocks};
use glass_profile::model::Origin;

use crate::record::output::Output;
use crate::record::pipeline::Pipeline;
use crate::record::{ROUND, parse_seconds, progress, watch_signals};
use crate::target::{self, Backend, Target, TargetArgs};
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
    /// Process of the service, or of the VMM whose VM it is.
    #[arg(long, conflicts_with_all = ["name", "command"])]
    pid: Option<u32>,
    /// VM by the name that `glass run` gave it.
    #[arg(long, conflicts_with = "command")]
    name: Option<String>,
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
    #[arg(long, value_name = "RATE", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    sample: Option<u32>,
    /// Stop after this time; without it, at Ctrl-C or when the guest ends.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    duration: Option<Duration>,
    /// Where to write the recording.
    #[arg(short, long, default_value = "glass.pftrace")]
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
    let signals = Signals { interrupted: Arc::default(), is_detached: Arc::default() };
    watch_signals(&signals.interrupted, &signals.is_detached).context("cannot watch for Ctrl-C")?;
    if arguments.wanted.groups() == Groups(0) && !arguments.last && arguments.post_mortem.is_none() {
        return switch_off(&arguments);
    }
    let output = Output::prepare(&arguments.output)?;
    if let Some(file) = &arguments.post_mortem {
        return post_mortem(&arguments, file, output);
    }
    if arguments.last {
        return snapshot(&arguments, output);
    }
    live(&arguments, output, &signals)
}

/// The running guest that is meant.
fn open(arguments: &Args) -> Result<Guest> {
    let program = arguments.symbols.as_deref();
    Ok(match (&arguments.name, arguments.pid) {
        (Some(name), _) => trace::open_vm(&find::by_name(name)?, program)?,
        (None, Some(pid)) => trace::open(pid, program)?,
        (None, None) => bail!("nothing to trace: give --pid, --name, --post-mortem or `-- COMMAND`"),
    })
}

/// Starts a command and waits until it keeps a trace.
pub(crate) fn open_command(words: &[String]) -> Result<(Guest, Child)> {
    let (program, rest) = words.split_first().context("there is no command")?;
    // What is on is for us to say.
    let child = Command::new(program).args(rest).env_remove("GLASS_TRACE").spawn();
    let mut child = child.map_err(|error| GuestError::Command { program: program.clone(), error })?;
    let begun = Instant::now();
    let error = loop {
        match trace::open_process(child.id()) {
            Ok(guest) => return Ok((guest, child)),
            Err(error) if begun.elapsed() > START_PATIENCE => break error,
            Err(_) => {}
        }
        if let Some(status) = child.try_wait().context("cannot wait for the command")? {
            bail!("{program} has ended ({status}) and kept no trace: is it a service of Glasshouse?");
        }
        std::thread::sleep(START_LOOK);
    };
    // It was started to be traced.
    let _ = child.kill();
    let _ = child.wait();
    Err(error.into())
}

/// What is sampled besides.
fn sampled(arguments: &Args, rate: u32) -> Result<Target> {
    target::find(&TargetArgs {
        pid: arguments.pid,
        name: arguments.name.clone(),
        post_mortem: None,
        symbols: arguments.symbols.iter().map(|path| SymbolFile::from(path.clone())).collect(),
        load_address: None,
        force_symbols: false,
        rate,
        vcpus: Vec::new(),
        stack_bytes: 16 << 10,
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
    let (guest, _child) = match arguments.command.is_empty() {
        true => (open(arguments)?, None),
        false => open_command(&arguments.command).map(|(guest, child)| (guest, Some(child)))?,
    };
    let (pid, is_vm, title) = (guest.pid, guest.is_vm, guest.title.clone());
    let settings = arguments.wanted.settings(&guest)?;
    let live = Live::new(guest, settings)?;
    let mut target = match arguments.sample {
        Some(rate) => {
            let arguments = Args { pid: Some(pid), name: None, ..clone_of(arguments) };
            Some(sampled(&arguments, rate)?)
        }
        None => None,
    };
    let origin = match &target {
        Some(target) => {
            Origin { backend: format!("{}; its own trace", target.origin.backend), ..target.origin.clone() }
        }
        None => origin(arguments, title.clone(), "its own trace"),
    };
    let clocks = read_clocks();
    let start = Instant::now();
    let mut pipeline = Pipeline::start(output, clocks, &origin, is_vm, pid)?;
    let until =
        arguments.duration.map_or("until Ctrl-C".to_owned(), |duration| format!("for {} s", duration.as_secs_f64()));
    eprintln!("glass: tracing {} of {title}, {until}", arguments.wanted.groups().names());
    let tracer = Tracer::start(live, &mut pipeline)?;
    let line = Line::start(arguments.duration);
    let mut result = match &mut target {
        Some(target) => target.source.announce(&mut |event| pipeline.event(event)).map(|()| Flow::More),
        None => Ok(Flow::More),
    };
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
    result?;
    detached?;
    traced.map(|_| ())
}

fn clone_of(arguments: &Args) -> Args {
    Args {
        pid: arguments.pid,
        name: arguments.name.clone(),
        post_mortem: None,
        symbols: arguments.symbols.clone(),
        wanted: WantedArgs {
            groups: arguments.wanted.groups,
            functions: Vec::new(),
            include: Vec::new(),
            exclude: Vec::new(),
        },
        last: false,
        sample: arguments.sample,
        duration: arguments.duration,
        output: arguments.output.clone(),
        command: Vec::new(),
    }
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
    let cost = pipeline.finish(counts, clocks.monotonic_ns + elapsed.as_nanos() as u64)?;
    progress::written(&arguments.output, elapsed);
    if is_sampled {
        progress::samples(&cost);
    }
    if let Some(counts) = traced {
        let is_over_time = !arguments.last && arguments.post_mortem.is_none();
        tell::summary(counts, is_over_time.then_some(elapsed));
    }
    progress::profiler(&cost, elapsed);
    Ok(())
}

/// The newest events that are there, without a change to what is on.
fn snapshot(arguments: &Args, output: Output) -> Result<()> {
    let guest = open(arguments)?;
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
    let origin = origin(arguments, title, "its own trace, a snapshot");
    let mut pipeline = Pipeline::start(output, clocks, &origin, is_vm, pid)?;
    kept.into_iter().for_each(|event| pipeline.event(event));
    finish(arguments, pipeline, Counts::default(), &clocks, start.elapsed(), Some(&counts), false)
}

/// What a guest left behind.
fn post_mortem(arguments: &Args, file: &Path, output: Output) -> Result<()> {
    let mut dump = trace::open_dump(file, arguments.symbols.as_deref())?;
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let origin = origin(arguments, format!("{name} (what a guest left behind)"), "its own trace, from a file");
    let clocks = read_clocks();
    let start = Instant::now();
    let mut pipeline = Pipeline::start(output, clocks, &origin, true, glass_guests::file::PROCESS)?;
    while dump.collect(ROUND, &mut |event| pipeline.event(event))? == Flow::More {}
    let read = dump.read_counts();
    let counts = LiveCounts { read, clock_error_ns: Some(u64::MAX), ..LiveCounts::default() };
    finish(arguments, pipeline, Counts::default(), &clocks, start.elapsed(), Some(&counts), false)?;
    if read.events == 0 {
        eprintln!("glass: the guest had written no events: none were on");
    }
    Ok(())
}

/// Switches all groups off: what a killed recorder left on, or what was on from the start.
fn switch_off(arguments: &Args) -> Result<()> {
    let guest = open(arguments)?;
    let title = guest.title.clone();
    let has_answered = trace::switch(guest, 0, OFF_PATIENCE)?;
    match has_answered {
        true => eprintln!("glass: {title} traces nothing any more"),
        false => eprintln!("glass: {title} will trace nothing from its next round on; it sleeps"),
    }
    Ok(())
}
