//! The code that depends on the processor: registers, unwinding, address translation. One module for each
//! architecture; other code uses [`Registers`] by its three functions and passes them to the module.

pub mod aarch64;
pub mod paging;
pub mod x86_64;

/// The kind of processor that a guest's code is for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// AMD64, Intel 64.
    #[default]
    X86_64,
    /// Arm's 64-bit architecture.
    Aarch64,
}

/// All of them, by their numbers in recordings.
const ARCHITECTURES: [Architecture; 2] = [Architecture::X86_64, Architecture::Aarch64];

impl Architecture {
    /// The one of this machine; the default where it is none of them.
    pub const HOST: Architecture =
        if cfg!(target_arch = "aarch64") { Architecture::Aarch64 } else { Architecture::X86_64 };

    /// Its number in recordings.
    pub(crate) fn number(self) -> u32 {
        ARCHITECTURES.iter().position(|known| *known == self).unwrap_or(0) as u32
    }

    /// The one of a number in a recording, if it is known.
    pub(crate) fn of_number(number: u32) -> Option<Architecture> {
        ARCHITECTURES.get(number as usize).copied()
    }

    /// Its name, as compilers and QEMU have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Architecture::X86_64 => "x86_64",
            Architecture::Aarch64 => "aarch64",
        }
    }
}

/// The registers that unwinding needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registers {
    /// Of x86-64.
    X86_64(x86_64::Registers),
    /// Of AArch64.
    Aarch64(aarch64::Registers),
}

impl Default for Registers {
    fn default() -> Registers {
        Registers::X86_64(x86_64::Registers::default())
    }
}

impl From<x86_64::Registers> for Registers {
    fn from(registers: x86_64::Registers) -> Registers {
        Registers::X86_64(registers)
    }
}

impl From<aarch64::Registers> for Registers {
    fn from(registers: aarch64::Registers) -> Registers {
        Registers::Aarch64(registers)
    }
}

impl Registers {
    /// The instruction pointer.
    #[must_use]
    pub fn ip(&self) -> u64 {
        match self {
            Registers::X86_64(registers) => registers.rip,
            Registers::Aarch64(registers) => registers.pc,
        }
    }

    /// The stack pointer.
    #[must_use]
    pub fn sp(&self) -> u64 {
        match self {
            Registers::X86_64(registers) => registers.rsp,
            Registers::Aarch64(registers) => registers.sp,
        }
    }

    /// The frame pointer, if the code keeps one.
    #[must_use]
    pub fn fp(&self) -> u64 {
        match self {
            Registers::X86_64(registers) => registers.rbp,
            Registers::Aarch64(registers) => registers.fp(),
        }
    }

    /// Those of x86-64, if they are.
    #[must_use]
    pub fn x86_64(&self) -> Option<&x86_64::Registers> {
        match self {
            Registers::X86_64(registers) => Some(registers),
            Registers::Aarch64(_) => None,
        }
    }

    /// Those of AArch64, if they are.
    #[must_use]
    pub fn aarch64(&self) -> Option<&aarch64::Registers> {
        match self {
            Registers::Aarch64(registers) => Some(registers),
            Registers::X86_64(_) => None,
        }
    }
}

/// The registers that select an address space and describe its page tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paging {
    /// Of x86-64.
    X86_64(x86_64::paging::Paging),
    /// Of AArch64.
    Aarch64(aarch64::paging::Paging),
}

impl Default for Paging {
    fn default() -> Paging {
        Paging::X86_64(x86_64::paging::Paging::default())
    }
}

impl From<x86_64::paging::Paging> for Paging {
    fn from(paging: x86_64::paging::Paging) -> Paging {
        Paging::X86_64(paging)
    }
}

impl From<aarch64::paging::Paging> for Paging {
    fn from(paging: aarch64::paging::Paging) -> Paging {
        Paging::Aarch64(paging)
    }
}

impl Paging {
    /// The same with the page tables of a process, whose first is at a physical address.
    #[must_use]
    pub fn of_process(self, root: u64) -> Paging {
        match self {
            Paging::X86_64(paging) => x86_64::paging::Paging { cr3: root, ..paging }.into(),
            Paging::Aarch64(paging) => aarch64::paging::Paging { tables: [root, paging.tables[1]], ..paging }.into(),
        }
    }

    /// The processor that they are of.
    #[must_use]
    pub fn architecture(&self) -> Architecture {
        match self {
            Paging::X86_64(_) => Architecture::X86_64,
            Paging::Aarch64(_) => Architecture::Aarch64,
        }
    }

    /// Those of x86-64, if they are.
    #[must_use]
    pub fn x86_64(&self) -> Option<&x86_64::paging::Paging> {
        match self {
            Paging::X86_64(paging) => Some(paging),
            Paging::Aarch64(_) => None,
        }
    }

    /// Those of AArch64, if they are.
    #[must_use]
    pub fn aarch64(&self) -> Option<&aarch64::paging::Paging> {
        match self {
            Paging::Aarch64(paging) => Some(paging),
            Paging::X86_64(_) => None,
        }
    }
}

/// Width of the addresses and registers of code. Only 64-bit code is unwound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Width {
    /// x86's real mode, and segments of 16 bits.
    Bits16,
    /// Protected and compatibility mode.
    Bits32,
    /// Long mode.
    #[default]
    Bits64,
}
