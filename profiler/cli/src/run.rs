//! `glass run`: boots a service as a VM, or starts it as a process.

mod copies;
mod devices;
mod disk;
mod escape;
mod faults;
mod firmware;
mod helpers;
mod options;
mod own;
mod qemu;
mod qemu_options;
mod ranks;
mod ranks_trace;
mod restart;
mod share;
mod signals;
mod stopped;
mod traced;
mod vm;
mod vm_console;
mod vsock;
mod xen;

use crate::build::{Packages, Platform, Target, check_target};
use crate::console::{exit_code, say};
use crate::trace::groups::{Groups, parse_groups};
use anyhow::{Context, Result, bail};
use glass_profiler_core::arch::Architecture;
use glass_profiler_core::elf;
use glass_profiler_guests::files::HostFile;
use glass_profiler_guests::find::registry;
use glass_vmm::Image;
use memchr::memmem;
use options::{Network, Port, Vmm, parse_ip, parse_ip6, parse_memory, parse_network, parse_port};
pub use options::{network_in, parse_size};
use restart::Delays;
use rustix::process::Signal;
use signals::Signals;
use std::fs::{self, File};
use std::io::Read;
use std::net::IpAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use traced::Recording;

/// Boots a service as a VM, or starts it as a process.
#[derive(clap::Args)]
pub struct Args {
    /// Package to build and run, or the path of an existing image; if a file of this name is in the current folder, it is the image [default: the package of the current folder, or the only one of
    /// the workspace].
    #[arg(value_name = "PACKAGE|IMAGE")]
    app: Option<String>,
    /// Where to run it.
    #[arg(long, value_enum, default_value_t = Platform::Vm)]
    platform: Platform,
    /// Processor of the VM; an image has its own.
    #[arg(long, value_enum, default_value_t = Target::X86_64)]
    target: Target,
    /// Forward TCP port HOST of 127.0.0.1 to port GUEST of the VM [default: the same number], on which the service listens, or to
    /// `vsock:PORT`; may be given several times. VMs only.
    #[arg(long, value_name = "HOST[:GUEST]", value_parser = parse_port)]
    port: Vec<Port>,
    /// Disk 0 of the service: a raw file or a block device.
    #[arg(long, value_name = "PATH")]
    disk: Option<PathBuf>,
    /// Create the disk file with this size if it does not exist.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "disk")]
    disk_size: Option<u64>,
    /// Disk 1 of the service, which cannot change it: a raw file or a block device with a FAT file system, on which its files are, such as its certificates. VMs
    /// only.
    #[arg(long, value_name = "PATH", requires = "disk")]
    files_disk: Option<PathBuf>,
    /// Cores of the service: of its VM, or threads of its process.
    #[arg(long, default_value_t = 1, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=CORES_MAX))]
    cores: u32,
    /// Memory of the VM, in MiB if it has no unit.
    #[arg(long, default_value = "64M", value_name = "SIZE", value_parser = parse_memory)]
    memory: u64,
    /// Print messages of this level and more severe ones.
    #[arg(long, value_name = "LEVEL", value_parser = ["off", "error", "warn", "info", "debug", "trace"], default_value = LOG_DEFAULT)]
    log: String,
    /// Give the service the files of a directory; with `:ro` it cannot change them.
    #[arg(long, value_name = "PATH[:ro]", value_parser = share::parse)]
    share: Option<share::Share>,
    /// Address of this machine that the service listens on [default: 127.0.0.1, for this machine only]; `::` is every address. Processes only.
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<IpAddr>,
    /// Restart the service after a failure, with a pause that grows from half a second to a minute.
    #[arg(long, conflicts_with_all = ["trace", "print_command"])]
    restart: bool,
    /// Trace the service, or the MPI calls of ranks, from the first instruction: all groups of events except functions, or those named here.
    #[arg(long, value_name = "GROUPS", value_parser = parse_groups, num_args = 0..=1, default_missing_value = "all",
        require_equals = true)]
    trace: Option<Groups>,
    /// With --trace: output file for the recording.
    #[arg(short, long, value_name = "FILE", default_value = "glass.pftrace")]
    output: PathBuf,
    /// Network of the VM: `user` (its connections are those of this host's sockets; needs no privileges), `none`, or `tap=NAME` of an existing TAP
    /// device.
    #[arg(long, help_heading = "Network", default_value = "user", value_parser = parse_network)]
    net: Network,
    /// Address of the VM: `dhcp` or `ADDRESS/PREFIX[,GATEWAY]` [default: an address of the user network; with a TAP device
    /// DHCP].
    #[arg(long, help_heading = "Network", value_parser = parse_ip)]
    ip: Option<String>,
    /// IPv6 address of the VM: `auto` (from the network's routers; the user network has none, QEMU's gives a VM
    /// fec0::5054:ff:fe12:3456, and connections lead out only), `off` or `ADDRESS/PREFIX[,GATEWAY]` [default: auto].
    #[arg(long, help_heading = "Network", value_parser = parse_ip6)]
    ip6: Option<String>,
    /// Name servers of the VM [default: those of the DHCP server and of IPv6 routers; with the user network the host's].
    #[arg(long, help_heading = "Network", value_name = "ADDRESS[,ADDRESS]", value_delimiter = ',')]
    dns: Vec<IpAddr>,
    /// How the VM's TCP reacts to loss: as Linux by default, paced by the measured bandwidth (BBR version 3), or as of 2009 [default: cubic].
    #[arg(long, help_heading = "Network", value_name = "NAME", value_parser = ["cubic", "bbr", "reno"])]
    congestion: Option<String>,
    /// Give the service vsock; its clients connect to the unix socket PATH and write `CONNECT PORT` and a line end.
    /// Without PATH, a VM gets a socket whose path is printed. A VM needs the program vhost-device-vsock
    #[arg(long, help_heading = "Network", value_name = "PATH", num_args = 0..=1, require_equals = true)]
    vsock: Option<Option<PathBuf>>,
    /// What runs the VM: QEMU, or under KVM our own VMM, which boots sooner and has fewer devices; `auto` takes ours where it has what is wanted.
    #[arg(long, help_heading = "Virtual machine", value_enum, default_value_t = Vmm::Auto)]
    vmm: Vmm,
    /// Read and write the disk past the host's page cache. VMs only.
    #[arg(long, help_heading = "Virtual machine", requires = "disk")]
    disk_direct: bool,
    /// Seconds that a request to the disk may take before it fails. VMs only.
    #[arg(long, help_heading = "Virtual machine", requires = "disk", value_name = "SECONDS", default_value_t = DISK_TIMEOUT_DEFAULT,
        value_parser = clap::value_parser!(u32).range(1..))]
    disk_timeout: u32,
    /// Record every write and flush of the disk in this file, for `glass powercut`. VMs only.
    #[arg(long, help_heading = "Virtual machine", value_name = "LOG", requires = "disk", conflicts_with_all = ["restart", "print_command"])]
    record_writes: Option<PathBuf>,
    /// Greatest length of that file; then it ends, and the VM runs on.
    #[arg(long, help_heading = "Virtual machine", value_name = "SIZE", requires = "record_writes", value_parser = parse_size,
        default_value = crate::disk::LOG_BYTES_DEFAULT)]
    record_limit: u64,
    #[command(flatten)]
    copies: copies::CopyOptions,
    #[command(flatten)]
    qemu: qemu_options::QemuOptions,
    #[command(flatten)]
    ranks: ranks::Options,
    /// Write the configuration of a domain of Xen to NAME.cfg, print the commands of `xl` for it, and run nothing.
    #[arg(long, help_heading = "Xen", conflicts_with_all = ["print_command", "ranks"])]
    xen: bool,
    /// Processors of this host, for an image that has to know them.
    #[arg(skip)]
    cpus: Option<usize>,
    /// The service's own arguments; with --ranks and no image, the program and its arguments.
    #[arg(last = true)]
    args: Vec<String>,
}

