//! What is to be sampled and how: from what a user names to something that can be sampled.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io::ErrorKind::NotFound;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use glass_profiler_core::model::Origin;
use glass_profiler_guests::backends;
use glass_profiler_guests::backends::choose::{self, Attached, BackendChoice};
use glass_profiler_guests::backends::file::DumpedVm;
use glass_profiler_guests::backends::off_cpu::{self, OffCpu};
use glass_profiler_guests::backends::process::{Process, ProcessSettings};
use glass_profiler_guests::backends::remote::Launcher;
use glass_profiler_guests::backends::xen;
use glass_profiler_guests::files::{OpenedFiles, Opener};
use glass_profiler_guests::find::{self, Found, Vm, domains};
use glass_profiler_guests::systems::linux_guest::Access;
use glass_profiler_guests::{GuestError, GuestProcesses, Source, SymbolFile, VmSettings, is_boot_image, of_c_program};

/// What is copied of a stack. The upload queue needs 17 KiB (2026-11-22), as a VM where a connection opens.
const STACK_BYTES: u32 = 24 << 10;
/// The same of a process. The upload queue needs 25 KiB (2026-11-26), as a process where a body is received.
const PROCESS_STACK_BYTES: u32 = 28 << 10;
/// Where the symbols are if no file is named: a Linux has its own in its RAM.
const IN_RAM: &str = "the guest's RAM";
/// Samples per second of a process, which is not stopped for them.
const PROCESS_RATE_HZ: u32 = 997;

/// What is sampled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// A command that is started for it.
    Command {
        /// Its program.
        program: OsString,
        /// What follows it.
        arguments: Vec<OsString>,
        /// It may not use our terminal.
        is_quiet: bool,
    },
    /// What QEMU's `dump-guest-memory` wrote.
    Dump(PathBuf),
    /// A process, or the VM in it.
    Process(u32),
    /// Several processes, none of which is meant for its VM.
    Processes(Vec<u32>),
    /// A VM, by its name.
    Named(String),
    /// A domain of Xen.
    Domain {
        /// Its name or its number.
        name: String,
        /// An unknown version of Xen is taken for the newest known one.
        force: bool,
    },
}

/// The backend that a user chooses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Backend {
    /// The one with the shortest pauses that works: KVM for a VM under KVM, else QEMU's gdbstub; `perf_event_open` for a process.
    #[default]
    Auto,
    /// ptrace, and the registers where KVM keeps them.
    Kvm,
    /// QEMU's gdbstub.
    Gdbstub,
    /// The process itself, also if it is a VMM.
    Process,
}

/// What is sampled, and how.
#[derive(Debug, Clone)]
pub struct Request {
    /// What.
    pub subject: Subject,
    /// What a VM runs, if that cannot be known.
    pub symbols: Vec<SymbolFile>,
    /// Where the first of the symbol files is loaded.
    pub load_address: Option<u64>,
    /// Symbols are used that do not fit what the VM runs.
    pub force_symbols: bool,
    /// Samples per second; `None`: what costs little.
    pub rate_hz: Option<u32>,
    /// Only these vCPUs; none: all.
    pub vcpus: Vec<u32>,
    /// How much of a stack is copied.
    pub stack_bytes: Option<u32>,
    /// A vCPU that sleeps is not stopped, under TCG if all of them do: its samples have no stack.
    pub leaves_sleepers: bool,
    /// By which backend.
    pub backend: Backend,
    /// Of a Linux in a VM, how its processes are shown.
    pub processes: GuestProcesses,
    /// Of a VM under KVM, what its VMM and the host's kernel do for it, too.
    pub with_host: bool,
    /// Of a Linux in a VM, what its threads wait for, instead of what its vCPUs do.
    pub off_cpu: bool,
    /// How to start the process that stops a VM and reads it; without it, this process does.
    pub launcher: Option<Launcher>,
}

