//! `glass report`: shows a recording as a page or as text.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail, ensure};
use clap::ValueEnum as _;
use glass_profiler_core::model::Profile;
use glass_profiler_core::names::printable;
use glass_profiler_core::recording::Recording;
use glass_profiler_core::trace;
use glass_profiler_core::trace::model::Trace;
use glass_profiler_core::view::View as SamplesView;
use glass_profiler_report::trace::{HIDDEN_DEFAULT, Settings, View, text as trace_text};

use crate::console::{self, Busy, say};
use crate::files;
use crate::only::OnlyArgs;
use crate::open;

/// Functions in the table for the terminal.
const ROWS_DEFAULT: usize = 20;
/// Shortest call that is shown by default.
const MIN_CALL_NS: u64 = 10_000;

/// Shows a recording: as one HTML file that works offline, or as text.
#[derive(clap::Args)]
pub struct Args {
    /// The recording.
    file: PathBuf,
    /// Output file for the page.
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
    /// Open the page in a browser.
    #[arg(long, conflicts_with = "text")]
    open: bool,
    /// Print text instead of writing a page.
    #[arg(long, conflicts_with = "output")]
    text: bool,
    /// How many functions the table of samples has.
    #[arg(long, alias = "top", value_name = "N", default_value_t = ROWS_DEFAULT, requires = "text")]
    rows: usize,
    /// View of a trace as text, by default a summary of the recording; or, of samples of host and guest, what is shown of them: guest, host
    /// or merged. A page opens in it.
    #[arg(long)]
    view: Option<ViewName>,
    /// Smallest item to print. A share in percent (`--min 2`), for samples: print the call tree too, without nodes below that share. A time with its
    /// unit (`--min 10us`, the default for calls), for a trace: leave out shorter calls and shorter parts of a critical path.
    #[arg(long, value_name = "PERCENT|TIME", value_parser = parse_min, requires = "text")]
    min: Option<Min>,
    /// Event to count over time: a counter, "submit disk 0 write", or a part of such a name. `--view events` without it
    /// prints the list of events.
    #[arg(long, value_name = "NAME", requires = "text")]
    event: Option<String>,
    /// Span for the critical path or the calls: NAME (the longest), NAME#3 (the third) or NAME#median.
    #[arg(long, value_name = "NAME[#N]", requires = "text")]
    span: Option<String>,
    /// Crates whose functions are hidden in the calls, while their callees stay [default: core,alloc,std,smoltcp]; none: hide
    /// nothing.
    #[arg(long, value_name = "LIBRARIES", value_delimiter = ',', requires = "text")]
    hide: Option<Vec<String>>,
    #[command(flatten)]
    only: OnlyArgs,
}

/// A view, by its name on the command line.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum ViewName {
    /// Contents of the trace, dominant waits, losses.
    Summary,
    /// Calls: start, nested function, duration; at least --min.
    Calls,
    /// Cumulative time of functions, or of tasks, waits and devices if no functions were traced.
    Cumulative,
    /// Tasks: runs and waits.
    Tasks,
    /// Waits: on what, how long, and what ended them.
    Waits,
    /// Devices: requests, bytes, latency, depth.
    Devices,
    /// Number of events over time, with gaps explained.
    Events,
    /// Critical path of one span.
    Path,
    /// Timeline of cores, tasks and devices as text.
    Timeline,
    /// Samples of the guest only: stacks without the VMM and the host's kernel (the default).
    Guest,
    /// Samples of the host only: the VMM, its helpers and the host's kernel; one box for the rest of a vCPU's time.
    Host,
    /// Samples of both, merged: the guest's function that caused an exit, then the VMM, then the host's kernel.
    Merged,
}

