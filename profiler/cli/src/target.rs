//! The guest and the sampling options on the command line. Shared by all commands that sample.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Result, bail};
use glass_profiler_guests::backends::remote::Launcher;
use glass_profiler_guests::{SymbolFile, parse_address};
use glass_profiler_session::target::{self, Request, Subject, Target};

use crate::arguments::parse_pid;
use crate::console::say;
use crate::linux::GuestFilesArgs;

/// Highest rate that is tried.
const RATE_HZ_MAX: i64 = 100_000;

/// A running guest.
#[derive(clap::Args, Clone, Default)]
pub struct GuestArgs {
    /// Process ID; that of a VMM selects its VM. Several, separated by commas, are sampled together; a trace is of one.
    #[arg(id = "pid", short, long = "pid", value_name = "PID", value_delimiter = ',', value_parser = parse_pid,
        conflicts_with_all = ["name", "command"])]
    pub pids: Vec<u32>,
    /// VM, by its name (of `glass run`, libvirt, or QEMU's -name).
    #[arg(long, conflicts_with = "command")]
    pub name: Option<String>,
}

impl GuestArgs {
    /// The process, for a command that is about one. Fails if there are several.
    pub fn pid(&self) -> Result<Option<u32>> {
        match self.pids[..] {
            [] => Ok(None),
            [pid] => Ok(Some(pid)),
            _ => bail!("a trace is of one service: give one --pid"),
        }
    }
}

/// The guest, and how it is sampled.
#[derive(clap::Args, Default)]
pub struct TargetArgs {
    #[command(flatten)]
    pub guest: GuestArgs,
    /// Read the guest from a memory dump (`glass dump`, QEMU `dump-guest-memory`, `virsh dump --memory-only`): one sample per vCPU. For the
    /// trace in a dump use `glass trace --post-mortem`.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pid", "name", "command", "backend"])]
    pub post_mortem: Option<PathBuf>,
    /// Xen domain to profile, by name or ID; run in dom0. Experimental.
    #[arg(long, value_name = "NAME|ID", conflicts_with_all = ["pid", "name", "post_mortem", "command", "backend", "guest_root", "guest_disk"])]
    pub domain: Option<String>,
    /// If the version of Xen is unknown, assume the data layout of the newest known one: names and stacks may be wrong.
    #[arg(long, requires = "domain")]
    pub force_xen: bool,
    /// Symbol file of the code in the VM, if glass cannot find it: an ELF file or a map (nm -n, System.map, a copy of
    /// the guest's /proc/kallsyms); VMs only. @0xADDRESS is its load address, if that differs from the link
    /// address; may be given several times.
    #[arg(long, value_name = "FILE[@0xADDRESS]", value_parser = SymbolFile::parse, conflicts_with = "command")]
    pub symbols: Vec<SymbolFile>,
    /// Load address of the first of the --symbols, if it differs from the link address.
    #[arg(long, value_name = "0xADDRESS", value_parser = parse_address, requires = "symbols")]
    pub load_address: Option<u64>,
    /// Use symbols that do not match the VM's program, with a warning.
    #[arg(long, requires = "symbols")]
    pub force_symbols: bool,
    #[command(flatten)]
    pub files: GuestFilesArgs,
    /// Leave out the names of the processes of the Linux in the VM, and the paths of its files.
    #[arg(long, conflicts_with_all = ["command", "domain"])]
    pub no_names: bool,
    /// Samples per second of each vCPU, or per second of CPU time of each thread [default: 997 for a process (a prime, to avoid lockstep with
    /// timers), 199 for KVM and Xen, 499 with --host, 79 for a gdbstub; with --off-cpu of each thread, 49].
    #[arg(short = 'F', long, value_name = "HZ", value_parser = clap::value_parser!(u32).range(1..=RATE_HZ_MAX))]
    pub rate: Option<u32>,
    /// Sample only this vCPU, by its number; may be given several times.
    #[arg(long = "vcpu", value_name = "N", conflicts_with = "command")]
    pub vcpus: Vec<u32>,
    /// Bytes of the stack to copy with a sample; deeper stacks are cut [default: 24 KiB for a VM, 28 KiB for a process].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(64..=63 << 10))]
    pub stack_bytes: Option<u32>,
    /// Do not stop a vCPU that sleeps: its samples are idle and have no stack. A VM under TCG is stopped unless all its vCPUs sleep.
    #[arg(long, conflicts_with_all = ["command", "post_mortem", "domain", "host"])]
    pub leave_idle: bool,
    /// How to stop and read the guest.
    #[arg(long, value_enum, default_value_t = Backend::Auto, conflicts_with = "command")]
    pub backend: Backend,
    /// Sample what the host does for the VM, too: its VMM, exits that KVM handles, processes of `glass run`. VMs under KVM only.
    #[arg(long, conflicts_with_all = ["command", "post_mortem", "domain"])]
    pub host: bool,
    /// Show what each thread of the Linux in a VM waits for, in its process and in the kernel, instead of what runs. No vCPU is stopped.
    #[arg(long, conflicts_with_all = ["command", "post_mortem", "domain", "host"])]
    pub off_cpu: bool,
    /// Command to run and sample from its start.
    #[arg(last = true, conflicts_with_all = ["guest_root", "guest_disk"])]
    pub command: Vec<OsString>,
    /// The command may not use our terminal.
    #[arg(skip)]
    pub quiet_command: bool,
}

