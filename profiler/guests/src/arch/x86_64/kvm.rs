//! Registers as KVM has them: `struct kvm_run` with `struct kvm_regs` and `struct kvm_sregs` of `linux/kvm.h`.

use glass_profiler_core::arch::x86_64::Registers;
use glass_profiler_core::arch::x86_64::mode::{CR0_PROTECTION, CodeSegment};
use glass_profiler_core::arch::x86_64::paging::Paging;

use super::CoreState;

// Offsets in bytes. They are the kernel's interface to programs and never change.
pub(crate) const EXIT_REASON: usize = 8;
pub(crate) const FLAGS: usize = 14;
pub(crate) const VALID_REGISTERS: usize = 288;
const GENERAL: usize = 304;
const SYSTEM: usize = GENERAL + GENERAL_BYTES;
pub(crate) const END: usize = SYSTEM + SYSTEM_BYTES;
/// `KVM_EXIT_HLT`.
pub(crate) const EXIT_HALT: u32 = 5;
/// `KVM_RUN_X86_GUEST_MODE`, among the flags of 16 bits.
pub(crate) const NESTED: u16 = 1 << 2;
/// Bytes of `struct kvm_regs` and `struct kvm_sregs`.
const GENERAL_BYTES: usize = 18 * 8;
const SYSTEM_BYTES: usize = 312;

/// The order of `struct kvm_regs`, as DWARF numbers: rax, rbx, rcx, rdx, rsi, rdi, rsp, rbp, r8 to r15.
pub(crate) const ORDER: [usize; 16] = [0, 3, 2, 1, 4, 5, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
const RIP: usize = GENERAL + 16 * 8;
/// Segments begin with their base.
const CS_BASE: usize = SYSTEM;
const CS_SELECTOR: usize = SYSTEM + 12;
/// `present`, `dpl`, `db`, `s`, `l`, `g` of `struct kvm_segment` have a byte each, after `type`.
const CS_DB: usize = SYSTEM + 17;
const CS_LONG: usize = SYSTEM + 19;
const SS_BASE: usize = SYSTEM + 5 * 24;
/// After the segments and the place of the table of segments.
const IDT_BASE: usize = SYSTEM + 8 * 24 + 16;
const CR0: usize = SYSTEM + 8 * 24 + 2 * 16;
const CR3: usize = CR0 + 16;
const CR4: usize = CR0 + 24;
const EFER: usize = CR0 + 40;

/// Reads the page up to the end of the registers.
pub(crate) fn parse(bytes: &[u8; END]) -> CoreState {
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
    let mut general = [0; ORDER.len()];
    for (index, number) in ORDER.into_iter().enumerate() {
        general[number] = word(GENERAL + index * 8);
    }
    let registers = Registers::of_all(word(RIP), general);
    let paging = Paging { cr0: word(CR0), cr3: word(CR3), cr4: word(CR4), efer: Some(word(EFER)) };
    let code = CodeSegment {
        selector: u16::from_le_bytes([bytes[CS_SELECTOR], bytes[CS_SELECTOR + 1]]),
        is_long: Some(bytes[CS_LONG] != 0),
        is_32_bit: Some(bytes[CS_DB] != 0),
    };
    let level = if paging.cr0 & CR0_PROTECTION == 0 { 0 } else { bytes[CS_SELECTOR] & 3 };
    let state = CoreState::new(registers, paging, code, level).in_segments(word(CS_BASE), word(SS_BASE));
    CoreState { interrupt_table: Some(word(IDT_BASE)), ..state }
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
    fn registers_are_where_the_kernel_puts_them() {
        // Numbers from a C program that printed offsetof() of linux/kvm.h.
        assert_eq!((EXIT_REASON, FLAGS, VALID_REGISTERS, GENERAL, SYSTEM, END), (8, 14, 288, 304, 448, 760));
        let mut bytes = [0u8; END];
        (bytes[312], bytes[424]) = (7, 8);
        // CR0 with paging and protection, CR4 with extensions of addresses, EFER with long mode.
        for (at, value) in
            [(352, 1), (360, 2), (432, 3), (656, 6), (672, 1), (675, 0x80), (688, 5), (696, 1 << 5), (713, 4)]
        {
            bytes[at] = value;
        }
        // A selector of level 3, the descriptor's bit L.
        (bytes[460], bytes[467]) = (0x33, 1);
        let core = parse(&bytes);
        assert_eq!(core.registers, registers(3, 1, 2));
        assert_eq!(core.interrupt_table, Some(6));
        assert_eq!(core.paging, Paging { cr0: 0x8000_0001, cr3: 5, cr4: 1 << 5, efer: Some(1 << 10) });
        assert_eq!((core.width, core.is_privileged, core.is_at_reset), (Width::Bits64, false, false));
        // Code of 32 bits within long mode.
        (bytes[465], bytes[467]) = (1, 0);
        assert_eq!(parse(&bytes).width, Width::Bits32);
        // Before the switch to long mode addresses are within segments: a vCPU that was never started stands at the
        // reset vector, and not at 0xfff0.
        (bytes[672], bytes[675], bytes[713]) = (0x10, 0x60, 0);
        bytes[448..456].copy_from_slice(&0xffff_0000u64.to_le_bytes());
        bytes[460..462].copy_from_slice(&0xf000u16.to_le_bytes());
        bytes[432..440].copy_from_slice(&0xfff0u64.to_le_bytes());
        bytes[568..576].copy_from_slice(&0x100u64.to_le_bytes());
        let core = parse(&bytes);
        assert_eq!(core.registers, registers(0xffff_fff0, 0x101, 0x102));
        assert_eq!((core.width, core.is_privileged, core.is_at_reset), (Width::Bits16, true, true));
        bytes[432] = 0;
        assert!(!parse(&bytes).is_at_reset);
    }
}
