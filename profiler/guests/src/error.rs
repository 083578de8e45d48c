//! Errors of guests, with what to do.

use std::fmt;
use std::io;
use std::path::PathBuf;

use glass_profiler_core::elf::ImageError;

/// Why a guest cannot be sampled.
#[derive(Debug)]
pub enum GuestError {
    /// No process has this id.
    NoProcess(u32),
    /// The process belongs to another user.
    NotPermitted {
        /// The action that was denied.
        action: String,
        /// The remedy.
        remedy: String,
    },
    /// A file could not be read.
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A file is not a usable ELF file.
    Image {
        /// Which.
        path: PathBuf,
        /// Why.
        error: ImageError,
    },
    /// The guest runs another program than that of the symbol file.
    WrongImage {
        /// The symbol file.
        path: PathBuf,
        /// The difference.
        difference: String,
    },
    /// The symbol files contradict each other or the guest: one sentence.
    Symbols(String),
    /// A Linux guest's kernel was not found. A later attempt may find it: the guest may have only just been started, or have removed
    /// the address space meanwhile.
    KernelNotFound(String),
    /// QEMU runs without a gdbstub, and without a monitor that could start one.
    NoGdbstub(u32),
    /// A file is not a readable dump of a guest.
    Dump {
        /// Which.
        path: PathBuf,
        /// The phrase after its name in a sentence.
        what: String,
    },
    /// The VMM is a program without a backend.
    UnknownVmm(String),
    /// No thread of a vCPU was found in the process.
    NoVcpu(u32),
    /// No memory of the VMM was recognised as RAM.
    NoRamFile(u32),
    /// The machine does not support what a backend needs.
    Unsupported(String),
    /// A command could not be started.
    Command {
        /// The program.
        program: String,
        /// Why.
        error: io::Error,
    },
    /// The gdbstub did not answer in time, or with something else than expected.
    Protocol(String),
    /// The same of QEMU's monitor.
    Monitor(String),
    /// A system call failed unexpectedly.
    System {
        /// The action.
        action: String,
        /// Why it failed.
        error: io::Error,
    },
    /// The VM has no vCPU of this number.
    NoSuchVcpu {
        /// The number.
        index: u32,
        /// Those that there are.
        there: Vec<u32>,
    },
    /// What the process that holds the VM reports: one sentence.
    Held {
        /// See [`GuestError::is_of_the_backend`].
        is_of_the_backend: bool,
        /// What is wrong.
        sentence: String,
    },
    /// No running VM has this name.
    NotFound(String),
    /// The guest has no trace that could be read: one sentence.
    Trace(String),
}

impl GuestError {
    /// Whether another backend may still be able to sample the guest: the failure is one of the backend, not
    /// of the guest or the user's input.
    pub fn is_of_the_backend(&self) -> bool {
        matches!(
            self,
            GuestError::NotPermitted { .. }
                | GuestError::NoVcpu(_)
                | GuestError::NoRamFile(_)
                | GuestError::Unsupported(_)
                | GuestError::NoGdbstub(_)
                | GuestError::UnknownVmm(_)
                | GuestError::Monitor(_)
                | GuestError::NotFound(_)
                | GuestError::Held { is_of_the_backend: true, .. }
        )
    }
}

impl fmt::Display for GuestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GuestError::NoProcess(pid) => write!(f, "there is no process {pid}: give the id of a running one"),
            GuestError::NotPermitted { action, remedy } => write!(f, "not permitted to {action}: {remedy}"),
            GuestError::File { path, error } => write!(f, "cannot read {}: {error}", path.display()),
            GuestError::Image { path, error: error @ ImageError::Stripped } => {
                write!(f, "{} {error}: give the file before stripping with --symbols", path.display())
            }
            GuestError::Image { path, error } => {
                write!(f, "{} {error}: give the ELF file that the guest runs with --symbols", path.display())
            }
            GuestError::WrongImage { path, difference } => write!(
                f,
                "the guest does not run {}: {difference}; give the ELF file that it was started with (--symbols)",
                path.display()
            ),
            GuestError::NoGdbstub(pid) => write!(
                f,
                "QEMU {pid} has neither a gdbstub nor a monitor on a socket: start it with `-gdb unix:PATH,server=on,wait=off` (glass run does) or `-qmp unix:PATH,server=on,wait=off`"
            ),
            GuestError::Dump { path, what } => write!(f, "{} {what}", path.display()),
            GuestError::UnknownVmm(vmm) => write!(
                f,
                "glass has no backend for a VM of {vmm}: it samples VMs of QEMU and of any VMM that uses KVM (--backend process samples {vmm} itself)"
            ),
            GuestError::NoVcpu(pid) => {
                write!(
                    f,
                    "process {pid} has no vCPU of KVM that runs: continue the VM if it is paused; if it does not use KVM, leave out --host and --backend kvm"
                )
            }
            GuestError::NoRamFile(pid) => write!(
                f,
                "no memory of process {pid} could be recognised as the RAM of its VM: give the image that the guest runs with --symbols; if the VMM is QEMU, starting it with `-object memory-backend-memfd,share=on` helps too (glass run does)"
            ),
            GuestError::Symbols(what) | GuestError::KernelNotFound(what) => write!(f, "{what}"),
            GuestError::Unsupported(what) => write!(f, "{what}"),
            GuestError::Command { program, error } => write!(f, "cannot start {program}: {error}"),
            GuestError::Monitor(why) => write!(f, "QEMU's monitor: {why}"),
            GuestError::Protocol(why) => write!(f, "QEMU's gdbstub: {why}"),
            GuestError::System { action, error } => write!(f, "cannot {action}: {error}"),
            GuestError::NoSuchVcpu { index, there } => {
                let there = there.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
                write!(f, "the VM has no vCPU {index}: choose of {there} with --vcpu")
            }
            GuestError::NotFound(what) | GuestError::Trace(what) => write!(f, "{what}"),
            GuestError::Held { sentence, .. } => f.write_str(sentence),
        }
    }
}

impl std::error::Error for GuestError {}