/// A guest that can be sampled.
pub struct Target {
    /// Its samples.
    pub source: Box<dyn Source>,
    /// Where a recording of it comes from.
    pub origin: Origin,
    /// It is a VM.
    pub is_guest: bool,
    /// Its process, or that of its VMM; 0 if it is a file or a domain of Xen.
    pub pid: u32,
    /// What the user should know, one sentence each: why another backend was chosen.
    pub remarks: Vec<String>,
    /// It is a VM that another process holds.
    pub is_remote: bool,
    /// Its symbol files, if this process may not be able to open them again, or who opens files for it.
    pub opened: OpenedFiles,
}

/// Why nothing can be sampled.
#[derive(Debug)]
pub enum TargetError {
    /// The guest cannot be sampled.
    Guest(GuestError),
    /// The request contradicts itself or the guest: one sentence.
    Request(String),
}

impl fmt::Display for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TargetError::Guest(error) => error.fmt(f),
            TargetError::Request(sentence) => f.write_str(sentence),
        }
    }
}

impl std::error::Error for TargetError {}

impl From<GuestError> for TargetError {
    fn from(error: GuestError) -> TargetError {
        TargetError::Guest(error)
    }
}

impl Request {
    /// A guest, by the defaults.
    pub fn new(subject: Subject) -> Request {
        Request {
            subject,
            symbols: Vec::new(),
            load_address: None,
            force_symbols: false,
            rate_hz: None,
            vcpus: Vec::new(),
            stack_bytes: None,
            leaves_sleepers: false,
            backend: Backend::Auto,
            processes: GuestProcesses::default(),
            with_host: false,
            off_cpu: false,
            launcher: None,
        }
    }

    fn process_settings(&self) -> ProcessSettings {
        ProcessSettings {
            rate_hz: self.rate_hz.unwrap_or(PROCESS_RATE_HZ),
            stack_bytes: self.stack_bytes.unwrap_or(PROCESS_STACK_BYTES),
        }
    }

    fn wanted(&self) -> BackendChoice {
        match self.backend {
            Backend::Auto | Backend::Process => BackendChoice::Any,
            Backend::Kvm => BackendChoice::Kvm,
            Backend::Gdbstub => BackendChoice::Gdbstub,
        }
    }
}

/// The VM with a name.
pub fn find_vm(name: &str) -> Result<Vm, TargetError> {
    find::by_name(name).map_err(|error| match process_called(name) {
        Some(pid) => TargetError::Request(format!("{error}; process {pid} is called so: give --pid {pid}")),
        None => error.into(),
    })
}

/// A process that has this name for the kernel, by its first 15 bytes.
fn process_called(name: &str) -> Option<u32> {
    const KERNEL_BYTES: usize = 15;
    let known = name.as_bytes().get(..KERNEL_BYTES).unwrap_or(name.as_bytes());
    let pids = fs::read_dir("/proc").ok()?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_called = |pid: &u32| fs::read(format!("/proc/{pid}/comm")).is_ok_and(|own| own.trim_ascii_end() == known);
    pids.into_iter().find(is_called)
}