/// How to stop and read a guest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Backend {
    /// The one that disturbs the guest least: kvm for a VM under KVM, otherwise gdbstub; process for a process.
    #[default]
    Auto,
    /// Stop the vCPU threads by ptrace and read the registers of the vCPUs from KVM.
    Kvm,
    /// Use QEMU's gdbstub.
    Gdbstub,
    /// Sample the process itself, even if it is a VMM.
    Process,
}

impl From<Backend> for target::Backend {
    fn from(backend: Backend) -> target::Backend {
        match backend {
            Backend::Auto => target::Backend::Auto,
            Backend::Kvm => target::Backend::Kvm,
            Backend::Gdbstub => target::Backend::Gdbstub,
            Backend::Process => target::Backend::Process,
        }
    }
}

impl TargetArgs {
    fn subject(&self) -> Result<Subject> {
        if let Some(name) = &self.domain {
            return Ok(Subject::Domain { name: name.clone(), force: self.force_xen });
        }
        Ok(match (&self.command[..], &self.post_mortem, &self.guest.name, &self.guest.pids[..]) {
            ([program, arguments @ ..], ..) => Subject::Command {
                program: program.clone(),
                arguments: arguments.to_vec(),
                is_quiet: self.quiet_command,
            },
            (_, Some(file), ..) => Subject::Dump(file.clone()),
            (_, _, Some(name), _) => Subject::Named(name.clone()),
            (.., [pid]) => Subject::Process(*pid),
            (.., pids @ [_, ..]) => Subject::Processes(pids.to_vec()),
            _ => bail!("no target is named: give --pid, --name, --domain, --post-mortem or `-- COMMAND`"),
        })
    }
}

/// Finds and attaches to what the arguments name; to a VM by a process of its own.
pub fn find(arguments: &TargetArgs, launcher: Launcher) -> Result<Target> {
    let request = Request {
        subject: arguments.subject()?,
        symbols: arguments.symbols.clone(),
        load_address: arguments.load_address,
        force_symbols: arguments.force_symbols,
        rate_hz: arguments.rate,
        vcpus: arguments.vcpus.clone(),
        stack_bytes: arguments.stack_bytes,
        leaves_sleepers: arguments.leave_idle,
        backend: arguments.backend.into(),
        processes: arguments.files.processes(arguments.no_names),
        with_host: arguments.host,
        off_cpu: arguments.off_cpu,
        launcher: Some(launcher),
    };
    let target = target::open(&request)?;
    target.remarks.iter().for_each(|remark| say!("glass: {remark}"));
    Ok(target)
}
