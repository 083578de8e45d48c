//! `glass dump`: the memory and the registers of a VM, as a file for crash, drgn, gdb and `glass record --post-mortem`.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use glass_profiler_core::names::printable;
use glass_profiler_guests::backends::choose::BackendChoice;
use glass_profiler_guests::backends::dump::{Dump, Dumped, Stage};
use glass_profiler_guests::find::{self, Found, Vm};
use glass_profiler_session::target::find_vm;
use indicatif::ProgressBar;

use crate::arguments::parse_pid;
use crate::console::{columns_max, say, spinner};
use crate::files::PartFile;
use crate::holder;
use crate::record::watch_signals;

/// When the progress is shown first.
const SHOWN_AFTER: Duration = Duration::from_secs(1);
/// The longest name of a VM in that of a file.
const NAME_CHARS_MAX: usize = 64;

/// Writes memory and registers of a VM into a file, for crash, drgn, gdb and --post-mortem.
///
/// The file is an ELF core, as QEMU's `dump-guest-memory` writes it, of any VMM. The VM stands while its RAM is copied, at about a second
/// for each GiB that it uses, and runs on then. Pages of zeros take no space on the disk.
#[derive(clap::Args)]
#[command(override_usage = "glass dump [OPTIONS] <--pid PID | --name NAME>")]
pub struct Args {
    /// VM, by the process ID of its VMM.
    #[arg(short, long, value_parser = parse_pid, conflicts_with = "name")]
    pid: Option<u32>,
    /// VM, by its name (of `glass run`, libvirt, or QEMU's -name).
    #[arg(long)]
    name: Option<String>,
    /// Let the VM run meanwhile: vCPUs stop one by one for their registers and stacks only, and other memory that changes may be torn.
    #[arg(long)]
    live: bool,
    /// How to stop the VM.
    #[arg(long, value_enum, default_value_t = Backend::Auto)]
    backend: Backend,
    /// Output file [default: the VM's name, with .vmcore].
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// How to stop a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Backend {
    /// kvm for a VM under KVM, otherwise gdbstub.
    Auto,
    /// Stop the vCPU threads by ptrace and read the registers of the vCPUs from KVM.
    Kvm,
    /// Use QEMU's gdbstub.
    Gdbstub,
}

impl From<Backend> for BackendChoice {
    fn from(backend: Backend) -> BackendChoice {
        match backend {
            Backend::Auto => BackendChoice::Any,
            Backend::Kvm => BackendChoice::Kvm,
            Backend::Gdbstub => BackendChoice::Gdbstub,
        }
    }
}

fn vm_of(arguments: &Args) -> Result<Vm> {
    match (&arguments.name, arguments.pid) {
        (Some(name), _) => Ok(find_vm(name)?),
        (None, Some(pid)) => match find::by_pid(pid)? {
            Found::Vm(vm) => Ok(vm),
            Found::Process => bail!("process {pid} is not a VM that glass supports; gcore dumps a process"),
        },
        (None, None) => bail!("no VM is named: give --pid or --name"),
    }
}

/// The file of a VM with this name, in the current folder.
fn default_path(name: &str) -> PathBuf {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let plain: String = name.chars().take(NAME_CHARS_MAX).map(|c| if is_plain(c) { c } else { '_' }).collect();
    let plain = plain.trim_start_matches('.');
    PathBuf::from(format!("{}.vmcore", if plain.is_empty() { "guest" } else { plain }))
}

