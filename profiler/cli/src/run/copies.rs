//! `glass run --from`: copies of a VM, from a snapshot of `glass snapshot`.

use std::io::Write as _;
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use glass_profiler_core::elf;
use glass_profiler_guests::files::HostFile;

use super::options::Network;
use super::signals::Signals;
use super::{Args, options, vm};
use crate::console::say;
use crate::files::PartFile;

/// Options for copies.
#[derive(clap::Args)]
pub(super) struct CopyOptions {
    /// Continue the VM of a snapshot of `glass snapshot`, as it was when that was taken, in place of a boot. Memory and arguments are those of that
    /// VM, and in the user network the address, too. Behind TAP devices, `--net tap=NAME` names that of each copy, with `{}` for the copy's number,
    /// and --ip is the address of the first one: the next ones have the next addresses.
    #[arg(long, help_heading = "Copies", value_name = "SNAPSHOT", conflicts_with_all = [
        "platform", "target", "disk_size", "files_disk", "record_writes", "cores", "memory", "log", "share", "bind", "restart", "trace", "ip6", "dns", "congestion",
        "vsock", "vmm", "xen", "ranks", "machine", "bus", "qemu_firmware", "gic", "print_command", "args",
    ])]
    pub(super) from: Option<PathBuf>,
    /// Start so many; --port is the first one's, and the next ports are those of the others.
    #[arg(long, help_heading = "Copies", value_name = "COUNT", requires = "from", default_value = "1")]
    copies: NonZeroU16,
    /// Start each copy when the first client connects to one of its ports, and not before.
    #[arg(long, help_heading = "Copies", requires = "from", conflicts_with_all = ["record_pages", "faults"])]
    pub(super) on_demand: bool,
    /// Record which pages of its memory the copy uses until Ctrl-C, as SNAPSHOT.pages: copies that start later have these pages ready, and answer their
    /// first requests sooner.
    #[arg(long, help_heading = "Copies", requires = "from", conflicts_with = "copies")]
    pub(super) record_pages: bool,
    /// Record the page faults of the copy by functions of its service, until its end, into the file of --output. It runs slower meanwhile.
    #[arg(long, help_heading = "Copies", requires = "from", conflicts_with_all = ["copies", "record_pages"])]
    pub(super) faults: bool,
}

impl CopyOptions {
    /// How many copies.
    pub(super) fn count(&self) -> u16 {
        self.copies.get()
    }
}

/// Runs copies; the exit code is that of their services.
pub(super) fn run(args: Args, from: &Path) -> Result<ExitCode> {
    check_network(&args)?;
    options::check(&args)?;
    let (image, build_id) = glass_vmm::origin(from)?;
    let path = args.app.as_ref().map_or(image, PathBuf::from);
    // Names of functions in a crash report, and in profiles, are this file's.
    let found = HostFile::open(&path).ok().and_then(|file| elf::build_id_of(&file));
    match found {
        Some(found) if found == build_id => {}
        Some(_) => bail!(
            "{} is another build than the one in the snapshot: give that image, as in `glass run IMAGE --from {}`, or take a new snapshot",
            path.display(),
            from.display()
        ),
        None => bail!(
            "there is no image {}: give the one that the snapshot was taken of, as in `glass run IMAGE --from {}`",
            path.display(),
            from.display()
        ),
    }
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let signals = Signals::watch()?;
    if args.copies.record_pages {
        let from = from.to_owned();
        signals.before_end(move |pid| keep_pages(pid, &from));
    }
    vm::run_copies(&args, from, &path, &name, &signals).map(ExitCode::from)
}

fn check_network(args: &Args) -> Result<()> {
    match args.net {
        Network::None => bail!("a copy has a network if its template had one: leave out --net none"),
        Network::User if args.ip.is_some() => {
            bail!(
                "in the user network copies keep their address: leave out --ip, or give TAP devices by --net tap=NAME"
            )
        }
        Network::User | Network::Tap(_) => Ok(()),
    }
}

/// Writes the list of the pages that the copy in process `pid` has used so far.
fn keep_pages(pid: u32, from: &Path) {
    let path = glass_vmm::pages_of_snapshot(from);
    let keep = || {
        let (count, bytes) = glass_vmm::used_pages(pid, from)?;
        let part = PartFile::create(&path)?;
        part.file().write_all(&bytes)?;
        part.keep()?;
        anyhow::Ok(count)
    };
    match keep() {
        Ok(count) => say!("glass: {} written: {count} pages, {} kB", path.display(), count * 4),
        Err(error) => say!("glass: {} is not written: {error:#}", path.display()),
    }
}
