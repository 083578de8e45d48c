//! `glass diff`: compares two recordings, as a page or as a table.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use glass_profile::model::{Profile, State};

use crate::console::{self, Busy, say};
use crate::files;

/// Functions in the table that goes to the terminal.
const ROWS_DEFAULT: usize = 30;

/// Compares two recordings: where B spends more of its time than A, and where less.
///
/// Shares are of running samples, each recording is 100 %, so neither length nor rate matters. Each change
/// comes with the noise that two recordings of the same thing would show.
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
    let (a, b) = (read(&arguments.a)?, read(&arguments.b)?);
    if arguments.text {
        return console::print(&glass_report::difference_text(&a, &b, arguments.rows));
    }
    let page = {
        let _busy = Busy::with(&format!("making {}", output.display()));
        glass_report::difference_html(&a, &b)
    };
    files::write(output, |file| file.write_all(page.as_bytes()))?;
    say!("glass: {} and {} samples in {}", a.samples.len(), b.samples.len(), output.display());
    Ok(())
}

/// The samples of a recording, of which some can be compared.
fn read(path: &Path) -> Result<Profile> {
    let (_, recording) = files::open(path)?;
    let is_running = |sample: &glass_profile::model::Sample| sample.state == State::Running;
    ensure!(
        recording.profile.samples.iter().any(is_running),
        "{} has no sample of running code, so that there is nothing to compare: record for longer, or while it works",
        path.display()
    );
    Ok(recording.profile)
}
