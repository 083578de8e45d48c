//! What is to be sampled and how, from the command line to something that can be sampled. Shared by
//! all commands that sample.

use std::fs;
use std::io::ErrorKind::NotFound;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Result, anyhow, bail, ensure};
use glass_guests::choose::{self, Attached, Wanted, Way};
use glass_guests::file::DumpedVm;
use glass_guests::find::{self, Found, Vm};
use glass_guests::process::{Process, ProcessSettings};
use glass_guests::{GuestError, Source, SymbolFile, VmSettings, is_boot_image, parse_address};
use glass_profile::model::Origin;

use crate::console::say;

/// Highest rate that is tried.
const RATE_HZ_MAX: i64 = 100_000;

/// How long after a look that did not find a guest's kernel the next one is taken.
const BETWEEN_LOOKS: Duration = Duration::from_millis(7);

/// A running guest.
#[derive(clap::Args, Clone, Default)]
pub struct GuestArgs {
    /// Process to look into; the VM in it, if it is a VMM.
    #[arg(long, value_parser = parse_pid, conflicts_with_all = ["name", "command"])]
    pub pid: Option<u32>,
    /// VM to look into, by the name that `glass run` gave it.
    #[arg(long, conflicts_with = "command")]
    pub name: Option<String>,
}

fn parse_pid(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "not the number of a process".to_owned())
}

/// The VM with a name.
pub fn find_vm(name: &str) -> Result<Vm> {
    find::by_name(name).map_err(|error| match process_called(name) {
        Some(pid) => anyhow!("{error}; process {pid} is called so: give --pid {pid}"),
        None => error.into(),
    })
}

/// A process of which the kernel knows this name, by its first 15 bytes.
fn process_called(name: &str) -> Option<u32> {
    const KERNEL_BYTES: usize = 15;
    let known = name.as_bytes().get(..KERNEL_BYTES).unwrap_or(name.as_bytes());
    let pids = fs::read_dir("/proc").ok()?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_called = |pid: &u32| fs::read(format!("/proc/{pid}/comm")).is_ok_and(|own| own.trim_ascii_end() == known);
    pids.into_iter().find(is_called)
}

/// Whether a process exists and has not ended; not whether its number is still the one that was meant.
pub fn is_running(pid: u32) -> bool {
    // A program that has ended, or never was one, has no file.
    fs::read_link(format!("/proc/{pid}/exe")).is_ok()
}

/// The guest, and how it is sampled.
#[derive(clap::Args)]
pub struct TargetArgs {
    #[command(flatten)]
    pub guest: GuestArgs,
    /// Guest in a file: what QEMU's `dump-guest-memory` or `virsh dump --memory-only` wrote. Gives one
    /// sample of each vCPU.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pid", "name", "command", "backend"])]
    pub post_mortem: Option<PathBuf>,
    /// What the VM runs, if glass cannot know it: an ELF file or a map (nm -n, System.map, a copy of
    /// the guest's /proc/kallsyms). @0xADDRESS says where it is loaded, if not where it was linked
    /// for; may be given several times.
    #[arg(long, value_name = "FILE[@0xADDRESS]", value_parser = SymbolFile::parse, conflicts_with = "command")]
    pub symbols: Vec<SymbolFile>,
    /// Where the first of the --symbols is loaded, if not where it was linked for.
    #[arg(long, value_name = "0xADDRESS", value_parser = parse_address, requires = "symbols")]
    pub load_address: Option<u64>,
    /// Use symbols that do not fit what the VM runs, with a warning.
    #[arg(long, requires = "symbols")]
    pub force_symbols: bool,
    /// Samples per second. Without it 997 of a process, 199 of a VM by KVM and 79 through a gdbstub, of which a VM
    /// loses about 2 % of its time; these are no divisors of usual timer rates.
    #[arg(long, value_name = "HZ", value_parser = clap::value_parser!(u32).range(1..=RATE_HZ_MAX))]
    pub rate: Option<u32>,
    /// Sample only this vCPU, by its number; may be given several times.
    #[arg(long = "vcpu", value_name = "N", conflicts_with = "command")]
    pub vcpus: Vec<u32>,
    /// How much of the stack is copied with a sample; deeper stacks are cut. Without it 16 KiB of a VM, which waits for the copy, and
    /// 24 KiB of a process.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(64..=63 << 10))]
    pub stack_bytes: Option<u32>,
    /// How to look into the guest.
    #[arg(long, value_enum, default_value_t = Backend::Auto, conflicts_with = "command")]
    pub backend: Backend,
    /// Command to run and sample from its start.
    #[arg(last = true)]
    pub command: Vec<String>,
    /// The command may not use our terminal.
    #[arg(skip)]
    pub quiet_command: bool,
}

