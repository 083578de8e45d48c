//! Which memory the trace of a running guest is in.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use glass_formats::trace::TRACE_SYMBOL;
use glass_profiler_core::arch::Architecture;
use glass_profiler_core::image::Image;

use super::memory::{FileMemory, TraceMemory, VmMemory};
use super::pages::{NoPage, Page};
use crate::error::GuestError;
use crate::files::HostFile;
use crate::find::{self, Found, Vm, started};
use crate::memory::Ram;

/// What `/proc/PID/fd/N` of a process's trace points to.
const MEMORY_FILE: &str = "/memfd:glass-trace (deleted)";
/// The most descriptors of a process that are looked at.
const DESCRIPTORS_MAX: usize = 65_536;

/// A running guest that keeps a trace.
pub struct Guest {
    /// Its process, or that of its VMM.
    pub pid: u32,
    /// For display: "upload-queue (VM, TCG)".
    pub title: String,
    /// Whether it is a VM.
    pub is_vm: bool,
    /// The program that it runs.
    pub program: PathBuf,
    /// Its clock counts the time of this machine, at a rate that it states, and not the ticks of this machine's processor.
    pub(super) counts_time: bool,
    started: Option<u64>,
    memory: Option<Box<dyn TraceMemory>>,
    /// What its VMM records of the exits of its processors, if it does.
    exits: Option<Box<dyn TraceMemory>>,
}

impl Guest {
    /// Whether it still runs. A process that has taken its number since is another one.
    pub fn is_alive(&self) -> bool {
        let now = started(self.pid);
        now.is_some() && now == self.started
    }

    pub(super) fn take_memory(&mut self) -> Result<Box<dyn TraceMemory>, GuestError> {
        self.memory.take().ok_or_else(|| GuestError::Trace(format!("{} is being traced already", self.title)))
    }

    pub(super) fn take_exits(&mut self) -> Option<Box<dyn TraceMemory>> {
        self.exits.take()
    }
}

fn refused(pid: u32, what: &str) -> impl Fn(io::Error) -> GuestError {
    let action = format!("{what} of process {pid}");
    move |error| match error.kind() {
        io::ErrorKind::PermissionDenied => GuestError::NotPermitted {
            action: action.clone(),
            remedy: "run glass as the user who started it, or as root".to_owned(),
        },
        io::ErrorKind::NotFound => GuestError::NoProcess(pid),
        _ => GuestError::System { action: action.clone(), error },
    }
}

/// The guest in a process: a service, or the VM in a VMM. `program` is what a VM runs, if that cannot be known.
pub fn open(pid: u32, program: Option<&Path>) -> Result<Guest, GuestError> {
    match find::by_pid(pid)? {
        Found::Vm(vm) => open_vm(&vm, program),
        Found::Process => open_process(pid),
    }
}

/// A service that runs as a process.
pub fn open_process(pid: u32) -> Result<Guest, GuestError> {
    let started = started(pid);
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let title = format!("{} (process {pid})", name.trim_end());
    let Some(path) = memory_file(pid).map_err(refused(pid, "look at the open files"))? else {
        return Err(GuestError::Trace(format!(
            "{title} keeps no trace: it is no service of Glasshouse, or was built before there were traces"
        )));
    };
    let file = File::options().read(true).write(true).open(&path).map_err(refused(pid, "open the trace"))?;
    let memory = FileMemory::new(file, true).map_err(refused(pid, "open the trace"))?;
    if let Err(no) = Page::read(&memory) {
        return Err(no.about(&title));
    }
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let memory: Option<Box<dyn TraceMemory>> = Some(Box::new(memory));
    Ok(Guest { pid, title, is_vm: false, program, counts_time: false, started, memory, exits: None })
}

/// The link to the memory file of a process's trace, if it has one.
fn memory_file(pid: u32) -> io::Result<Option<PathBuf>> {
    let folder = fs::read_dir(format!("/proc/{pid}/fd"))?;
    let is_trace = |path: &PathBuf| fs::read_link(path).is_ok_and(|target| target.as_os_str() == MEMORY_FILE);
    Ok(folder.take(DESCRIPTORS_MAX).flatten().map(|entry| entry.path()).find(is_trace))
}

/// What our own VMM records of exits; others record nothing.
fn exits(pid: u32) -> Option<Box<dyn TraceMemory>> {
    let file = File::open(memory_file(pid).ok()??).ok()?;
    Some(Box::new(FileMemory::new(file, false).ok()?))
}

/// Whether a program can keep a trace; otherwise why not, in a sentence.
pub fn check_program(program: &Path) -> Result<(), GuestError> {
    control_address(program, &open_program(program)?).map(|_| ())
}

pub(super) fn open_program(program: &Path) -> Result<HostFile, GuestError> {
    HostFile::open(program).map_err(|error| GuestError::File { path: program.to_owned(), error })
}

/// The address of the control pages in an image.
pub(super) fn control_address(program: &Path, opened: &HostFile) -> Result<u64, GuestError> {
    let image =
        Image::read(opened, &[TRACE_SYMBOL]).map_err(|error| GuestError::Image { path: program.to_owned(), error })?;
    image.symbol(TRACE_SYMBOL).ok_or_else(|| {
        GuestError::Trace(format!(
            "{} keeps no trace: it has no symbol {TRACE_SYMBOL}, so it is no image of Glasshouse, or was built before there were traces, or was stripped",
            program.display()
        ))
    })
}

/// A VM. `program` is what it runs, if that cannot be known.
pub fn open_vm(vm: &Vm, program: Option<&Path>) -> Result<Guest, GuestError> {
    let pid = vm.pid;
    let program = program.or(vm.elf.as_deref()).ok_or_else(|| {
        GuestError::Symbols(format!("what the VM in process {pid} runs is unknown: give its image with --symbols"))
    })?;
    let started = started(pid);
    let control = control_address(program, &open_program(program)?)?;
    let accel = if vm.accel.is_empty() { String::new() } else { format!(", {}", vm.accel.to_uppercase()) };
    let title = format!("{} (VM{accel})", vm.name);
    let architecture = vm.architecture.unwrap_or_default();
    let mut last = None;
    for ram in Ram::candidates(pid, architecture).map_err(refused(pid, "look at the memory"))? {
        let mut memory = VmMemory { ram, control };
        match Page::read(&memory) {
            Ok(_) => {
                memory.ram.open_for_writing().map_err(refused(pid, "write into the memory"))?;
                let memory: Option<Box<dyn TraceMemory>> = Some(Box::new(memory));
                // QEMU's generic timer is its clock, `CLOCK_MONOTONIC` without the time in which the VM was stopped.
                let counts_time = architecture == Architecture::Aarch64;
                let (program, exits) = (program.to_owned(), exits(pid));
                return Ok(Guest { pid, title, is_vm: true, program, counts_time, started, memory, exits });
            }
            // Of the candidates most are no RAM, where nothing is to be found.
            Err(no) => last = Some(if matches!(no, NoPage::TooNew(_)) { no } else { last.unwrap_or(NoPage::NoMagic) }),
        }
    }
    Err(last.map_or(GuestError::NoRamFile(pid), |no| no.about(&title)))
}
