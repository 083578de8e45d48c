//! Registers as Xen has them: `struct vcpu_guest_context` of `xen/include/public/arch-x86/xen.h`, and `struct hvm_hw_cpu` of
//! `xen/include/public/arch-x86/hvm/save.h`. New versions of Xen add to their ends only: both are what saved domains are made of.
//!
//! | in `vcpu_guest_context` | offset | bytes |
//! |---|---|---|
//! | `flags` | 512 | 8 |
//! | `user_regs`: `r15` to `r12`, `rbp`, `rbx`, `r11` to `r8`, `rax`, `rcx`, `rdx`, `rsi`, `rdi` | 520 | 15 x 8 |
//! | `rip`, `cs`, `rsp` | 648, 656, 672 | 8, 2, 8 |
//! | `ctrlreg[3]`: where the page tables are | 5008 | 8 |
//!
//! | in `hvm_hw_cpu` | offset | bytes |
//! |---|---|---|
//! | `rax`, `rbx`, `rcx`, `rdx`, `rbp`, `rsi`, `rdi`, `rsp`, `r8` to `r15` | 512 | 16 x 8 |
//! | `rip` | 640 | 8 |
//! | `cr0`, `cr3`, `cr4` | 656, 672, 680 | 8 each |
//! | `cs_sel` | 736 | 4 |
//! | `cs_base`, `ss_base` | 808, 848 | 8 each |
//! | `cs_arbytes` | 888 | 4 |
//! | `msr_efer` | 992 | 8 |

use glass_profiler_core::arch::x86_64::Registers;
use glass_profiler_core::arch::x86_64::mode::{CR0_PROTECTION, CodeSegment};
use glass_profiler_core::arch::x86_64::paging::Paging;

use crate::arch::CoreState;