impl ViewName {
    /// The view of a trace.
    fn of_trace(self) -> Option<View> {
        Some(match self {
            ViewName::Summary => View::Summary,
            ViewName::Calls => View::Calls,
            ViewName::Cumulative => View::Cumulative,
            ViewName::Tasks => View::Tasks,
            ViewName::Waits => View::Waits,
            ViewName::Devices => View::Devices,
            ViewName::Events => View::Events,
            ViewName::Path => View::Path,
            ViewName::Timeline => View::Timeline,
            ViewName::Guest | ViewName::Host | ViewName::Merged => return None,
        })
    }

    /// The view of host and guest.
    fn of_samples(self) -> Option<SamplesView> {
        match self {
            ViewName::Guest => Some(SamplesView::Guest),
            ViewName::Host => Some(SamplesView::Host),
            ViewName::Merged => Some(SamplesView::Merged),
            _ => None,
        }
    }
}

/// The minimum of the shown items.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Min {
    /// Of the samples in which code ran.
    Percent(f64),
    /// Of calls and parts, in nanoseconds.
    Time(u64),
}

fn parse_min(text: &str) -> Result<Min, String> {
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let wrong = || "neither a share in percent (2) nor a time (10us, 500ns, 2ms, 1s)".to_owned();
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let nanoseconds = match unit.trim() {
        "" | "%" if (0.0..=100.0).contains(&number) => return Ok(Min::Percent(number)),
        "" | "%" => return Err(format!("a share in percent is a number from 0 to 100, not {number}")),
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return Err(wrong()),
    };
    Ok(Min::Time((number * nanoseconds) as u64))
}

/// Writes the page or prints the text.
pub fn run(arguments: Args) -> Result<()> {
    if let Some(view) = arguments.view.filter(|view| view.of_trace().is_some() && !arguments.text) {
        let name = view.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned());
        bail!("--view {name} is a text: give --text, too");
    }
    if !arguments.text {
        files::ensure_other(&arguments.file, &arguments.output, "recording")?;
    }
    let recording = read(&arguments.file, Some(&arguments.only))?;
    if !arguments.text {
        write_page(&recording, side(&arguments), &arguments.output)?;
        if arguments.open {
            open::show(&arguments.output);
        }
        return Ok(());
    }
    let (trace, profile) = (recording.trace.as_ref(), &recording.of.profile);
    let text = text(&arguments, profile, trace)?;
    // The text of samples contains the warnings of the recording.
    if view(&arguments).is_some() || !shows_samples(profile, trace) {
        files::warn(&arguments.file, &recording.of);
    }
    console::print(&text)
}

/// Makes the page of a recording beside it, and opens it.
pub(crate) fn open(file: &Path) -> Result<()> {
    let page = open::page_of(file);
    write_page(&read(file, None)?, SamplesView::default(), &page)?;
    open::show(&page);
    Ok(())
}

/// A recording, and the trace that its events make.
struct Read {
    of: Recording,
    trace: Option<Trace>,
}

/// Reads a recording, without the samples that `only` leaves out.
fn read(file: &Path, only: Option<&OnlyArgs>) -> Result<Read> {
    let (_, mut of) = files::open(file)?;
    if let Some(only) = only {
        only.apply(file, &mut of)?;
    }
    let _busy = Busy::with("reading events");
    let trace = (!of.trace.is_empty()).then(|| trace::build(&of.trace));
    Ok(Read { of, trace })
}

fn write_page(Read { of: recording, trace }: &Read, side: SamplesView, output: &Path) -> Result<()> {
    let busy = Busy::with(&format!("making {}", output.display()));
    let profile = &recording.profile;
    let page = match trace {
        Some(trace) => glass_profiler_report::trace_html_in(profile, trace, side),
        None => glass_profiler_report::html_in(profile, side),
    };
    files::write(output, |file| file.write_all(page.as_bytes()))?;
    drop(busy);
    let events = trace.as_ref().map_or(String::new(), |trace| format!(" and {} events", trace.event_count));
    let samples = match profile.samples.len() {
        1 => "1 sample".to_owned(),
        samples => format!("{samples} samples"),
    };
    let warnings = files::warnings(recording);
    let where_they_are = if warnings.is_empty() { "" } else { ", which lists them below its title" };
    say!("glass: {samples}{events}{warnings} in {}{where_they_are}", output.display());
    Ok(())
}

