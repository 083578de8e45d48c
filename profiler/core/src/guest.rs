//! The subjects of sampling: guests, and their address spaces.

use crate::arch::Architecture;

/// The number of a guest within a recording.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuestId(pub u32);

/// The number of an address space within a recording. None is used again after its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpaceId(pub u32);

/// The kind of a guest.
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
    /// A Xen domain.
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
    /// Its kind.
    pub kind: GuestKind,
    /// Its name, for display.
    pub name: String,
    /// The architecture of its code.
    pub architecture: Architecture,
}

/// The privilege and owner of sampled code. Sources report it; no register determines it in all guests, since the
/// kernels of some run without privilege.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// A process.
    #[default]
    User,
    /// The kernel below it, or an image that is both.
    Kernel,
    /// A hypervisor.
    Hypervisor,
    /// Firmware, which runs before the kernel.
    Firmware,
}