/// Where a recording comes from; `rate_hz` is 0 if nothing is sampled.
pub fn origin(rate_hz: u32, guest: String, backend: &str, symbols: String) -> Origin {
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

/// Finds a guest and attaches to it.
pub fn open(request: &Request) -> Result<Target, TargetError> {
    let refuse = |sentence: String| Err(TargetError::Request(sentence));
    let found = match &request.subject {
        Subject::Command { program, arguments, is_quiet } => return command(request, program, arguments, *is_quiet),
        Subject::Dump(file) => return dump(request, file),
        Subject::Domain { name, force } => return domain(request, name, *force),
        Subject::Named(name) => Found::Vm(find_vm(name)?),
        Subject::Processes(pids) => return processes(request, pids),
        Subject::Process(pid) => find::by_pid(*pid)?,
    };
    let pid = match (&found, &request.subject) {
        (Found::Vm(vm), _) => vm.pid,
        (Found::Process, Subject::Process(pid)) => *pid,
        (Found::Process, _) => 0,
    };
    if request.with_host && !(matches!(found, Found::Vm(_)) && matches!(request.backend, Backend::Auto | Backend::Kvm))
    {
        return refuse(format!(
            "--host shows what the host does for a VM under KVM, and process {pid} is none, or --backend is not kvm: leave out --host"
        ));
    }
    if request.off_cpu {
        return match found {
            Found::Vm(vm) => threads(request, &vm),
            Found::Process => refuse(format!(
                "--off-cpu shows what the threads of a Linux in a VM wait for, and process {pid} is not a VM that glass supports: leave out --off-cpu"
            )),
        };
    }
    match (found, request.backend) {
        (Found::Vm(_), Backend::Process) => process(request, &[pid]),
        (Found::Vm(vm), _) => vm_target(request, &vm),
        (Found::Process, _) if !(request.symbols.is_empty() && request.vcpus.is_empty()) => refuse(format!(
            "process {pid} is not a VM that glass supports: leave out --symbols and --vcpu, a process has its own symbols"
        )),
        (Found::Process, Backend::Auto | Backend::Process) => process(request, &[pid]),
        (Found::Process, _) => refuse(format!(
            "process {pid} is not a VM that glass supports: leave out --backend to sample the process itself"
        )),
    }
}

/// Attaches to a process. If this one is to enter a jail, it does so then, and another one opens the files that are read from there on.
fn attach(
    request: &Request,
    open: impl FnOnce() -> Result<Process, TargetError>,
) -> Result<(Process, OpenedFiles), TargetError> {
    let launcher = request.launcher.as_ref();
    let folders = &request.processes.debug_folders;
    let Some((launcher, enter)) = launcher.and_then(|launcher| Some((launcher, launcher.before_parsing?))) else {
        return Ok((open()?, OpenedFiles::default().with_debug_folders(folders)));
    };
    let opener = Opener::start(&launcher.program, &launcher.arguments)?;
    let mut process = open()?;
    process.warn(enter());
    Ok((process, OpenedFiles::by(opener).with_debug_folders(folders)))
}

fn process_target(request: &Request, (process, opened): (Process, OpenedFiles), title: String) -> Target {
    let pid = process.pid();
    let backend = "perf_event_open (cpu-clock: time on a CPU, waiting threads are not sampled)";
    let rate_hz = request.process_settings().rate_hz;
    let origin = origin(rate_hz, title, backend, String::new());
    Target { source: Box::new(process), origin, is_guest: false, pid, remarks: Vec::new(), is_remote: false, opened }
}

fn command(request: &Request, program: &OsStr, arguments: &[OsString], is_quiet: bool) -> Result<Target, TargetError> {
    let mut command = Command::new(program);
    command.args(arguments);
    if is_quiet {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    }
    let process = attach(request, || Ok(Process::spawn(command, request.process_settings())?))?;
    let name = Path::new(program).file_name().unwrap_or(program).to_string_lossy();
    let title = title_of(&[(process.0.pid(), name.into_owned())]);
    Ok(process_target(request, process, title))
}

/// "web (process 7)", "web (process 7), db (process 8) and 3 more".
fn title_of(named: &[(u32, String)]) -> String {
    const SHOWN: usize = 2;
    let shown: Vec<String> = named.iter().take(SHOWN).map(|(pid, name)| format!("{name} (process {pid})")).collect();
    match named.len().saturating_sub(SHOWN) {
        0 => shown.join(" and "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Attaches to several processes; a VM is recorded alone.
fn processes(request: &Request, pids: &[u32]) -> Result<Target, TargetError> {
    for pid in pids {
        if matches!(find::by_pid(*pid)?, Found::Vm(_)) && request.backend != Backend::Process {
            return Err(TargetError::Request(format!(
                "process {pid} is a VMM, and a VM is recorded alone: give one --pid, or --backend process for the VMM itself"
            )));
        }
    }
    if request.with_host || !request.symbols.is_empty() || !request.vcpus.is_empty() {
        return Err(TargetError::Request(
            "several --pid are processes: leave out --host, --symbols and --vcpu, which are for a VM".to_owned(),
        ));
    }
    process(request, pids)
}

fn process(request: &Request, pids: &[u32]) -> Result<Target, TargetError> {
    let name = |pid: &u32| {
        let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        (*pid, String::from_utf8_lossy(&name).trim_end().to_owned())
    };
    let named: Vec<(u32, String)> = pids.iter().map(name).collect();
    let has_no_program =
        |pid: u32| fs::read_link(format!("/proc/{pid}/exe")).is_err_and(|error| error.kind() == NotFound);
    let without = named.iter().find(|(pid, _)| has_no_program(*pid));
    let process = attach(request, || {
        let process = Process::attach_all(pids, request.process_settings())?;
        match without {
            Some((pid, name)) => Err(TargetError::Request(format!(
                "process {pid} ({name}) runs no program that could be sampled: it has ended, or is a part of the kernel"
            ))),
            None => Ok(process),
        }
    })?;
    Ok(process_target(request, process, title_of(&named)))
}

/// How a VM is sampled, and the names of its symbol files; `known` is one that needs not be given.
fn vm_settings(request: &Request, known: Option<&Path>) -> Result<(VmSettings, String), TargetError> {
    let refuse = |sentence: String| Err(TargetError::Request(sentence));
    let mut symbols = request.symbols.clone();
    let boot_image = known.filter(|file| symbols.is_empty() && is_boot_image(file)).map(Path::to_owned);
    match (symbols.first_mut(), known, request.load_address) {
        (Some(first), _, Some(_)) if first.address.is_some() => {
            return refuse(format!("{} has two load addresses: leave out --load-address", first.path.display()));
        }
        (Some(first), _, Some(address)) => first.address = Some(address),
        (Some(_), _, None) => {}
        (None, Some(_), _) if boot_image.is_some() => {}
        (None, Some(elf), _) => {
            symbols.push(elf.to_owned().into());
            symbols.extend(of_c_program(elf));
        }
        // A Linux has its symbols in its RAM.
        (None, None, _) => {}
    }
    let files: Vec<String> = symbols.iter().map(|file| file.path.display().to_string()).collect();
    let settings = VmSettings {
        stack_bytes: request.stack_bytes.unwrap_or(STACK_BYTES),
        leaves_sleepers: request.leaves_sleepers,
        symbols,
        boot_image,
        vcpus: request.vcpus.clone(),
        force: request.force_symbols,
        // A kernel whose place is given is that one.
        files_only: request.load_address.is_some(),
        processes: request.processes.clone(),
    };
    let files = if files.is_empty() { IN_RAM.to_owned() } else { files.join(", ") };
    Ok((settings, files))
}

/// A guest in a file.
fn dump(request: &Request, file: &Path) -> Result<Target, TargetError> {
    let (settings, files) = vm_settings(request, None)?;
    let enter = request.launcher.as_ref().and_then(|launcher| launcher.before_parsing);
    let (source, opened) = DumpedVm::open_and_enter(file, settings, enter)?;
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let rate_hz = request.rate_hz.unwrap_or(PROCESS_RATE_HZ);
    let origin = origin(rate_hz, format!("{name} (dump of a VM)"), "a file, one sample of each vCPU", files);
    Ok(Target {
        source: Box::new(source),
        origin,
        is_guest: true,
        pid: 0,
        remarks: Vec::new(),
        is_remote: false,
        opened,
    })
}

/// A domain of Xen.
fn domain(request: &Request, name: &str, force: bool) -> Result<Target, TargetError> {
    let domain = domains::find(name, force)?;
    let (settings, files) = vm_settings(request, domain.kernel.as_deref())?;
    let rate_hz = request.rate_hz.unwrap_or(xen::DEFAULT_RATE_HZ);
    let (source, opened) = choose::attach_domain(&domain, force, settings, rate_hz, request.launcher.as_ref())?;
    let title = format!("{} (domain {} of Xen, {})", domain.name, domain.id, domain.kind);
    let origin = origin(rate_hz, title, "Xen's hypercalls and mappings", files);
    Ok(Target {
        source,
        origin,
        is_guest: true,
        pid: 0,
        remarks: Vec::new(),
        is_remote: request.launcher.is_some(),
        opened,
    })
}

fn vm_target(request: &Request, vm: &Vm) -> Result<Target, TargetError> {
    // A user should not have to look for symbols that cannot be used.
    if let Some(error) = choose::plan(vm, request.wanted()).refusal() {
        return Err(error.into());
    }
    let (settings, files) = vm_settings(request, vm.elf.as_deref())?;
    let Attached { source, backend, rate_hz, passed_over, opened } = choose::attach(
        vm,
        request.wanted(),
        &settings,
        (request.rate_hz, request.with_host),
        request.launcher.as_ref(),
    )?;
    let backend = match backend {
        backends::Backend::Kvm if request.with_host => "ptrace and KVM's shared registers; the host by perf_event_open",
        backends::Backend::Kvm => "ptrace and KVM's shared registers",
        backends::Backend::Gdbstub => "QEMU's gdbstub",
        backends::Backend::Monitor => "QEMU's gdbstub, switched on through its monitor",
    };
    let accel = match vm.accel.as_str() {
        "" => String::new(),
        accel => format!(", {}", accel.to_uppercase()),
    };
    let origin = origin(rate_hz, format!("{} (VM{accel})", vm.name), backend, files);
    let remark = |error: &GuestError| format!("{error}; using QEMU's gdbstub, which holds the VM longer");
    let remarks = passed_over.iter().map(remark).collect();
    Ok(Target { source, origin, is_guest: true, pid: vm.pid, remarks, is_remote: request.launcher.is_some(), opened })
}

/// The threads of the Linux in a VM, by its RAM.
fn threads(request: &Request, vm: &Vm) -> Result<Target, TargetError> {
    let is_of_vcpus = request.with_host
        || request.backend != Backend::Auto
        || request.stack_bytes.is_some()
        || request.load_address.is_some()
        || !(request.symbols.is_empty() && request.vcpus.is_empty());
    if is_of_vcpus {
        return Err(TargetError::Request(
            "--off-cpu reads the threads of a Linux from the RAM of its VM: leave out --host, --backend, --vcpu, --symbols and --stack-bytes, which are for samples of vCPUs".to_owned(),
        ));
    }
    let opened = match (&request.launcher, request.processes.needs_opener()) {
        (Some(launcher), true) => OpenedFiles::by(Opener::start(&launcher.program, &launcher.arguments)?),
        _ => OpenedFiles::default(),
    };
    let opened = opened.with_debug_folders(&request.processes.debug_folders);
    let enter = request.launcher.as_ref().and_then(|launcher| launcher.before_parsing);
    let rate_hz = request.rate_hz.unwrap_or(off_cpu::DEFAULT_RATE_HZ);
    let access = Access { enter, processes: request.processes.clone(), opened: opened.clone() };
    let source = Box::new(OffCpu::open(vm, rate_hz, access)?);
    let origin = origin(
        rate_hz,
        format!("{} (VM, its threads)", vm.name),
        "the guest's RAM (off-CPU: what its threads wait for; no vCPU is stopped)",
        IN_RAM.to_owned(),
    );
    Ok(Target { source, origin, is_guest: true, pid: vm.pid, remarks: Vec::new(), is_remote: true, opened })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A QEMU that was started with `-kernel vmlinuz`, as most are, was refused (2026-11-22).
    #[test]
    fn a_compressed_kernel_needs_no_symbols_to_be_sampled() {
        let path = std::env::temp_dir().join(format!("glass-target-{}", std::process::id()));
        let mut bytes = vec![0; 0x202];
        bytes.extend(b"HdrS");
        fs::write(&path, bytes).unwrap();
        let mut request = Request::new(Subject::Process(7));
        let settings = |request: &Request| vm_settings(request, Some(&path)).unwrap();
        let (nameless, files) = settings(&request);
        assert_eq!((nameless.symbols.len(), nameless.boot_image.as_ref(), files.as_str()), (0, Some(&path), IN_RAM));
        request.symbols = vec![SymbolFile::parse("System.map").unwrap()];
        let (named, files) = settings(&request);
        assert_eq!((named.symbols.len(), named.boot_image, files.as_str()), (1, None, "System.map"));
        fs::remove_file(&path).unwrap();
    }
}
