//! Registers from a gdbstub, of whichever processor it describes.

use super::x86_64::all::AllRegisters;
use super::{CoreState, aarch64, x86_64};

/// The byte of two hexadecimal digits.
pub(crate) fn hex_byte(high: u8, low: u8) -> Option<u8> {
    let digit = |byte| char::from(byte).to_digit(16);
    Some((digit(high)? << 4 | digit(low)?) as u8)
}

/// The number at an offset in bytes, of so many bytes.
pub(super) fn value(digits: &[u8], offset: usize, bytes: usize) -> Option<u64> {
    let mut value = 0u64;
    for (index, pair) in digits.get(offset * 2..(offset + bytes) * 2)?.chunks_exact(2).enumerate() {
        value |= u64::from(hex_byte(pair[0], pair[1])?) << (8 * index);
    }
    Some(value)
}

/// Where a gdbstub has the registers of a core.
#[expect(clippy::large_enum_variant, reason = "a VM has one")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Of x86-64: all are in the answer to `g`.
    X86_64(x86_64::gdb::Layout),
    /// Of AArch64.
    Aarch64(aarch64::gdb::Layout),
}

impl Layout {
    /// Finds the registers in a description: names and sizes in bytes, in the order of their numbers.
    pub(crate) fn of(registers: &[(String, usize)]) -> Option<Layout> {
        let of_x86_64 = || x86_64::gdb::Layout::of(registers).map(Layout::X86_64);
        of_x86_64().or_else(|| aarch64::gdb::Layout::of(registers).map(Layout::Aarch64))
    }

    /// The numbers of the registers that are not in the answer to `g`.
    pub(crate) fn others(&self) -> &[usize] {
        match self {
            Layout::X86_64(_) => &[],
            Layout::Aarch64(layout) => &layout.of_system,
        }
    }

    /// Takes the registers out of the digits of an answer to `g`, which those of [`others`](Layout::others) follow; `None` if one is missing.
    pub(crate) fn registers(&self, digits: &[u8]) -> Option<CoreState> {
        match self {
            Layout::X86_64(layout) => layout.registers(digits),
            Layout::Aarch64(layout) => layout.registers(digits),
        }
    }

    /// All registers for a dump; `None` if one is missing that has to be there, or if dumps do not have those of this processor.
    pub(crate) fn all(&self, digits: &[u8]) -> Option<AllRegisters> {
        match self {
            Layout::X86_64(layout) => layout.all(digits),
            Layout::Aarch64(_) => None,
        }
    }
}
