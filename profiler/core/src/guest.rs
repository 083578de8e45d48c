//! The subjects of sampling: guests, and their address spaces.

use crate::arch::Architecture;

/// The number of a guest within a recording.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuestId(pub u32);

/// The number of an address space within a recording. None is used again after its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpaceId(pub u32);

/// The number of a process within a recording. None is used again after its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u32);

/// The number of a thread of a process within a recording. None is used again after its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadId(pub u32);

/// A process: of a process tree of this machine, or of a guest with its own operating system.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Process {
    /// Its number in the recording.
    pub id: ProcessId,
    /// Whose it is: a machine whose operating system runs it, or the process tree.
    pub guest: GuestId,
    /// Its process ID in the initial namespace of that machine (`tgid` in a kernel of Linux); 0 is the idle task.
    pub pid: u32,
    /// Its process ID in its own namespace, if that differs.
    pub namespace_pid: Option<u32>,
    /// Its parent, if that is in the recording.
    pub parent: Option<ProcessId>,
    /// When it started: nanoseconds since the start of its machine. With `pid` this identifies it.
    pub start_ns: Option<u64>,
    /// Path of its control group, empty if it is unknown.
    pub cgroup: String,
    /// The programs that it ran, in order of time: more than one where it called `exec`.
    pub programs: Vec<ProgramSince>,
}

/// The program of a process from a time on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProgramSince {
    /// Nanoseconds since the start of the recording; the first program applies before its time, too.
    pub time_ns: u64,
    /// Its name (`comm`).
    pub name: String,
}

/// A thread of a [`Process`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Thread {
    /// Its number in the recording.
    pub id: ThreadId,
    /// Its process.
    pub process: ProcessId,
    /// Its thread ID in the initial namespace of the machine.
    pub tid: u32,
    /// Its name (`comm`).
    pub name: String,
    /// When it started: nanoseconds since the start of its machine.
    pub start_ns: Option<u64>,
}

/// A process by which files and generated code are found: equal process IDs of two machines are two processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessKey {
    /// The guest whose operating system runs it; `None` on this machine.
    pub machine: Option<GuestId>,
    /// Its process ID there; 0 of code without a process.
    pub pid: u32,
}

impl ProcessKey {
    /// A process of this machine.
    #[must_use]
    pub fn here(pid: u32) -> ProcessKey {
        ProcessKey { machine: None, pid }
    }

    /// Its process ID if it is one of this machine.
    #[must_use]
    pub fn pid_here(self) -> Option<u32> {
        self.machine.is_none().then_some(self.pid)
    }
}

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