/// `VGCF_in_kernel`: a kernel under Xen runs in ring 3 as its processes do, and Xen keeps which of them runs.
const FLAG_IN_KERNEL: u64 = 1 << 2;
/// Selectors of code of 32 bits: Xen's `FLAT_RING3_CS32`, and the one that Linux has for processes.
const SELECTORS_OF_32_BITS: [u16; 2] = [0xe023, 0x23];
/// Bits of a segment's attributes.
const ATTRIBUTE_LONG: u32 = 1 << 9;
const ATTRIBUTE_32_BIT: u32 = 1 << 10;
/// Xen runs a guest of 64 bits with paging and four levels of tables, whatever the guest thinks is in its registers.
const CR0: u64 = 1 << 31 | CR0_PROTECTION;
const CR4_PHYSICAL_EXTENSION: u64 = 1 << 5;
const EFER_LONG_MODE_ACTIVE: u64 = 1 << 10;
/// Where the general registers are, and their order as DWARF numbers.
const CONTEXT_GENERAL: usize = 520;
const CONTEXT_ORDER: [usize; 15] = [15, 14, 13, 12, 6, 3, 11, 10, 9, 8, 0, 2, 1, 4, 5];
const CONTEXT_RSP: usize = 672;
const RSP: usize = 7;
const HVM_GENERAL: usize = 512;
const HVM_ORDER: [usize; 16] = [0, 3, 2, 1, 6, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// The registers of a vCPU of a paravirtualized guest of 64 bits. `word` returns the 8 bytes at an offset.
pub(crate) fn parse_context(word: impl Fn(usize) -> u64) -> CoreState {
    let mut general = [0; 16];
    for (index, number) in CONTEXT_ORDER.into_iter().enumerate() {
        general[number] = word(CONTEXT_GENERAL + index * 8);
    }
    general[RSP] = word(CONTEXT_RSP);
    let registers = Registers::of_all(word(648), general);
    let paging = Paging { cr0: CR0, cr3: word(5008), cr4: CR4_PHYSICAL_EXTENSION, efer: Some(EFER_LONG_MODE_ACTIVE) };
    let selector = word(656) as u16;
    let is_long = !SELECTORS_OF_32_BITS.contains(&selector);
    let code = CodeSegment { selector, is_long: Some(is_long), is_32_bit: Some(!is_long) };
    let level = if word(512) & FLAG_IN_KERNEL != 0 { 0 } else { 3 };
    CoreState::of_x86_64(registers, paging, code, level, [0, 0])
}

/// The registers of a vCPU of a guest that Xen runs by the processor's virtualization (PVH and HVM). `word` returns the 8 bytes at an offset.
pub(crate) fn parse_hvm_context(word: impl Fn(usize) -> u64) -> CoreState {
    let mut general = [0; HVM_ORDER.len()];
    for (index, number) in HVM_ORDER.into_iter().enumerate() {
        general[number] = word(HVM_GENERAL + index * 8);
    }
    let registers = Registers::of_all(word(640), general);
    let paging = Paging { cr0: word(656), cr3: word(672), cr4: word(680), efer: Some(word(992)) };
    let (selector, attributes) = (word(736) as u16, word(888) as u32);
    let code = CodeSegment {
        selector,
        is_long: Some(attributes & ATTRIBUTE_LONG != 0),
        is_32_bit: Some(attributes & ATTRIBUTE_32_BIT != 0),
    };
    let level = if paging.cr0 & CR0_PROTECTION == 0 { 0 } else { (selector & 3) as u8 };
    CoreState::of_x86_64(registers, paging, code, level, [word(808), word(848)])
}

/// The stack pointer and the frame pointer that [`parse_context`] finds.
#[inline(always)]
pub(crate) fn stack_of_context(word: impl Fn(usize) -> u64) -> (u64, u64) {
    (word(CONTEXT_RSP), word(552))
}

/// The stack pointer and the frame pointer of a guest in 64-bit mode that [`parse_hvm_context`] finds, and whether it runs in ring 0.
#[inline(always)]
pub(crate) fn stack_of_hvm_context(word: impl Fn(usize) -> u64) -> (u64, u64, bool) {
    (word(568), word(544), word(736) & 3 == 0)
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

    fn words(bytes: &[u8]) -> impl Fn(usize) -> u64 {
        |at| u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
    }

    /// Offsets from a C program that printed `offsetof()` of the headers of Xen 4.17.
    #[test]
    fn registers_are_where_xen_puts_them() {
        let mut bytes = [0; 5016];
        for (at, value) in
            [(520, 8), (560, 7), (512, 4), (552, 2), (648, 3), (656, 0x33), (657, 0xe0), (672, 1), (5008, 5)]
        {
            bytes[at] = value;
        }
        let core = parse_context(words(&bytes));
        assert_eq!(core.registers, registers(3, 1, 2).into());
        assert_eq!((core.paging.x86_64().unwrap().cr3, core.width, core.is_privileged), (5, Width::Bits64, true));
        (bytes[512], bytes[656]) = (0, 0x23);
        let core = parse_context(words(&bytes));
        assert_eq!((core.width, core.is_privileged, core.is_at_reset), (Width::Bits32, false, false));
    }

    #[test]
    fn registers_of_virtualized_guests() {
        let mut bytes = [0; 1000];
        for (at, value) in
            [(520, 7), (632, 8), (544, 2), (568, 1), (640, 3), (672, 5), (736, 0x10), (808, 7), (848, 9), (888, 0x9b)]
        {
            bytes[at] = value;
        }
        // Protection and paging, extensions of addresses, long mode, the segment's bit L.
        for (at, value) in [(656, 1), (659, 0x80), (680, 1 << 5), (993, 5), (889, 0xa)] {
            bytes[at] = value;
        }
        let core = parse_hvm_context(words(&bytes));
        assert_eq!(core.registers, registers(3, 1, 2).into());
        assert_eq!(core.paging, Paging { cr0: 1 << 31 | 1, cr3: 5, cr4: 1 << 5, efer: Some(0x500) }.into());
        assert_eq!((core.width, core.is_privileged), (Width::Bits64, true));
        // As PVH begins: protected mode without paging, where addresses count from the segments' bases.
        (bytes[659], bytes[993], bytes[889]) = (0, 0, 0xc);
        let core = parse_hvm_context(words(&bytes));
        assert_eq!((core.width, core.registers), (Width::Bits32, registers(10, 10, 11).into()));
    }
}
