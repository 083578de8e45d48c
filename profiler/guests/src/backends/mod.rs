//! How a guest is stopped, and how its registers and memory are read.
//!
//! May use every other floor: [`find`](crate::find), [`files`](crate::files), [`memory`](crate::memory), [`systems`](crate::systems).

pub(crate) mod access;
pub mod choose;
pub mod dump;
pub mod file;
pub mod gdbstub;
mod hosted;
pub mod kvm;
mod load;
pub mod monitor;
pub mod off_cpu;
pub mod paced;
pub mod page_faults;
pub mod process;
pub mod remote;
mod sleeper;
mod thread_stat;
pub mod xen;

use std::fmt;

/// A backend for a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// Stop the threads of vCPUs by ptrace.
    Kvm,
    /// Use the gdbstub that QEMU was started with.
    Gdbstub,
    /// Start a gdbstub through QEMU's monitor, and use it.
    Monitor,
}

impl Backend {
    /// Samples per second at which a guest that computes all the time loses about a fiftieth of its time. One sample
    /// costs it 60 to 70 us by KVM on a quiet host with two cores, 135 to 250 us through QEMU's gdbstub (2026-11-22).
    pub fn default_rate_hz(self) -> u32 {
        match self {
            Backend::Kvm => 199,
            Backend::Gdbstub | Backend::Monitor => 79,
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backend::Kvm => "kvm",
            Backend::Gdbstub => "gdbstub",
            Backend::Monitor => "gdbstub via monitor",
        })
    }
}