/// Writes the dump.
pub fn run(arguments: &Args) -> Result<()> {
    let vm = vm_of(arguments)?;
    let path = arguments.output.clone().unwrap_or_else(|| default_path(&vm.name));
    let interrupted = Arc::new(AtomicBool::new(false));
    // Ctrl-C ends the dump, not us: the part that was written has to go.
    watch_signals(&interrupted, &Arc::new(AtomicBool::new(false))).context("cannot watch for Ctrl-C")?;
    let part = PartFile::create(&path)?;
    let start = Instant::now();
    let launcher = holder::launcher();
    let (backend, is_live) = (arguments.backend.into(), arguments.live);
    let dump = Dump { vm: &vm, backend, is_live, launcher: &launcher, file: part.file() };
    let mut progress = Progress { start, bar: None };
    let dumped = dump.write(&mut |stage| {
        progress.show(stage);
        !interrupted.load(Ordering::Relaxed)
    });
    progress.clear();
    let cannot = || format!("cannot write {}", path.display());
    let dumped = dumped.with_context(cannot)?;
    let disk_bytes = disk_bytes(&part);
    part.keep().with_context(cannot)?;
    let written = format!("{} written in {:.1} s", path.display(), start.elapsed().as_secs_f64());
    say!("glass: {written}: {}", summary(&dumped, disk_bytes, is_live));
    if is_live {
        say!("glass: warning: the VM ran during the copy, so structures of the guest may be torn");
    }
    dumped.warnings.iter().for_each(|warning| say!("glass: warning: {}", printable(warning)));
    Ok(())
}

/// What it takes of the disk, as far as that is decided yet.
fn disk_bytes(part: &PartFile) -> u64 {
    use std::os::unix::fs::MetadataExt;
    part.file().metadata().map_or(0, |metadata| metadata.blocks() * 512)
}

/// The rest of a sentence about a dump.
fn summary(dumped: &Dumped, disk_bytes: u64, is_live: bool) -> String {
    let Dumped { vcpus, ram_bytes, stood, backend, .. } = dumped;
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let plural = if *vcpus == 1 { "" } else { "s" };
    let time = match stood.as_secs_f64() {
        seconds if seconds < 0.001 => format!("{:.0} us", seconds * 1e6),
        seconds if seconds < 1.0 => format!("{:.0} ms", seconds * 1e3),
        seconds => format!("{seconds:.1} s"),
    };
    let stood = match is_live {
        _ if backend.is_none() => "the guest was not stopped".to_owned(),
        _ if stood.is_zero() => "the guest was paused, and still is".to_owned(),
        true => format!("each vCPU stood for at most {time}"),
        false => format!("the guest stood for {time}"),
    };
    let release = match &dumped.release {
        Some(release) => format!("Linux {}", printable(release)),
        None => "no VMCOREINFO of a Linux, which crash and drgn need".to_owned(),
    };
    let vcpus = match backend {
        Some(backend) => format!("{vcpus} vCPU{plural} by {backend}"),
        None => "no registers".to_owned(),
    };
    let (disk, ram) = (mib(disk_bytes), mib(*ram_bytes));
    format!("{disk} MiB on the disk for {ram} MiB of RAM, {vcpus}; {stood}; {release}")
}

/// The line while it is written, if that takes long and there is a terminal to show it on.
struct Progress {
    start: Instant,
    bar: Option<ProgressBar>,
}

impl Progress {
    fn show(&mut self, stage: Stage) {
        if self.start.elapsed() < SHOWN_AFTER {
            return;
        }
        if self.bar.is_none() {
            self.bar = spinner();
        }
        let Some(bar) = &self.bar else { return };
        let line = match stage {
            Stage::Copied { done_bytes, all_bytes } => {
                format!("{} of {} MiB of RAM copied", done_bytes >> 20, all_bytes >> 20)
            }
            Stage::Searching => "the VM runs; searching the dump for VMCOREINFO".to_owned(),
        };
        bar.set_message(glass_profiler_core::format::cut_end(&line, columns_max()));
        bar.tick();
    }

    fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_a_vm_becomes_that_of_a_file() {
        for (name, file) in [
            ("upload-queue", "upload-queue.vmcore"),
            ("../etc/passwd", "_etc_passwd.vmcore"),
            ("a b\n\u{202e}", "a_b__.vmcore"),
            ("", "guest.vmcore"),
            ("...", "guest.vmcore"),
        ] {
            assert_eq!(default_path(name), PathBuf::from(file));
        }
        assert!(default_path(&"x".repeat(500)).as_os_str().len() < 80);
    }
}
