//! What is sampled: guests, and their address spaces.

use crate::arch::Architecture;

/// The number of a guest within a recording.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuestId(pub u32);

/// The number of an address space within a recording. None is used again after its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpaceId(pub u32);

/// What runs the code that is sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuestKind {
    /// A process of this machine.
    Process {
        /// Its number.
        pid: u32,
    },
    /// A VM.
    Vm {
        /// The process of its VMM.
        vmm: u32,
    },
    /// A domain of Xen.
    XenDomain {
        /// Its number.
        id: u32,
    },
    /// A VM in a file.
    File,
}

impl GuestKind {
    /// Whether it is a machine: its tracks are vCPUs, not threads.
    #[must_use]
    pub fn is_machine(self) -> bool {
        !matches!(self, GuestKind::Process { .. })
    }

    /// The process of this machine that it is or that runs it, if there is one.
    #[must_use]
    pub fn pid(self) -> Option<u32> {
        match self {
            GuestKind::Process { pid } | GuestKind::Vm { vmm: pid } => Some(pid),
            GuestKind::XenDomain { .. } | GuestKind::File => None,
        }
    }
}

/// A guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guest {
    /// Its number.
    pub id: GuestId,
    /// What it is.
    pub kind: GuestKind,
    /// Its name, for people.
    pub name: String,
    /// What its code is for.
    pub architecture: Architecture,
}

/// What code may do that is sampled, and whose it is. Sources report it; no register tells it in all guests, since the
/// kernels of some run without privilege.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// A process.
    #[default]
    User,
    /// The kernel below it, or an image that is both.
    Kernel,
    /// What runs VMs.
    Hypervisor,
    /// What was there before the kernel.
    Firmware,
}
