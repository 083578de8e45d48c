//! Registers as a dump of QEMU has them (`QEMUCPUState` of QEMU's `target/i386/arch_dump.c`):
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | version, 1 |
//! | 4 | 4 | size of all of it |
//! | 8 | 16 x 8 | rax, rbx, rcx, rdx, rsi, rdi, rsp, rbp, r8 to r15 |
//! | 136 | 8 | rip |
//! | 144 | 8 | rflags |
//! | 152 | 10 x 24 | segments: cs, ds, es, fs, gs, ss, ldt, tr, gdt, idt; selector, limit and flags (the descriptor's upper half) of 4 bytes, 4 of nothing, a base of 8 bytes |
//! | 392 | 5 x 8 | cr0 to cr4 |
//! | 432 | 8 | what `swapgs` exchanges with the base of gs |

use glass_profiler_core::arch::x86_64::Registers;
use glass_profiler_core::arch::x86_64::mode::{CR0_PROTECTION, CodeSegment};
use glass_profiler_core::arch::x86_64::paging::Paging;

use crate::arch::CoreState;
// QEMU has the registers in the order in which KVM has them.
use super::kvm::ORDER;

const CODE_SEGMENT: usize = 152;
const STACK_SEGMENT: usize = 152 + 5 * 24;
const INTERRUPT_TABLE: usize = 152 + 9 * 24;
/// Bits of a descriptor's upper half.
const DESCRIPTOR_LONG: u32 = 1 << 21;
const DESCRIPTOR_32_BIT: u32 = 1 << 22;

/// The registers in a note, if it has the form that we know.
pub(crate) fn parse_state(bytes: &[u8]) -> Option<CoreState> {
    let half = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let word = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    if half(0)? != 1 || (half(4)? as usize) > bytes.len() {
        return None;
    }
    let mut general = [0; ORDER.len()];
    for (index, number) in ORDER.into_iter().enumerate() {
        general[number] = word(8 + index * 8)?;
    }
    let registers = Registers::of_all(word(136)?, general);
    let paging = Paging { cr0: word(392)?, cr3: word(392 + 3 * 8)?, cr4: word(392 + 4 * 8)?, efer: None };
    let (selector, flags) = (half(CODE_SEGMENT)? as u16, half(CODE_SEGMENT + 8)?);
    let code = CodeSegment {
        selector,
        is_long: Some(flags & DESCRIPTOR_LONG != 0),
        is_32_bit: Some(flags & DESCRIPTOR_32_BIT != 0),
    };
    let level = if paging.cr0 & CR0_PROTECTION == 0 { 0 } else { (selector & 3) as u8 };
    let segments = [word(CODE_SEGMENT + 16)?, word(STACK_SEGMENT + 16)?];
    let state = CoreState::of_x86_64(registers, paging, code, level, segments);
    // A dump of ours has none if a gdbstub has given the registers.
    Some(CoreState { interrupt_table: Some(word(INTERRUPT_TABLE + 16)?).filter(|table| *table != 0), ..state })
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_profiler_core::arch::Width;

    /// All general registers are known; those that are not given are 0, but rbx, which the test sets to 7 and r15 to 8.
    fn registers(rip: u64, rsp: u64, rbp: u64) -> Registers {
        let mut general = [0; 16];
        (general[3], general[6], general[7], general[15]) = (7, rbp, rsp, 8);
        Registers::of_all(rip, general)
    }

    #[test]
    fn registers_are_where_qemu_puts_them() {
        let mut bytes = vec![0; 440];
        let mut set = |at: usize, value: u64| bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        set(0, 440 << 32 | 1);
        set(16, 7);
        set(128, 8);
        // Long mode, level 3, the descriptor's bit L.
        for (at, value) in
            [(56, 1), (64, 2), (136, 3), (152, 0x33), (160, 1 << 21), (392, 1 << 31 | 1), (416, 5), (424, 1 << 5)]
        {
            set(at, value);
        }
        let state = parse_state(&bytes).unwrap();
        assert_eq!(state.registers, registers(3, 1, 2).into());
        assert_eq!(state.paging, Paging { cr0: 1 << 31 | 1, cr3: 5, cr4: 1 << 5, efer: None }.into());
        assert_eq!((state.width, state.is_privileged, state.is_at_reset), (Width::Bits64, false, false));
        assert_eq!(parse_state(&bytes[..431]), None);
        // Real mode, as after a reset.
        let mut set = |at: usize, value: u64| bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        for (at, value) in [(136, 0xfff0), (152, 0xf000), (160, 0), (168, 0xffff_0000), (392, 0x6000_0010)] {
            set(at, value);
        }
        let state = parse_state(&bytes).unwrap();
        assert_eq!((state.registers.ip(), state.width, state.is_at_reset), (0xffff_fff0, Width::Bits16, true));
        bytes[0] = 2;
        assert_eq!(parse_state(&bytes), None, "another version");
    }
}
