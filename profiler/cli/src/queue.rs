//! `glass queue`: the disk of an upload queue that does not run.

mod progress;
mod save;

use crate::console::{self, say};
use anyhow::{Context, Result, anyhow, bail};
use glass_lib_lock::Access;
use glass_profiler_queue::{BLOCK_BYTES, Entry, FileDisk, Queue, check};
use progress::Progress;
use serde_json::json;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Checks the disk of an upload queue that does not run, and saves its items.
///
/// The disk is a raw image or a block device, and is only read. One that a queue uses is refused: stop the queue, or copy the disk.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Compares all of a queue with its checksums, and prints what is wrong.
    ///
    /// Exit status: 0 nothing is wrong; 1 something is, with a line for each, or the disk cannot be read.
    Fsck {
        /// The disk.
        image: PathBuf,
    },
    /// Lists the items, oldest first.
    Ls {
        /// The disk.
        image: PathBuf,
        /// Print JSON, for scripts.
        #[arg(long)]
        json: bool,
    },
    /// Writes one item into a file.
    Get {
        /// The disk.
        image: PathBuf,
        /// Number of the item, as `glass queue ls` has it.
        id: u64,
        /// Output file; - is standard output.
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
        /// Also if the checksum of the item is wrong.
        #[arg(long)]
        damaged: bool,
    },
    /// Writes all items into a folder, with a manifest.
    ///
    /// manifest.json has the number, the length, the checksums and the file of each item, oldest first. It is written last: a folder without one is not whole.
    Export {
        /// The disk.
        image: PathBuf,
        /// A folder that is empty, or is not there yet.
        folder: PathBuf,
        /// Also items whose checksum is wrong, as item-ID.damaged.
        #[arg(long)]
        damaged: bool,
    },
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    match &args.action {
        Action::Fsck { image } => fsck(image),
        Action::Ls { image, json } => list(image, *json).map(|()| ExitCode::SUCCESS),
        Action::Get { image, id, output, damaged } => {
            save::one(&open(image)?, image, *id, output, *damaged).map(|()| ExitCode::SUCCESS)
        }
        Action::Export { image, folder, damaged } => save::all(&open(image)?, image, folder, *damaged),
    }
}

/// Opens a disk that no queue uses, and keeps queues from it.
fn disk(path: &Path) -> Result<FileDisk> {
    let cannot = || format!("cannot open the disk {}", path.display());
    let kind = fs::metadata(path).with_context(cannot)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        bail!("{}: it is neither a file nor a block device", cannot());
    }
    let file = File::open(path).with_context(cannot)?;
    glass_lib_lock::lock(&file, Access::Read).map_err(|refused| anyhow!(refused.sentence(path)))?;
    FileDisk::new(file).with_context(cannot)
}

/// Opens a queue, and prints what is wrong with its index.
fn open(path: &Path) -> Result<Queue<FileDisk>> {
    let queue = Queue::open(disk(path)?).with_context(|| path.display().to_string())?;
    for sentence in queue.faults.iter().chain(&queue.remarks) {
        say!("glass: {}: {sentence}", path.display());
    }
    Ok(queue)
}

fn fsck(path: &Path) -> Result<ExitCode> {
    let progress = Progress::start();
    let report = check(disk(path)?, &mut |done, all| progress.show("checked", done, all));
    progress.clear();
    let shown = path.display();
    let mut out = String::new();
    if let Some(queue) = &report.queue {
        let place = queue.superblock.place;
        let block = BLOCK_BYTES as u64;
        let (used, uploads) = (queue.used_blocks() * block, queue.uploads());
        let data_bytes = u64::from(place.data_blocks()) * block;
        let _ = writeln!(
            out,
            "{shown}: a queue of version {} at commit {}: {} of at most {} items, {} uploads in progress, {used} bytes used, {} free",
            place.version(),
            queue.index.sequence,
            queue.index.entries.len(),
            place.items_max(),
            uploads.open,
            data_bytes.saturating_sub(used),
        );
        for remark in &queue.remarks {
            let _ = writeln!(out, "{shown}: {remark}");
        }
    }
    for fault in &report.faults {
        let _ = writeln!(out, "{shown}: {fault}");
    }
    let _ = match report.faults.len() {
        0 => writeln!(out, "{shown}: nothing is wrong"),
        1 => writeln!(out, "{shown}: 1 fault"),
        count => writeln!(out, "{shown}: {count} faults"),
    };
    console::print(&out)?;
    Ok(if report.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn list(path: &Path, is_json: bool) -> Result<()> {
    let queue = open(path)?;
    let uploads = queue.uploads();
    if is_json {
        let item = |entry: &Entry| json!({ "id": entry.id, "bytes": entry.length, "xxh3_64": format!("{:016x}", entry.checksum) });
        let items: Vec<_> = queue.index.entries.iter().map(item).collect();
        let uploads = json!({ "open": uploads.open, "bytes": uploads.bytes, "complete": uploads.complete });
        let list = json!({
            "version": queue.superblock.place.version(), "commit": queue.index.sequence, "items": items, "uploads": uploads,
            "faults": queue.faults, "remarks": queue.remarks,
        });
        return console::print(&format!("{list:#}\n"));
    }
    let mut out = format!("{:>12}  {:>16}  XXH3-64\n", "ID", "BYTES");
    for entry in &queue.index.entries {
        let _ = writeln!(out, "{:>12}  {:>16}  {:016x}", entry.id, entry.length, entry.checksum);
    }
    if uploads.open > 0 {
        let _ = writeln!(out, "{} uploads in progress, with {} bytes", uploads.open, uploads.bytes);
    }
    console::print(&out)
}
