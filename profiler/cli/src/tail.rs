//! `glass tail`: the events of a service live, one line each.

mod print;
pub(crate) mod stream;

use std::io::{self, BufWriter, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use glass_profiler_core::event::Event;
use glass_profiler_core::format::count;
use glass_profiler_core::names::printable;
use glass_profiler_core::words::{Describer, Line};
use glass_profiler_guests::systems::glasshouse::Live;
use glass_profiler_guests::{Flow, Source, read_clocks};

use crate::arguments::parse_duration;
use crate::console::{self, say};
use crate::jail;
use crate::record::print_command;
use crate::target::GuestArgs;
use crate::trace::groups::{GroupArgs, Groups};
use crate::trace::open_any;
use print::{Filter, Kinds, Printer, parse_kinds};
use stream::{Item, Stream, What};

/// How long to wait for more events before printing.
const ROUND: Duration = Duration::from_millis(50);

/// Prints the events of a Glasshouse service live, a line each.
///
/// A line shows the time since the start, the core, the task and the event. Lost events are printed as a line of their own.
#[derive(clap::Args)]
#[command(override_usage = "glass tail [OPTIONS] <--pid PID | --name NAME | -- COMMAND...>")]
pub struct Args {
    #[command(flatten)]
    guest: GuestArgs,
    /// The image of a VM, if glass cannot find it.
    #[arg(long, value_name = "FILE", conflicts_with = "command")]
    symbols: Option<std::path::PathBuf>,
    #[command(flatten)]
    wanted: GroupArgs,
    /// Only events of this task, or about it: a part of its name, or its number as `#4`.
    #[arg(long, value_name = "NAME")]
    task: Option<String>,
    /// Only these kinds of events, separated by commas: poll_begin, wake, submit, ...; `poll` selects all that start with it.
    #[arg(long, value_name = "KINDS", value_parser = parse_kinds)]
    kind: Option<Kinds>,
    /// Only lines that contain this text, ignoring case.
    #[arg(long, value_name = "TEXT")]
    grep: Option<String>,
    /// Stop after so many lines.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Stop after this time, in seconds or with a unit (500ms, 2m); without it, at Ctrl-C or when the VM or process ends.
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration)]
    duration: Option<Duration>,
    /// Command to run and follow from its start.
    #[arg(last = true)]
    command: Vec<std::ffi::OsString>,
}

/// Has Ctrl-C and its like set a flag.
pub(crate) fn watch_signals() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, stop.clone()).context("cannot watch for Ctrl-C")?;
    }
    Ok(stop)
}

/// Prints until the time limit, the line limit, the end of the guest or Ctrl-C.
pub fn run(arguments: Args) -> Result<()> {
    let stop = watch_signals()?;
    ensure!(arguments.wanted.groups() != Groups(0), "nothing to follow: --groups names no group of events");
    let start_ns = read_clocks().monotonic_ns;
    let (symbols, groups) = (arguments.symbols.as_deref(), arguments.wanted.groups());
    let (guest, child) = open_any(&arguments.guest, symbols, &arguments.command, groups, &stop)?;
    let (title, pid) = (guest.title.clone(), guest.pid);
    let settings = arguments.wanted.settings(&guest)?.of_command(child.is_some());
    let mut live = Live::new(guest, settings)?;
    jail::enter_and_say();
    let columns = console::output_columns();
    let mut shown = Shown {
        start_ns,
        stream: Stream::default(),
        describer: Describer::default(),
        filter: Filter::new(arguments.task.as_deref(), arguments.kind, arguments.grep.as_deref()),
        printer: Printer {
            output: BufWriter::new(io::stdout()),
            has_colours: columns.is_some() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
            columns: columns.map(usize::from),
        },
        lines: 0,
        lines_max: arguments.count.unwrap_or(u64::MAX),
    };
    let start = Instant::now();
    let mut result = live.announce(&mut |event| shown.event(event)).map(|()| Flow::More);
    let mut printed = Ok(());
    while let Ok(Flow::More) = result {
        let left = arguments.duration.map(|duration| duration.saturating_sub(start.elapsed()));
        let is_enough = shown.lines >= shown.lines_max || left.is_some_and(|left| left.is_zero());
        if is_enough || printed.is_err() || stop.load(Ordering::Relaxed) {
            break;
        }
        let wait = left.map_or(ROUND, |left| left.min(ROUND));
        result = live.collect(wait, &mut |event| shown.event(event));
        printed = shown.print(false);
    }
    // Detach from the guest first.
    let detached = live.detach(&mut |event| shown.event(event));
    if printed.is_ok() {
        printed = shown.print(true);
    }
    console::printed(printed)?;
    let lost = shown.stream.lost;
    say!("glass: {} of {} events shown, {} lost", count(shown.lines), count(shown.stream.events), count(lost));
    match (&result, child) {
        (Ok(Flow::Ended), _) => say!("glass: {title} has ended"),
        (_, Some(_)) => print_command(pid, &title),
        _ => {}
    }
    result?;
    Ok(detached?)
}

/// The events, and the filter.
struct Shown<W> {
    start_ns: u64,
    stream: Stream,
    describer: Describer,
    filter: Filter,
    printer: Printer<W>,
    lines: u64,
    lines_max: u64,
}

impl<W: Write> Shown<W> {
    fn event(&mut self, event: Event) {
        match event {
            Event::Trace(piece) => self.stream.piece(piece),
            Event::Warning(text) => say!("glass: warning: {}", printable(&text)),
            _ => {}
        }
    }

    /// Prints complete events; at the end, everything.
    fn print(&mut self, is_end: bool) -> io::Result<()> {
        let items = self.stream.take(is_end);
        let Shown { start_ns, stream, describer, filter, printer, lines, lines_max } = self;
        // No event is older than the start; a VM's clock that is not known well yet may say so.
        let since = |ticks| stream.monotonic_ns(ticks).map(|ns| (ns - i128::from(*start_ns)).max(0));
        let mut described: Vec<Line> = Vec::new();
        let mut show = |printer: &mut Printer<W>, described: &mut Vec<Line>| -> io::Result<()> {
            for line in described.drain(..).filter(|line| filter.has(line)) {
                if *lines < *lines_max {
                    *lines += 1;
                    printer.line(since(line.ticks), stream.ring(line.ring), &line)?;
                }
            }
            Ok(())
        };
        for Item { ticks, ring, what } in items {
            match what {
                What::Event(event) => describer.push(ring, &event, stream, &mut |line| described.push(line)),
                What::Lost(events) => {
                    describer.forget(ring, stream, &mut |line| described.push(line));
                    show(printer, &mut described)?;
                    printer.lost(since(ticks), stream.ring(ring), events)?;
                }
            }
            show(printer, &mut described)?;
        }
        if is_end {
            (0..stream.rings()).for_each(|ring| describer.finish(ring, stream, &mut |line| described.push(line)));
            show(printer, &mut described)?;
        }
        printer.output.flush()
    }
}
