//! The code that depends on the processor: registers, unwinding, address translation. One module for each
//! architecture; other code uses [`Registers`] by its three functions and passes them to the module.

pub mod x86_64;

/// The kind of processor that a guest's code is for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// AMD64, Intel 64.
    #[default]
    X86_64,
}

/// The registers that unwinding needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registers {
    /// Of x86-64.
    X86_64(x86_64::Registers),
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

impl Registers {
    /// The instruction pointer.
    #[must_use]
    pub fn ip(&self) -> u64 {
        let Registers::X86_64(registers) = self;
        registers.rip
    }

    /// The stack pointer.
    #[must_use]
    pub fn sp(&self) -> u64 {
        let Registers::X86_64(registers) = self;
        registers.rsp
    }

    /// The frame pointer, if the code keeps one.
    #[must_use]
    pub fn fp(&self) -> u64 {
        let Registers::X86_64(registers) = self;
        registers.rbp
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
