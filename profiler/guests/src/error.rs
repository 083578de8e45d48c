//! What can go wrong with a guest, in words that say what to do.

use std::fmt;
use std::io;
use std::path::PathBuf;

use glass_profile::image::ImageError;

/// Why a guest cannot be sampled.
#[derive(Debug)]
pub enum GuestError {
    /// No process has this id.
    NoProcess(u32),
    /// The process belongs to somebody else.
    NotPermitted {
        /// What was to be done.
        action: String,
        /// What would permit it.
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
    /// The guest runs another program than the symbol file holds.
    WrongImage {
        /// The symbol file.
        path: PathBuf,
        /// What differs.
        difference: String,
    },
    /// The symbol files contradict each other or the guest: one sentence.
    Symbols(String),
    /// A Linux guest's kernel is not where it was looked for. Another look may find it: a core that runs
    /// a process sees no kernel if their page tables are isolated.
    KernelNotFound(String),
    /// QEMU runs without gdbstub, and without a monitor that could switch one on.
    NoGdbstub(u32),
    /// A file is no dump of a guest that can be read.
    Dump {
        /// Which.
        path: PathBuf,
        /// What follows its name in a sentence.
        what: String,
    },
    /// The VM is run by a program that glass has no way into.
    UnknownVmm(String),
    /// The process has no vCPU whose thread could be found.
    NoVcpu(u32),
    /// None of a VMM's memory could be recognised as RAM.
    NoRamFile(u32),
    /// The machine cannot do what a backend needs.
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
    /// A system call failed that has no reason to.
    System {
        /// What was done.
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
    /// A registry entry names nothing that runs.
    NotFound(String),
    /// The guest has no trace that could be read: one sentence.
    Trace(String),
}

impl GuestError {
    /// Whether another backend may still be able to sample the guest: what fails here is the way, not
    /// the guest or what the user named.
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
                "glass has no way into a VM of {vmm}: it looks into QEMU and whatever else uses KVM (--backend process samples {vmm} itself)"
            ),
            GuestError::NoVcpu(pid) => {
                write!(f, "process {pid} has no vCPU of KVM that runs: continue the VM if it is paused")
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
        }
    }
}

impl std::error::Error for GuestError {}