/// Bytes of memory by default, as `--memory` has them.
const MEMORY_DEFAULT: u64 = 64 << 20;
/// The cores that an image can use.
const CORES_MAX: i64 = glass_formats::CORES_MAX as i64;
/// The `disk-timeout=` of an image without one on its command line.
const DISK_TIMEOUT_DEFAULT: u32 = 30;
/// The `log=` of an image without one on its command line.
const LOG_DEFAULT: &str = "warn";

/// The exit code of a service that could not start, as a process: to start it again would not help.
const UNUSABLE: u8 = 2;

/// The exit code of a VM that was ended because a helper had ended, and of one that could not start again.
const FAILED: u8 = 1;

/// Runs the command; the exit code is the service's.
pub fn run(mut args: Args) -> Result<ExitCode> {
    if args.ranks.ranks.is_some() && args.app.is_none() {
        return ranks::run(&args);
    }
    if let Some(from) = args.copies.from.take() {
        return copies::run(args, &from);
    }
    // Before the build, which takes time; and after it, because a C program changes the memory, and another process may have taken a port.
    check(&args)?;
    let (program, name) = find_program(&mut args)?;
    ranks::prepare_vm(&mut args, &program)?;
    check(&args)?;
    if let Some(disk) = &args.disk {
        disk::prepare(disk, args.disk_size)?;
    }
    if let Some(disk) = &args.files_disk {
        disk::check_files(disk)?;
    }
    if args.xen {
        return xen::write(&args, &program, &name).map(|()| ExitCode::SUCCESS);
    }
    let signals = Signals::watch()?;
    let mut delays = Delays::new();
    let mut has_run = false;
    loop {
        delays.started();
        let ended = match args.platform {
            Platform::Linux => run_process(&args, &program, &name, &signals),
            Platform::Vm => vm::run(&args, &program, &name, &signals),
        };
        has_run |= ended.is_ok() || delays.has_run_well();
        let code = match ended {
            Ok(code) => code,
            // It ran before, so this may pass: memory that is short, or a file that the process before still has.
            Err(error) if args.restart && has_run && !signals.is_asked() => {
                say!("glass: {error:#}");
                FAILED
            }
            Err(error) => return Err(error),
        };
        if !args.restart || code == 0 || code == UNUSABLE || signals.is_asked() {
            return Ok(ExitCode::from(code));
        }
        let delay = delays.after_failure();
        say!("glass: {name} failed (exit code {code}); it starts again in {:.1} s", delay.as_secs_f64());
        std::thread::sleep(delay);
    }
}

