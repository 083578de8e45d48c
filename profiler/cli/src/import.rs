//! `glass import`: traces of other tracers as recordings, so that our reports show them.

use std::fs;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, ensure};
use glass_export::mirage;
use glass_profile::model::{Cost, Origin};
use glass_profile::recording::{Clocks, Writer};
use glass_report::names::printable;

use crate::record::output::Output;

/// Warnings that are kept in the recording and shown.
const WARNINGS_MAX: usize = 50;

/// Turns a trace of another tracer into a recording. Reads files of mirage-profile (Lwt, MirageOS).
#[derive(clap::Args)]
pub struct Args {
    /// The trace.
    file: PathBuf,
    /// Where to write the recording.
    #[arg(short, long, default_value = "imported.pftrace")]
    output: PathBuf,
}

/// Writes the recording.
pub fn run(arguments: Args) -> Result<()> {
    let Args { file, output } = arguments;
    let shown = file.display();
    let bytes = fs::read(&file).with_context(|| format!("cannot read {shown} (give a file of mirage-profile)"))?;
    let is_itself = fs::canonicalize(&file).ok().is_some_and(|file| fs::canonicalize(&output).ok() == Some(file));
    ensure!(!is_itself, "{} is the trace itself: give another name with --output", output.display());
    let imported = mirage::import(&bytes)
        .ok_or_else(|| anyhow!("{shown} is no trace of mirage-profile: there is no packet of its format in it"))?;
    ensure!(imported.events > 0, "{shown} holds no events: {}", imported.warnings.join("; "));
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let origin = Origin {
        guest: format!("{} (imported)", printable(&name)),
        backend: "mirage-profile".to_owned(),
        recorder: concat!("glass ", env!("CARGO_PKG_VERSION")).to_owned(),
        ..Default::default()
    };
    let cannot = || format!("cannot write {}", output.display());
    let target = Output::prepare(&output)?.begin().with_context(cannot)?;
    let mut writer = Writer::start(BufWriter::new(target), Clocks::default(), &origin, false).with_context(cannot)?;
    for piece in &imported.pieces {
        writer.trace(piece).with_context(cannot)?;
    }
    let more = imported.warnings.len().saturating_sub(WARNINGS_MAX);
    let more = (more > 0).then(|| format!("{more} more things are wrong with the file"));
    for warning in imported.warnings.iter().take(WARNINGS_MAX).chain(&more) {
        eprintln!("glass: warning: {warning}");
        writer.warning(warning).with_context(cannot)?;
    }
    writer.cost(&Cost::default(), imported.duration_ns, true).with_context(cannot)?;
    writer.into_inner().flush().with_context(cannot)?;
    eprintln!("glass: {} events in {}; see them with `glass report`", imported.events, output.display());
    Ok(())
}
