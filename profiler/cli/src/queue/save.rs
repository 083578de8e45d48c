//! Items of a queue as files.

use super::Progress;
use crate::console::say;
use crate::files;
use anyhow::{Context, Result, bail, ensure};
use glass_profiler_queue::{DataError, Entry, FileDisk, Queue};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

/// The version of the manifest.
const MANIFEST_VERSION: u32 = 1;

/// Writes one item.
pub(super) fn one(queue: &Queue<FileDisk>, image: &Path, id: u64, output: &Path, damaged: bool) -> Result<()> {
    let Some(entry) = queue.item(id) else {
        bail!("there is no item {id} in {}: see `glass queue ls`", image.display());
    };
    let progress = Progress::start();
    let mut done = 0;
    let mut copy = |writer: &mut dyn Write| {
        let read = queue.read(entry, damaged, &mut |piece| {
            done += piece.len() as u64;
            progress.show("saved", done, entry.length);
            writer.write_all(piece)
        });
        read.and_then(|_| writer.flush().map_err(DataError::Write))
    };
    let result = if output == Path::new("-") {
        match copy(&mut io::stdout().lock()) {
            // Its reader has seen enough.
            Err(DataError::Write(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            result => result.map_err(anyhow::Error::from),
        }
    } else {
        files::ensure_other(image, output, "disk")?;
        let mut fault = None;
        let written = files::write(output, |writer| match copy(writer) {
            // The file is kept, and the command fails all the same.
            Err(error @ DataError::Checksum { .. }) if damaged => {
                fault = Some(error);
                Ok(())
            }
            result => result.map_err(io::Error::other),
        });
        written.and(fault.map_or(Ok(()), |fault| Err(fault.into())))
    };
    progress.clear();
    result.with_context(|| format!("item {id} of {}", image.display()))
}

/// Writes all items, and a manifest of them.
pub(super) fn all(queue: &Queue<FileDisk>, image: &Path, folder: &Path, damaged: bool) -> Result<ExitCode> {
    let shown = folder.display();
    fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {shown}"))?;
    let mut found = fs::read_dir(folder).with_context(|| format!("cannot read the folder {shown}"))?;
    ensure!(found.next().is_none(), "the folder {shown} is not empty: name another one");
    let (progress, mut done) = (Progress::start(), 0);
    let entries = &queue.index.entries;
    let total = entries.iter().map(|entry| entry.length).sum();
    let mut items = Vec::new();
    let mut faults = 0;
    for entry in entries {
        let start = done;
        let saved = save(queue, entry, folder, damaged, &mut |bytes| {
            done += bytes;
            progress.show("saved", done, total);
        });
        let (item, fault) = saved.inspect_err(|_| progress.clear())?;
        done = start + entry.length;
        items.push(item);
        if let Some(fault) = fault {
            faults += 1;
            say!("glass: item {} of {}: {fault}", entry.id, image.display());
        }
    }
    progress.clear();
    let manifest = json!({
        "version": MANIFEST_VERSION, "commit": queue.index.sequence, "items": items, "faults": queue.faults,
    });
    files::write(&folder.join("manifest.json"), |writer| writeln!(writer, "{manifest:#}"))?;
    say!("glass: {} of {} items are in {shown}, and manifest.json", entries.len() - faults, entries.len());
    Ok(if faults == 0 && queue.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes one item into the folder; returns its line of the manifest, and what is wrong with it.
fn save(
    queue: &Queue<FileDisk>,
    entry: &Entry,
    folder: &Path,
    damaged: bool,
    progress: &mut dyn FnMut(u64),
) -> Result<(Value, Option<DataError>)> {
    let name = format!("item-{:010}", entry.id);
    let mut digest = Sha256::new();
    let mut fault = None;
    // Data that turns out to be damaged has never the name of an item.
    let part = folder.join(format!("{name}.damaged"));
    files::write(&part, |writer| {
        let read = queue.read(entry, damaged, &mut |piece| {
            digest.update(piece);
            progress(piece.len() as u64);
            writer.write_all(piece)
        });
        match read {
            Ok(_) => Ok(()),
            Err(DataError::Write(error)) => Err(error),
            Err(error) => {
                fault = Some(error);
                Ok(())
            }
        }
    })?;
    let cannot = || format!("cannot write into the folder {}", folder.display());
    let mut item = json!({ "id": entry.id, "bytes": entry.length, "xxh3_64": format!("{:016x}", entry.checksum) });
    match &fault {
        None => {
            fs::rename(&part, folder.join(&name)).with_context(cannot)?;
            let digest: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
            item["sha256"] = digest.into();
            item["file"] = name.into();
        }
        Some(fault) => {
            item["fault"] = fault.to_string().into();
            if damaged {
                item["file"] = format!("{name}.damaged").into();
            } else {
                fs::remove_file(&part).with_context(cannot)?;
            }
        }
    }
    Ok((item, fault))
}