/// Refuses options that the platform cannot obey.
fn check(args: &Args) -> Result<()> {
    check_target(args.platform, args.target)?;
    match args.xen && args.platform == Platform::Vm {
        true if args.target == Target::Aarch64 => bail!("a domain of Xen is for x86-64: leave out --xen"),
        true => xen::check(args),
        false if args.xen => bail!("a process is no domain of Xen: leave out --platform or --xen"),
        false => options::check(args),
    }
}

/// A path to a file is an image; anything else is a package to build.
fn find_program(args: &mut Args) -> Result<(PathBuf, String)> {
    if let Some(app) = args.app.as_deref().filter(|app| app.contains('/') || Path::new(app).is_file()) {
        let path = Path::new(app);
        let mut magic = [0; 4];
        let opened = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let read = { opened }.read(&mut magic).unwrap_or(0);
        if read < 4 || magic != *b"\x7fELF" {
            bail!("{} is no ELF file: give an image made by `glass build`, or a package's name", path.display());
        }
        if args.platform == Platform::Vm {
            args.target = target_of(path)?;
        }
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        return Ok((path.to_owned(), name));
    }
    let package = Packages::find(args.app.as_slice())?;
    Ok((package.build(args.platform, args.target)?.swap_remove(0), package.name().to_owned()))
}

/// The processor of an image.
fn target_of(path: &Path) -> Result<Target> {
    let file = HostFile::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let (target, is_image) = match elf::architecture_of(&file) {
        Some(Architecture::Aarch64) => {
            (Target::Aarch64, section_contains(path, ".note.glasshouse", glass_formats::NOTE_NAME.as_bytes())?)
        }
        _ => (Target::X86_64, Image::open(path)?.entry.is_some()),
    };
    if !is_image {
        bail!(
            "{} is a program, not an image that boots: give one made by `glass build`, or a package's name",
            path.display()
        );
    }
    Ok(target)
}

/// Whether a section of an ELF file contains these bytes.
fn section_contains(path: &Path, section: &str, pattern: &[u8]) -> Result<bool> {
    let file = HostFile::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(elf::section(&file, section).is_some_and(|bytes| memmem::find(&bytes, pattern).is_some()))
}

