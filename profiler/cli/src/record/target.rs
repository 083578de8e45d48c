//! From the command line to something that can be sampled.

use std::fs;
use std::process::Command;

use anyhow::{Result, bail};
use glass_guests::find::{self, Found, Vm};
use glass_guests::gdbstub::QemuVm;
use glass_guests::kvm::KvmVm;
use glass_guests::paced::Paced;
use glass_guests::process::{Process, ProcessSettings};
use glass_guests::{Source, VmSettings};
use glass_profile::model::Origin;

use super::Args;

/// How to look into a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Backend {
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
pub(super) struct Target {
    pub(super) source: Box<dyn Source>,
    pub(super) origin: Origin,
    pub(super) is_guest: bool,
    pub(super) pid: u32,
}

fn origin(arguments: &Args, guest: String, backend: &str, symbols: String) -> Origin {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Origin {
        guest,
        backend: backend.to_owned(),
        symbols,
        host: host.trim_end().to_owned(),
        rate_hz: arguments.rate,
        recorder: concat!("glass ", env!("CARGO_PKG_VERSION")).to_owned(),
        ..Default::default()
    }
}

/// Finds and attaches to what the arguments name.
pub(super) fn find(arguments: &Args) -> Result<Target> {
    if let [program, rest @ ..] = &arguments.command[..] {
        return command(arguments, program, rest);
    }
    let found = match (&arguments.name, arguments.pid) {
        (Some(name), _) => Found::Vm(find::by_name(name)?),
        (None, Some(pid)) => find::by_pid(pid)?,
        (None, None) => bail!("nothing to record: give --pid, --name or `-- COMMAND`"),
    };
    match (found, arguments.backend) {
        (Found::Vm(vm), Backend::Process) => attach(arguments, vm.pid),
        (Found::Vm(vm), _) => attach_vm(arguments, &vm),
        (Found::Process, Backend::Auto | Backend::Process) => attach(arguments, arguments.pid.unwrap_or_default()),
        (Found::Process, _) => bail!(
            "process {} is no VM that glass knows: leave out --backend to sample the process itself",
            arguments.pid.unwrap_or_default()
        ),
    }
}

fn settings(arguments: &Args) -> ProcessSettings {
    ProcessSettings { rate_hz: arguments.rate, stack_bytes: arguments.stack_bytes }
}

fn process_target(arguments: &Args, process: Process, name: &str) -> Target {
    let pid = process.pid();
    let backend = "perf_event_open (cpu-clock: time on a CPU, waiting threads are not sampled)";
    let origin = origin(arguments, format!("{name} (process {pid})"), backend, String::new());
    Target { source: Box::new(process), origin, is_guest: false, pid }
}

fn command(arguments: &Args, program: &str, rest: &[String]) -> Result<Target> {
    let mut command = Command::new(program);
    command.args(rest);
    let process = Process::spawn(command, settings(arguments))?;
    let name = program.rsplit('/').next().unwrap_or(program);
    Ok(process_target(arguments, process, name))
}

fn attach_vm(arguments: &Args, vm: &Vm) -> Result<Target> {
    let Some(symbols) = arguments.symbols.clone().or(vm.elf.clone()) else {
        bail!("what the VM in process {} runs is unknown: give the guest's ELF file with --symbols", vm.pid);
    };
    let settings = VmSettings { stack_bytes: arguments.stack_bytes, symbols: symbols.clone() };
    let (source, backend) = attach_by(arguments, vm, settings)?;
    let accel = match vm.accel.as_str() {
        "" => String::new(),
        accel => format!(", {}", accel.to_uppercase()),
    };
    let title = format!("{} (VM{accel})", vm.name);
    let origin = origin(arguments, title, backend, symbols.display().to_string());
    Ok(Target { source, origin, is_guest: true, pid: vm.pid })
}

/// Attaches to a VM by the backend that was asked for, or by the gentlest that works.
fn attach_by(arguments: &Args, vm: &Vm, settings: VmSettings) -> Result<(Box<dyn Source>, &'static str)> {
    let wants_kvm = match arguments.backend {
        Backend::Kvm => true,
        Backend::Auto => vm.accel == "kvm",
        Backend::Gdbstub | Backend::Process => false,
    };
    if wants_kvm {
        match KvmVm::attach(vm, settings.clone()) {
            Ok(guest) => {
                let source = Box::new(Paced::new(guest, arguments.rate));
                return Ok((source, "ptrace and KVM's shared registers"));
            }
            Err(error) if arguments.backend == Backend::Auto && error.is_of_the_backend() && vm.gdb.is_some() => {
                eprintln!("glass: {error}; using QEMU's gdbstub, which holds the VM longer");
            }
            Err(error) => return Err(error.into()),
        }
    }
    let guest = QemuVm::attach(vm, settings)?;
    Ok((Box::new(Paced::new(guest, arguments.rate)), "QEMU's gdbstub"))
}

fn attach(arguments: &Args, pid: u32) -> Result<Target> {
    let process = Process::attach(pid, settings(arguments))?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Ok(process_target(arguments, process, name.trim_end()))
}
