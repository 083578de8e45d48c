//! `glass diff`: compares two recordings, as a page or as a table.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::report::read;

/// Functions in the table that goes to the terminal.
const TOP_DEFAULT: usize = 30;

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
    #[arg(short, long, default_value = "diff.html")]
    output: PathBuf,
    /// Print a table instead of writing a page.
    #[arg(long, conflicts_with = "output")]
    text: bool,
    /// How many functions the table has.
    #[arg(long, default_value_t = TOP_DEFAULT, requires = "text")]
    top: usize,
}

/// Writes the page or prints the table.
pub fn run(arguments: Args) -> Result<()> {
    let a = read(&arguments.a)?;
    let b = read(&arguments.b)?;
    if arguments.text {
        print!("{}", glass_report::difference_text(&a, &b, arguments.top));
        return Ok(());
    }
    fs::write(&arguments.output, glass_report::difference_html(&a, &b))
        .with_context(|| format!("cannot write {}", arguments.output.display()))?;
    eprintln!("glass: {} and {} samples in {}", a.samples.len(), b.samples.len(), arguments.output.display());
    Ok(())
}