fn run_process(args: &Args, program: &Path, name: &str, signals: &Signals) -> Result<u8> {
    let mut command = ends_with_us(program);
    if let Some(disk) = &args.disk {
        command.arg("--disk").arg(disk);
    }
    if let Some(share) = &args.share {
        let suffix = if share.is_read_only { ":ro" } else { "" };
        command.arg("--share").arg(format!("{}{suffix}", share.path.display()));
    }
    if let Some(Some(path)) = &args.vsock {
        command.arg("--vsock").arg(path);
    }
    if let Some(address) = args.bind {
        command.arg("--bind").arg(address.to_string());
    }
    if args.log != LOG_DEFAULT {
        command.args(["--log", &args.log]);
    }
    if args.cores > 1 {
        command.args(["--cores", &args.cores.to_string()]);
    }
    command.arg("--").args(&args.args);
    let recording = Recording::prepare(args, program)?;
    if let Some(groups) = args.trace {
        command.env("GLASS_TRACE", groups.names());
    }
    Signals::prepare(&mut command, false);
    let mut child = command.spawn().context("cannot run setpriv: install util-linux")?;
    let _serving = signals.serve(&mut child)?;
    let status = match recording {
        Some(recording) => {
            let title = format!("{name} (process {})", child.id());
            recording.run(&mut child, &title, false)?
        }
        None => child.wait().with_context(|| format!("cannot wait for {}", program.display()))?,
    };
    Ok(ended_by_signal(status, name, signals).unwrap_or_else(|| exit_code(status)))
}

/// The exit code, as a shell has it, of a program that a signal ended; prints which, unless the user requested the end.
fn ended_by_signal(status: ExitStatus, program: &str, signals: &Signals) -> Option<u8> {
    let signal = status.signal()?;
    let hint = if signal == Signal::KILL.as_raw() {
        ": the kernel does that when memory is short (`dmesg` shows it)"
    } else if signal == Signal::SYS.as_raw() {
        ": it made a system call that its jail forbids (`dmesg` shows which, type=1326); a guest may have taken it over, or it is a fault of glass"
    } else {
        ""
    };
    if !signals.is_asked() {
        say!("glass: {program} was ended ({status}){hint}");
    }
    Some(exit_code(status))
}

/// A command that setpriv ends when we die, whatever kills us. It becomes the program itself, so that its pid is the
/// program's.
fn ends_with_us(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// A command line of these words.
fn shell_words(words: &[impl AsRef<str>]) -> String {
    words.iter().map(|word| shell_word(word.as_ref())).collect::<Vec<_>>().join(" ")
}

fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=,.:/+@".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// A folder of our own for QEMU's sockets, removed at the end.
struct SocketFolder(PathBuf);

impl SocketFolder {
    fn make() -> Result<SocketFolder> {
        let parent = registry::folder()?;
        remove_orphans(&parent);
        let folder = parent.join(format!("run-{}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(SocketFolder(folder))
    }
}

/// Removes the folders of runs that were killed.
fn remove_orphans(parent: &Path) {
    registry::remove_orphans(parent, |name| name.strip_prefix("run-")?.parse().ok());
}

impl Drop for SocketFolder {
    fn drop(&mut self) {
        // Left over at worst: a small folder in a temporary place.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_of_dead_runs_are_removed() {
        let parent = std::env::temp_dir().join(format!("glass-orphans-{}", std::process::id()));
        let ours = parent.join(format!("run-{}", std::process::id()));
        // No process has the highest id that Linux gives to none.
        let dead = parent.join(format!("run-{}", 1 << 22 | 1));
        let other = parent.join("run-x");
        for folder in [&ours, &dead, &other] {
            fs::create_dir_all(folder).unwrap();
        }
        remove_orphans(&parent);
        assert_eq!([&ours, &dead, &other].map(|folder| folder.exists()), [true, false, true]);
        fs::remove_dir_all(&parent).unwrap();
    }

    #[test]
    fn words_of_a_shell_are_quoted() {
        assert_eq!(shell_word("it's"), r"'it'\''s'");
    }
}
