//! `size`: bytes of the queue's image, with symbols and without, against the same service as a process.

use crate::figure::Figure;
use crate::outcome::Outcome;
use crate::run::Run;
use anyhow::{Context, Result, bail};
use glass_tests::folder::Folder;
use glass_tests::programs;
use std::path::Path;
use std::process::Command;

/// Measures the built files.
pub fn run(outcome: &mut Outcome, _: &Run) -> Result<()> {
    let folder = Folder::new("bench-size")?;
    let image = programs::image("upload-queue").context("the image is not built")?;
    let process = programs::built("upload-queue").context("the process is not built")?;
    let process_bytes = stripped_bytes(&process, &folder)?;
    let figure = Figure::of("image.stripped_bytes", "bytes", &[stripped_bytes(&image, &folder)?]);
    outcome.add(figure.map(|figure| figure.against("the process, stripped", process_bytes)));
    let process_figure = Figure::of("process.stripped_bytes", "bytes", &[process_bytes]);
    outcome.add(process_figure);
    outcome.add(Figure::of("image.with_symbols_bytes", "bytes", &[length(&image)?]));
    outcome.note("the process also needs libc and a kernel; the image needs neither");
    Ok(())
}

fn length(path: &Path) -> Result<f64> {
    Ok(path.metadata().with_context(|| format!("cannot read {}", path.display()))?.len() as f64)
}

fn stripped_bytes(program: &Path, folder: &Folder) -> Result<f64> {
    let stripped = folder.file("stripped");
    let status = Command::new("strip").arg("-o").arg(&stripped).arg(program).status();
    match status.context("cannot run `strip`: install binutils")? {
        status if status.success() => length(&stripped),
        status => bail!("`strip` failed on {} ({status})", program.display()),
    }
}