/// How to look into a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Backend {
    /// The gentlest that works: kvm for a VM under KVM, else gdbstub; process for a process.
    Auto,
    /// Stop the threads of the VM's cores by ptrace and read their registers where KVM keeps them.
    Kvm,
    /// Ask QEMU's gdbstub.
    Gdbstub,
    /// Look at the process itself, also if it is a VMM.
    Process,
}

/// What is sampled, and how.
pub struct Target {
    pub source: Box<dyn Source>,
    pub origin: Origin,
    pub is_guest: bool,
    pub pid: u32,
}

/// Where a recording comes from; `rate_hz` is 0 if nothing is sampled.
pub fn origin_of(rate_hz: u32, guest: String, backend: &str, symbols: String) -> Origin {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Origin {
        guest,
        backend: backend.to_owned(),
        symbols,
        host: host.trim_end().to_owned(),
        rate_hz,
        recorder: concat!("glass ", env!("CARGO_PKG_VERSION")).to_owned(),
        ..Default::default()
    }
}

/// Finds and attaches to what the arguments name.
pub fn find(arguments: &TargetArgs) -> Result<Target> {
    if let [program, rest @ ..] = &arguments.command[..] {
        return command(arguments, program, rest);
    }
    if let Some(file) = &arguments.post_mortem {
        return post_mortem(arguments, file);
    }
    let pid = arguments.guest.pid.unwrap_or_default();
    let found = match (&arguments.guest.name, arguments.guest.pid) {
        (Some(name), _) => Found::Vm(find_vm(name)?),
        (None, Some(pid)) => find::by_pid(pid)?,
        (None, None) => bail!("no guest is named: give --pid, --name, --post-mortem or `-- COMMAND`"),
    };
    match (found, arguments.backend) {
        (Found::Vm(vm), Backend::Process) => attach(arguments, vm.pid),
        (Found::Vm(vm), _) => attach_vm(arguments, &vm),
        (Found::Process, _) if !(arguments.symbols.is_empty() && arguments.vcpus.is_empty()) => bail!(
            "process {pid} is no VM that glass knows: leave out --symbols and --vcpu, a process has its own symbols"
        ),
        (Found::Process, Backend::Auto | Backend::Process) => attach(arguments, pid),
        (Found::Process, _) => {
            bail!("process {pid} is no VM that glass knows: leave out --backend to sample the process itself")
        }
    }
}

/// What is copied of a stack. The upload queue needs 17 KiB as a process (2026-11-22).
const PROCESS_STACK_BYTES: u32 = 24 << 10;
const VM_STACK_BYTES: u32 = 16 << 10;
/// Samples per second of a process, which is not stopped for them.
const PROCESS_RATE_HZ: u32 = 997;

fn settings(arguments: &TargetArgs) -> ProcessSettings {
    ProcessSettings {
        rate_hz: arguments.rate.unwrap_or(PROCESS_RATE_HZ),
        stack_bytes: arguments.stack_bytes.unwrap_or(PROCESS_STACK_BYTES),
    }
}

fn process_target(arguments: &TargetArgs, process: Process, name: &str) -> Target {
    let pid = process.pid();
    let backend = "perf_event_open (cpu-clock: time on a CPU, waiting threads are not sampled)";
    let rate_hz = settings(arguments).rate_hz;
    let origin = origin_of(rate_hz, format!("{name} (process {pid})"), backend, String::new());
    Target { source: Box::new(process), origin, is_guest: false, pid }
}

fn command(arguments: &TargetArgs, program: &str, rest: &[String]) -> Result<Target> {
    let mut command = Command::new(program);
    command.args(rest);
    if arguments.quiet_command {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    }
    let process = Process::spawn(command, settings(arguments))?;
    let name = program.rsplit('/').next().unwrap_or(program);
    Ok(process_target(arguments, process, name))
}

fn wanted(backend: Backend) -> Wanted {
    match backend {
        Backend::Auto | Backend::Process => Wanted::Any,
        Backend::Kvm => Wanted::Kvm,
        Backend::Gdbstub => Wanted::Gdbstub,
    }
}

/// How a VM is sampled, and the names of its symbol files; `known` is one that needs not be given.
fn vm_settings(arguments: &TargetArgs, known: Option<&Path>, what: &str) -> Result<(VmSettings, String)> {
    let mut symbols = arguments.symbols.clone();
    let boot_image = known.filter(|file| symbols.is_empty() && is_boot_image(file)).map(Path::to_owned);
    match (symbols.first_mut(), known, arguments.load_address) {
        (Some(first), _, Some(_)) if first.address.is_some() => {
            bail!("{} has two load addresses: leave out --load-address", first.path.display())
        }
        (Some(first), _, Some(address)) => first.address = Some(address),
        (Some(_), _, None) => {}
        (None, Some(_), _) if boot_image.is_some() => {}
        (None, Some(elf), _) => symbols.push(elf.to_owned().into()),
        (None, None, _) => {
            bail!("what {what} runs is unknown: give the guest's ELF file or System.map with --symbols")
        }
    }
    let files: Vec<String> = symbols.iter().map(|file| file.path.display().to_string()).collect();
    let settings = VmSettings {
        stack_bytes: arguments.stack_bytes.unwrap_or(VM_STACK_BYTES),
        symbols,
        boot_image,
        vcpus: arguments.vcpus.clone(),
        force: arguments.force_symbols,
    };
    Ok((settings, files.join(", ")))
}

