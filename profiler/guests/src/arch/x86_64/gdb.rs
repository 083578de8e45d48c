//! Registers from a gdbstub.

use glass_profiler_core::arch::x86_64::mode::{CR0_PROTECTION, CodeSegment};
use glass_profiler_core::arch::x86_64::paging::Paging;
use glass_profiler_core::arch::x86_64::{GENERAL, GENERAL_NAMES, Registers};

use super::CoreState;

/// The byte of two hexadecimal digits.
pub(crate) fn hex_byte(high: u8, low: u8) -> Option<u8> {
    let digit = |byte| char::from(byte).to_digit(16);
    Some((digit(high)? << 4 | digit(low)?) as u8)
}

/// Offsets of registers in bytes. Each is 8 bytes long, except `cs`, which has 4.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    rip: usize,
    rsp: usize,
    rbp: usize,
    /// All general registers by their DWARF numbers, if they are described.
    general: Option<[usize; GENERAL]>,
    cs: usize,
    cr0: usize,
    cr3: usize,
    cr4: usize,
    /// Old versions of QEMU do not send it.
    efer: Option<usize>,
}

impl Layout {
    /// Finds the registers in a description: names and sizes in bytes, in the order of the answer to `g`.
    pub(crate) fn of(registers: &[(String, usize)]) -> Option<Layout> {
        let offset_of = |name: &str, size: usize| {
            let index = registers.iter().position(|(known, bytes)| known == name && *bytes == size)?;
            Some(registers[..index].iter().map(|(_, bytes)| bytes).sum())
        };
        let offset = |name| offset_of(name, 8);
        let general: Option<Vec<usize>> = GENERAL_NAMES.into_iter().map(offset).collect();
        let general = general.and_then(|general| general.try_into().ok());
        Some(Layout {
            rip: offset("rip")?,
            rsp: offset("rsp")?,
            rbp: offset("rbp")?,
            general,
            cs: offset_of("cs", 4)?,
            cr0: offset("cr0")?,
            cr3: offset("cr3")?,
            cr4: offset("cr4")?,
            efer: offset("efer"),
        })
    }

    /// Takes the registers out of the digits of a `g` packet; `None` if one is missing.
    pub(crate) fn registers(&self, digits: &[u8]) -> Option<CoreState> {
        let value = |offset: usize, bytes: usize| {
            let mut value = 0u64;
            for (index, pair) in digits.get(offset * 2..(offset + bytes) * 2)?.chunks_exact(2).enumerate() {
                value |= u64::from(hex_byte(pair[0], pair[1])?) << (8 * index);
            }
            Some(value)
        };
        let word = |offset| value(offset, 8);
        let mut registers = Registers::new(word(self.rip)?, word(self.rsp)?, word(self.rbp)?);
        if let Some(places) = &self.general {
            let general: Option<Vec<u64>> = places.iter().map(|place| word(*place)).collect();
            registers = Registers::of_all(registers.rip, general?.try_into().ok()?);
        }
        let efer = self.efer.and_then(word);
        let paging = Paging { cr0: word(self.cr0)?, cr3: word(self.cr3)?, cr4: word(self.cr4)?, efer };
        // QEMU does not send descriptors.
        let selector = value(self.cs, 4)? as u16;
        let code = CodeSegment { selector, is_long: None, is_32_bit: None };
        let is_real = paging.cr0 & CR0_PROTECTION == 0;
        let level = if is_real { 0 } else { (selector & 3) as u8 };
        let state = CoreState::new(registers, paging, code, level);
        // In real mode a selector determines its segment's base. QEMU does not name that of the stack in all versions, and
        // nothing in real mode can be unwound.
        Some(if is_real { state.in_segments(u64::from(selector) << 4, 0) } else { state })
    }
}
