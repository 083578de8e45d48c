//! `glass import`: traces of other tracers as recordings, so that our reports show them.

use std::path::PathBuf;

use anyhow::{Result, anyhow, ensure};
use glass_profiler_core::model::{Cost, Origin};
use glass_profiler_core::names::printable;
use glass_profiler_core::recording::{Clocks, Writer};
use glass_profiler_core::trace::raw::Piece;
use glass_profiler_export::mirage;

use crate::console::{Busy, say};
use crate::files;

/// Warnings that are kept in the recording and shown.
const WARNINGS_MAX: usize = 50;

/// Converts a trace of mirage-profile (Lwt, MirageOS) to a recording.
#[derive(clap::Args)]
pub struct Args {
    /// The trace.
    file: PathBuf,
    /// Output file for the recording.
    #[arg(short, long, value_name = "FILE", default_value = "imported.pftrace")]
    output: PathBuf,
}

/// Writes the recording.
pub fn run(arguments: Args) -> Result<()> {
    let Args { file, output } = arguments;
    let shown = file.display();
    let busy = Busy::with(&format!("reading {shown}"));
    let bytes = files::read(&file, "give a file of mirage-profile")?;
    files::ensure_other(&file, &output, "trace")?;
    let imported = mirage::import(&bytes)
        .ok_or_else(|| anyhow!("{shown} is not a trace of mirage-profile: it has no packet of that format"))?;
    ensure!(imported.events > 0, "{shown} holds no events: {}", imported.warnings.join("; "));
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let origin = Origin {
        guest: format!("{} (imported)", printable(&name)),
        backend: "mirage-profile".to_owned(),
        recorder: concat!("glass ", env!("CARGO_PKG_VERSION")).to_owned(),
        ..Default::default()
    };
    let more = imported.warnings.len().saturating_sub(WARNINGS_MAX);
    let more = (more > 0).then(|| format!("{more} more problems of the file"));
    let warnings: Vec<&String> = imported.warnings.iter().take(WARNINGS_MAX).chain(&more).collect();
    files::write(&output, |file| {
        let mut writer = Writer::start(file, Clocks::default(), &origin)?;
        imported.pieces.iter().try_for_each(|piece| writer.trace(piece))?;
        warnings.iter().try_for_each(|warning| writer.warning(warning))?;
        writer.cost(&Cost::default(), imported.duration_ns, true)
    })?;
    drop(busy);
    warnings.iter().for_each(|warning| say!("glass: warning: {shown}: {}", printable(warning)));
    let recorded: usize = imported
        .pieces
        .iter()
        .map(|piece| if let Piece::Chunk { events, .. } = piece { events.len() } else { 0 })
        .sum();
    say!(
        "glass: the {} events of {shown} are {recorded} in {}; see them with `glass report`",
        imported.events,
        output.display()
    );
    Ok(())
}