/// A guest in a file.
fn post_mortem(arguments: &TargetArgs, file: &Path) -> Result<Target> {
    let (settings, files) = vm_settings(arguments, None, &format!("the guest in {}", file.display()))?;
    let source = Box::new(DumpedVm::open(file, settings)?);
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let rate_hz = arguments.rate.unwrap_or(PROCESS_RATE_HZ);
    let origin = origin_of(rate_hz, format!("{name} (dump of a VM)"), "a file, one sample of each vCPU", files);
    Ok(Target { source, origin, is_guest: true, pid: 0 })
}

fn attach_vm(arguments: &TargetArgs, vm: &Vm) -> Result<Target> {
    // Nobody should look for symbols for nothing.
    if let Some(error) = choose::plan(vm, wanted(arguments.backend)).refusal() {
        return Err(error.into());
    }
    let (settings, files) = vm_settings(arguments, vm.elf.as_deref(), &format!("the VM in process {}", vm.pid))?;
    let (source, backend, rate_hz) = attach_by(arguments, vm, &settings)?;
    let accel = match vm.accel.as_str() {
        "" => String::new(),
        accel => format!(", {}", accel.to_uppercase()),
    };
    let title = format!("{} (VM{accel})", vm.name);
    let origin = origin_of(rate_hz, title, backend, files);
    Ok(Target { source, origin, is_guest: true, pid: vm.pid })
}

/// Attaches to a VM by the backend that was asked for, or by the gentlest that works.
fn attach_by(arguments: &TargetArgs, vm: &Vm, settings: &VmSettings) -> Result<(Box<dyn Source>, &'static str, u32)> {
    // Half of them find a busy guest in its kernel; one that is never there has nothing to show of it.
    const LOOKS_MAX: u32 = 20;
    let mut looks = 0;
    let Attached { source, way, rate_hz, passed_over } = loop {
        looks += 1;
        match choose::attach(vm, wanted(arguments.backend), settings, arguments.rate) {
            Err(GuestError::KernelNotFound(_)) if looks < LOOKS_MAX => std::thread::sleep(BETWEEN_LOOKS),
            attached => break attached?,
        }
    };
    for error in passed_over {
        say!("glass: {error}; using QEMU's gdbstub, which holds the VM longer");
    }
    let backend = match way {
        Way::Kvm => "ptrace and KVM's shared registers",
        Way::Gdbstub => "QEMU's gdbstub",
        Way::Monitor => "QEMU's gdbstub, switched on through its monitor",
    };
    Ok((source, backend, rate_hz))
}

fn attach(arguments: &TargetArgs, pid: u32) -> Result<Target> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let has_no_program = fs::read_link(format!("/proc/{pid}/exe")).is_err_and(|error| error.kind() == NotFound);
    let process = Process::attach(pid, settings(arguments))?;
    ensure!(
        !has_no_program,
        "process {pid} ({}) runs no program that could be sampled: it has ended, or is a part of the kernel",
        name.trim_end()
    );
    Ok(process_target(arguments, process, name.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        target: TargetArgs,
    }

    /// A QEMU that was started with `-kernel vmlinuz`, as most are, was refused (2026-11-22).
    #[test]
    fn a_compressed_kernel_needs_no_symbols_to_be_sampled() {
        let path = std::env::temp_dir().join(format!("glass-target-{}", std::process::id()));
        let mut bytes = vec![0; 0x202];
        bytes.extend(b"HdrS");
        fs::write(&path, bytes).unwrap();
        let settings = |line: &[&str]| {
            let line = <Line as clap::Parser>::parse_from([&["glass"], line].concat());
            vm_settings(&line.target, Some(&path), "the VM").unwrap()
        };
        let (nameless, files) = settings(&["--pid", "7"]);
        assert_eq!((nameless.symbols.len(), nameless.boot_image.as_ref(), files.as_str()), (0, Some(&path), ""));
        let (named, files) = settings(&["--pid", "7", "--symbols", "System.map"]);
        assert_eq!((named.symbols.len(), named.boot_image, files.as_str()), (1, None, "System.map"));
        fs::remove_file(&path).unwrap();
    }
}
