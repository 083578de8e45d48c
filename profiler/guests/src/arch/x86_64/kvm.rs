//! Registers as KVM has them: `struct kvm_run` with `struct kvm_regs` and `struct kvm_sregs` of `linux/kvm.h`.

use glass_profiler_core::arch::x86_64::Registers;
use glass_profiler_core::arch::x86_64::mode::{CR0_PROTECTION, CodeSegment};
use glass_profiler_core::arch::x86_64::paging::Paging;

use super::all::{AllRegisters, Segment};
use crate::arch::CoreState;

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
const RFLAGS: usize = GENERAL + 17 * 8;
/// The bytes of `struct kvm_segment` and `struct kvm_dtable`.
const SEGMENT_BYTES: usize = 24;
const TABLE_BYTES: usize = 16;
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
    let state = CoreState::of_x86_64(registers, paging, code, level, [word(CS_BASE), word(SS_BASE)]);
    CoreState { interrupt_table: Some(word(IDT_BASE)), ..state }
}

/// All registers of the page.
pub(crate) fn parse_all(bytes: &[u8; END]) -> AllRegisters {
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
    let segment = |index: usize| {
        let at = SYSTEM + index * SEGMENT_BYTES;
        let bit = |offset: usize, place: u32| u32::from(bytes[at + offset] & 1) << place;
        // `type`, `present`, `dpl`, `db`, `s`, `l`, `g`, `avl`, as a descriptor has them.
        let (kind, level) = (u32::from(bytes[at + 14] & 15) << 8, u32::from(bytes[at + 16] & 3) << 13);
        let flags = kind | bit(18, 12) | level | bit(15, 15) | bit(21, 20) | bit(19, 21) | bit(17, 22) | bit(20, 23);
        Segment {
            base: word(at),
            limit: word(at + 8) as u32,
            selector: u16::from_le_bytes([bytes[at + 12], bytes[at + 13]]),
            flags,
        }
    };
    let table = |index: usize| {
        let at = SYSTEM + 8 * SEGMENT_BYTES + index * TABLE_BYTES;
        Segment { base: word(at), limit: word(at + 8) as u32 & 0xffff, ..Segment::default() }
    };
    let mut general = [0; ORDER.len()];
    for (index, number) in ORDER.into_iter().enumerate() {
        general[number] = word(GENERAL + index * 8);
    }
    let [cs, ds, es, fs, gs, ss, tr, ldt] = std::array::from_fn(segment);
    AllRegisters {
        general,
        rip: word(RIP),
        rflags: word(RFLAGS),
        cs,
        ds,
        es,
        fs,
        gs,
        ss,
        ldt,
        tr,
        gdt: table(0),
        idt: table(1),
        control: [word(CR0), 0, word(CR0 + 8), word(CR3), word(CR4)],
        // A register that KVM does not share.
        kernel_gs_base: 0,
    }
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
        assert_eq!(core.registers, registers(3, 1, 2).into());
        assert_eq!(core.interrupt_table, Some(6));
        assert_eq!(core.paging, Paging { cr0: 0x8000_0001, cr3: 5, cr4: 1 << 5, efer: Some(1 << 10) }.into());
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
        assert_eq!(core.registers, registers(0xffff_fff0, 0x101, 0x102).into());
        assert_eq!((core.width, core.is_privileged, core.is_at_reset), (Width::Bits16, true, true));
        bytes[432] = 0;
        assert!(!parse(&bytes).is_at_reset);
    }
    #[test]
    fn all_registers_are_as_a_dump_has_them() {
        let bytes: [u8; END] = std::array::from_fn(|at| (at % 251) as u8);
        let all = parse_all(&bytes);
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
        assert_eq!((all.general[7], all.rip, all.rflags), (word(304 + 6 * 8), word(432), word(440)));
        assert_eq!((all.es.base, all.tr.base, all.ldt.base), (word(448 + 48), word(448 + 144), word(448 + 168)));
        assert_eq!((all.gdt.base, all.idt.base), (word(640), word(656)));
        assert_eq!(all.control, [word(672), 0, word(680), word(688), word(696)]);
        // Code of 64 bits in a kernel: type 11, present, s, l, g.
        let mut bytes = [0; END];
        let at = 448;
        (bytes[at + 12], bytes[at + 14], bytes[at + 15], bytes[at + 18], bytes[at + 19], bytes[at + 20]) =
            (0x10, 11, 1, 1, 1, 1);
        let all = parse_all(&bytes);
        assert_eq!((all.cs.selector, all.cs.flags), (0x10, 0x00a0_9b00));
        let core = super::super::note::parse_state(&all.state()).unwrap();
        assert_eq!(core.registers, parse(&bytes).registers);
    }
}
