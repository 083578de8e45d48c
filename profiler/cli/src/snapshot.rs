//! `glass snapshot`: a VM of `glass run` as a file, from which copies of it run.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Error, Result, bail};
use glass_profiler_core::elf;
use glass_profiler_guests::files::HostFile;
use glass_profiler_session::target::find_vm;

use crate::console::say;
use crate::files::PartFile;

/// Writes a VM into a file, from which `glass run --from` starts copies of it in milliseconds.
///
/// It is a VM of `glass run` by our own VMM, with one core, and the user network or none. It is halted for some milliseconds, at a moment at which it
/// waits, and then continues. The file has all that the service has in memory, its secrets too, so only you can read it. If the VM has a disk, a copy
/// of it is made beside the file, as FILE.disk.
#[derive(clap::Args)]
pub struct Args {
    /// VM, by its name.
    name: String,
    /// Output file.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// Writes the snapshot.
pub fn run(args: &Args) -> Result<()> {
    let vm = find_vm(&args.name)?;
    let Some(socket) = &vm.links.snapshots else {
        bail!(
            "{} has no snapshots: they are for VMs that `glass run` has started by our own VMM, and not for copies",
            args.name
        );
    };
    let image = vm.elf.as_ref().context("the image of the VM is not known")?;
    let build_id = HostFile::open(image).ok().and_then(|file| elf::build_id_of(&file));
    let build_id = build_id.with_context(|| format!("{} has no build id: build it again", image.display()))?;
    let start = Instant::now();
    let part = PartFile::create(&args.output)?;
    let of_snapshot = glass_vmm::disk_of_snapshot(&args.output);
    let open = |path: &PathBuf| File::open(path).with_context(|| format!("cannot open the disk {}", path.display()));
    let disk = vm.links.disk.as_ref().map(|path| Ok::<_, Error>((open(path)?, PartFile::create(&of_snapshot)?)));
    let disk = disk.transpose()?;
    let origin = (fs::canonicalize(image).unwrap_or_else(|_| image.clone()), build_id);
    glass_vmm::write_snapshot(vm.pid, socket, origin, part.file(), disk.as_ref().map(|(from, to)| (from, to.file())))
        .with_context(|| format!("cannot take a snapshot of {}", args.name))?;
    // First, so that a snapshot has its disk.
    if let Some((_, disk)) = disk {
        disk.keep().with_context(|| format!("cannot write {}", of_snapshot.display()))?;
    }
    // It belongs to an older snapshot of this name. Mostly there is none.
    let _ = fs::remove_file(glass_vmm::pages_of_snapshot(&args.output));
    part.keep().with_context(|| format!("cannot write {}", args.output.display()))?;
    say!("glass: {} written in {:.0} ms", args.output.display(), start.elapsed().as_secs_f64() * 1e3);
    Ok(())
}