/// The requested view of host and guest.
fn side(arguments: &Args) -> SamplesView {
    arguments.view.and_then(ViewName::of_samples).unwrap_or_default()
}

/// The requested view of a trace, by its name or by its options.
fn view(arguments: &Args) -> Option<View> {
    match (arguments.view.and_then(ViewName::of_trace), &arguments.event, &arguments.span) {
        (Some(view), _, _) => Some(view),
        (None, Some(_), _) => Some(View::Events),
        (None, None, Some(_)) => Some(View::Path),
        (None, None, None) => None,
    }
}

fn shows_samples(profile: &Profile, trace: Option<&Trace>) -> bool {
    trace.is_none() || !profile.samples.is_empty()
}

fn text(arguments: &Args, profile: &Profile, trace: Option<&Trace>) -> Result<String> {
    let Some(view) = view(arguments) else { return overview(arguments, profile, trace) };
    let Some(trace) = trace else {
        bail!(
            "{} holds samples only: record with `glass trace`, or `glass record --trace`, for what --view, --event and --span show",
            arguments.file.display()
        );
    };
    let min_ns = match (arguments.min, view) {
        (Some(Min::Time(min_ns)), _) => min_ns,
        (Some(Min::Percent(_)), _) => {
            bail!("--min of a trace is a time, for example 10us: samples have shares, calls have durations")
        }
        (None, View::Calls) => MIN_CALL_NS,
        (None, _) => 0,
    };
    let hide = match &arguments.hide {
        Some(hide) if hide == &["none"] => Vec::new(),
        Some(hide) => hide.clone(),
        None => HIDDEN_DEFAULT.map(String::from).to_vec(),
    };
    let settings = Settings { min_ns, hide, event: arguments.event.clone(), span: arguments.span.clone() };
    trace_text(trace, view, &settings).map_err(|error| anyhow!(error))
}

/// The contents of the recording: samples, a trace, or both.
fn overview(arguments: &Args, profile: &Profile, trace: Option<&Trace>) -> Result<String> {
    let mut out = String::new();
    if shows_samples(profile, trace) {
        let viewed = side(arguments).of(profile);
        let profile = &viewed.profile;
        out = match arguments.min {
            Some(Min::Percent(min)) => glass_profiler_report::text_with_tree(profile, arguments.rows, min),
            Some(Min::Time(_)) if trace.is_none() => {
                bail!(
                    "--min of samples is a share in percent, for example 2: no call has a duration in {}",
                    arguments.file.display()
                )
            }
            _ => glass_profiler_report::text(profile, arguments.rows),
        };
    }
    if let Some(trace) = trace {
        match out.is_empty() {
            true if !profile.origin.guest.is_empty() => {
                out.push_str(&format!("{}\n", printable(&profile.origin.guest)))
            }
            true => {}
            false => out.push('\n'),
        }
        out.push_str(&glass_profiler_report::trace::summary(trace));
    }
    ensure!(!out.is_empty(), "there is nothing in {}", arguments.file.display());
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_is_a_share_or_a_time() {
        assert_eq!(parse_min("2"), Ok(Min::Percent(2.0)));
        assert_eq!(parse_min("0.5%"), Ok(Min::Percent(0.5)));
        assert_eq!(parse_min("10us"), Ok(Min::Time(10_000)));
        assert_eq!(parse_min("1.5 ms"), Ok(Min::Time(1_500_000)));
        assert_eq!(parse_min("500ns"), Ok(Min::Time(500)));
        for wrong in ["", "us", "10 minutes", "200", "-1", "1e3"] {
            assert!(parse_min(wrong).is_err(), "{wrong}");
        }
    }
}
