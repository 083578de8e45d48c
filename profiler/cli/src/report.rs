//! `glass report`: turns a recording into a page or a table.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use glass_guests::files::HostFiles;
use glass_profile::model::Profile;
use glass_profile::recording;

/// Functions in the table that goes to the terminal.
const TOP_DEFAULT: usize = 20;

/// Shows a recording: as one HTML file that works offline, or as a table.
#[derive(clap::Args)]
pub struct Args {
    /// The recording.
    file: PathBuf,
    /// Where to write the page.
    #[arg(short, long, default_value = "report.html")]
    output: PathBuf,
    /// Print a table instead of writing a page.
    #[arg(long, conflicts_with = "output")]
    text: bool,
    /// How many functions the table has.
    #[arg(long, default_value_t = TOP_DEFAULT, requires = "text")]
    top: usize,
    /// Print the call tree too: nodes with at least this share of the running samples.
    #[arg(long, value_name = "PERCENT", requires = "text")]
    min: Option<f64>,
}

/// Writes the page or prints the table.
pub fn run(arguments: Args) -> Result<()> {
    let profile = read(&arguments.file)?;
    if let Some(min) = arguments.min {
        ensure!((0.0..=100.0).contains(&min), "--min is a share in percent: give a number from 0 to 100, not {min}");
        print!("{}", glass_report::text_with_tree(&profile, arguments.top, min));
        return Ok(());
    }
    if arguments.text {
        print!("{}", glass_report::text(&profile, arguments.top));
        return Ok(());
    }
    fs::write(&arguments.output, glass_report::html(&profile))
        .with_context(|| format!("cannot write {}", arguments.output.display()))?;
    eprintln!("glass: {} samples in {}", profile.samples.len(), arguments.output.display());
    Ok(())
}

/// Reads a recording and prints its warnings.
pub(crate) fn read(file: &Path) -> Result<Profile> {
    let path = file.display();
    let bytes =
        fs::read(file).with_context(|| format!("cannot read {path} (give a file that `glass record` wrote)"))?;
    let profile = recording::read(&bytes, &mut HostFiles).map_err(|error| anyhow!("{path} {error}"))?;
    for warning in &profile.warnings {
        eprintln!("glass: warning: {path}: {warning}");
    }
    Ok(profile)
}
