//! `glass diff`: compares two recordings, as a page or as a table.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use glass_profiler_core::format::count;
use glass_profiler_core::model::{Profile, State};
use glass_profiler_core::trace::{self, model::Trace};
use glass_profiler_report::Side;

use crate::console::{self, Busy, say};
use crate::files;

/// Functions in the table that goes to the terminal.
const ROWS_DEFAULT: usize = 30;

/// Compares two recordings: where B spends more of its time than A, and where less.
///
/// Shares are relative to the running samples of each recording, so duration and rate do not matter. Traces are compared by the median and
/// p99 of their spans, waits and device requests. Each change comes with its statistical noise: `~` marks a change
/// within two standard errors, `?` one within 3.5.
#[derive(clap::Args)]
pub struct Args {
    /// The recording from before the change.
    a: PathBuf,
    /// The recording from after it.
    b: PathBuf,
    /// Where to write the page.
    #[arg(short, long, value_name = "FILE", default_value = "diff.html")]
    output: PathBuf,
    /// Print a table instead of writing a page.
    #[arg(long, conflicts_with = "output")]
    text: bool,
    /// How many functions the table has.
    #[arg(long, alias = "top", value_name = "N", default_value_t = ROWS_DEFAULT, requires = "text")]
    rows: usize,
}

/// Writes the page or prints the table.
pub fn run(arguments: Args) -> Result<()> {
    let output = &arguments.output;
    if !arguments.text {
        [&arguments.a, &arguments.b].into_iter().try_for_each(|file| files::ensure_other(file, output, "recording"))?;
    }
    let [a, b] = [&arguments.a, &arguments.b].map(|file| read(file));
    let (a, b) = (a?, b?);
    let has_samples = a.has_running() && b.has_running();
    let has_traces = a.trace.is_some() && b.trace.is_some();
    ensure!(
        has_samples || has_traces,
        "{} and {} have neither samples of running code nor traces to compare: record both for longer, or while they work",
        arguments.a.display(),
        arguments.b.display()
    );
    if arguments.text {
        let mut out = String::new();
        if has_samples {
            out.push_str(&glass_profiler_report::difference_text(&a.profile, &b.profile, arguments.rows));
        }
        if let (Some(a), Some(b)) = (&a.trace, &b.trace) {
            out.push_str(if has_samples { "\n" } else { "" });
            out.push_str(&glass_profiler_report::trace::difference::text(a, b));
        }
        return console::print(&out);
    }
    let page = {
        let _busy = Busy::with(&format!("making {}", output.display()));
        glass_profiler_report::recordings_difference(a.side(), b.side())
    };
    files::write(output, |file| file.write_all(page.as_bytes()))?;
    say!("glass: {} and {} in {}", a.described(), b.described(), output.display());
    Ok(())
}

/// A recording that is compared.
struct Compared {
    profile: Profile,
    trace: Option<Trace>,
}

impl Compared {
    fn has_running(&self) -> bool {
        self.profile.samples.iter().any(|sample| sample.state == State::Running)
    }

    fn side(&self) -> Side<'_> {
        Side { profile: &self.profile, trace: self.trace.as_ref() }
    }

    /// "1,024 samples", "1,829 events".
    fn described(&self) -> String {
        match &self.trace {
            Some(trace) if self.profile.samples.is_empty() => format!("{} events", count(trace.event_count)),
            _ => format!("{} samples", count(self.profile.samples.len() as u64)),
        }
    }
}

fn read(path: &Path) -> Result<Compared> {
    let (_, recording) = files::open(path)?;
    let trace = (!recording.trace.is_empty()).then(|| trace::build(&recording.trace));
    Ok(Compared { profile: recording.profile, trace })
}
