//! `glass diff`: compares recordings, as a page or as a table.

use std::borrow::Cow;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Result, bail};
use glass_profiler_core::format::count;
use glass_profiler_core::model::Profile;
use glass_profiler_core::trace::{self, model::Trace};
use glass_profiler_core::view::View;
use glass_profiler_report::Side;

use crate::console::{self, Busy, say};
use crate::files;
use crate::host_view::HostView;
use crate::only::OnlyArgs;
use crate::open;

/// Functions in the table that goes to the terminal.
const ROWS_DEFAULT: usize = 30;

/// Compares recordings: where B spends more time than A, and where less.
///
/// Shares are relative to the samples of each recording in which code ran, so duration and rate do not matter. Traces are compared by the median and
/// p99 of their spans, waits and device requests. Each change comes with its statistical noise: `~` marks a change
/// within it, `?` one that may be chance among many.
///
/// Runs of one program differ, too. Several recordings a side show by how much: `glass diff A1 A2 A3 -- B1 B2 B3`.
#[derive(clap::Args)]
#[command(override_usage = "glass diff [OPTIONS] A B\n       glass diff [OPTIONS] A1 A2 ... -- B1 B2 ...")]
pub struct Args {
    /// The recording from before the change, and the one from after it; or several from before.
    #[arg(required = true, value_name = "A")]
    a: Vec<PathBuf>,
    /// Several recordings from after the change.
    #[arg(last = true, value_name = "B")]
    b: Vec<PathBuf>,
    /// Where to write the page.
    #[arg(short, long, value_name = "FILE", default_value = "diff.html")]
    output: PathBuf,
    /// Open the page in a browser.
    #[arg(long, conflicts_with = "text")]
    open: bool,
    /// Print a table instead of writing a page.
    #[arg(long, conflicts_with = "output")]
    text: bool,
    /// How many functions the table has.
    #[arg(long, alias = "top", value_name = "N", default_value_t = ROWS_DEFAULT, requires = "text")]
    rows: usize,
    /// What to compare of recordings of host and guest.
    #[arg(long, value_enum, default_value_t = HostView::Guest)]
    view: HostView,
    #[command(flatten)]
    only: OnlyArgs,
}

/// Writes the page or prints the table.
pub fn run(arguments: Args) -> Result<()> {
    let output = &arguments.output;
    let (a, b) = match (&arguments.a[..], &arguments.b[..]) {
        ([a, b], []) => (std::slice::from_ref(a), std::slice::from_ref(b)),
        (_, []) => bail!("give two recordings (glass diff A B), or those of each side (glass diff A1 A2 -- B1 B2)"),
        sides => sides,
    };
    if !arguments.text {
        a.iter().chain(b).try_for_each(|file| files::ensure_other(file, output, "recording"))?;
    }
    let view = arguments.view.into();
    let (a, b) = (Compared::read(a, view, &arguments.only)?, Compared::read(b, view, &arguments.only)?);
    let (has_samples, has_traces) = (a.has_running() && b.has_running(), a.trace.is_some() && b.trace.is_some());
    if !has_samples && !has_traces {
        bail!("there is nothing to compare: {} {}, {} {}", a.names, a.has(), b.names, b.has());
    }
    if arguments.text {
        let mut out = String::new();
        if has_samples {
            out.push_str(&glass_profiler_report::difference_text(&a.profiles(), &b.profiles(), arguments.rows));
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
    if arguments.open {
        open::show(output);
    }
    Ok(())
}

/// The recordings of one side.
struct Compared {
    profiles: Vec<Profile>,
    /// Of the only recording. How much traces of several runs differ is not compared.
    trace: Option<Trace>,
    /// The names of their files.
    names: String,
}

impl Compared {
    /// Of host and guest, what the view shows; of all processes and threads, those that are selected.
    fn read(paths: &[PathBuf], view: View, only: &OnlyArgs) -> Result<Compared> {
        let (mut profiles, mut traced) = (Vec::new(), None);
        for path in paths {
            let (_, mut recording) = files::open(path)?;
            only.apply(path, &mut recording)?;
            traced = Some(recording.trace).filter(|trace| !trace.is_empty() && paths.len() == 1);
            // Without a side of the host the profile is not copied.
            let viewed = match view.of(&recording.profile).profile {
                Cow::Owned(viewed) => Some(viewed),
                Cow::Borrowed(_) => None,
            };
            profiles.push(viewed.unwrap_or(recording.profile));
        }
        let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        Ok(Compared { profiles, trace: traced.map(|trace| trace::build(&trace)), names: names.join(", ") })
    }

    /// Whether each recording has samples of running code.
    fn has_running(&self) -> bool {
        self.profiles.iter().all(|profile| profile.counted().next().is_some())
    }

    /// What there is, for one who expects something else.
    fn has(&self) -> &'static str {
        match (self.has_running(), self.trace.is_some()) {
            (true, true) => "has samples and a trace",
            (true, false) if self.profiles.len() > 1 => "have samples (traces are compared one with one)",
            (true, false) => "has samples of running code and no trace",
            (false, true) => "has a trace and no samples of running code",
            (false, false) => "has no samples of running code (record for longer, or while it works)",
        }
    }

    fn profiles(&self) -> Vec<&Profile> {
        self.profiles.iter().collect()
    }

    fn side(&self) -> Side<'_> {
        Side { profiles: self.profiles(), trace: self.trace.as_ref() }
    }

    /// "1,024 samples", "1,829 events".
    fn described(&self) -> String {
        let samples = self.profiles.iter().map(|profile| profile.samples.len() as u64).sum::<u64>();
        match &self.trace {
            Some(trace) if samples == 0 => format!("{} events", count(trace.event_count)),
            _ => format!("{} samples", count(samples)),
        }
    }
}
