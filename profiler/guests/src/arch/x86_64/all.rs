//! All registers of a core that a memory dump holds, and the two notes of an ELF core in which it holds them.
//!
//! `NT_PRSTATUS` has them as Linux has those of a process (`struct elf_prstatus` of `linux/elfcore.h`):
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 32 | 4 | the number of the process; QEMU writes that of the vCPU, from 1 on |
//! | 112 | 27 x 8 | r15 to r12, rbp, rbx, r11 to r8, rax, rcx, rdx, rsi, rdi, orig_rax, rip, cs, eflags, rsp, ss, fs_base, gs_base, ds, es, fs, gs |
//!
//! The other one is QEMU's own, see `note.rs`.

use glass_profiler_core::arch::x86_64::GENERAL;

use super::kvm::ORDER;

/// The bytes of `struct elf_prstatus`.
pub(crate) const STATUS_BYTES: usize = 336;
/// The bytes of `QEMUCPUState`.
pub(crate) const STATE_BYTES: usize = 440;
const STATUS_PROCESS: usize = 32;
const STATUS_REGISTERS: usize = 112;
/// The general registers in `struct elf_prstatus`, as DWARF numbers, up to `rdi`.
const STATUS_ORDER: [usize; 15] = [15, 14, 13, 12, 6, 3, 11, 10, 9, 8, 0, 2, 1, 4, 5];
/// The DWARF number of the stack pointer.
pub(crate) const RSP: usize = 7;
/// The version of `QEMUCPUState`.
const STATE_VERSION: u32 = 1;

/// A segment, or the place of a table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) selector: u16,
    pub(crate) limit: u32,
    /// The upper half of its descriptor, without parts of the base and the limit.
    pub(crate) flags: u32,
    pub(crate) base: u64,
}

/// Registers as the processor has them: addresses count from the bases of their segments. What a source cannot read is 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct AllRegisters {
    /// By their DWARF numbers.
    pub(crate) general: [u64; GENERAL],
    pub(crate) rip: u64,
    pub(crate) rflags: u64,
    pub(crate) cs: Segment,
    pub(crate) ds: Segment,
    pub(crate) es: Segment,
    pub(crate) fs: Segment,
    pub(crate) gs: Segment,
    pub(crate) ss: Segment,
    pub(crate) ldt: Segment,
    pub(crate) tr: Segment,
    pub(crate) gdt: Segment,
    pub(crate) idt: Segment,
    /// CR0 to CR4; there is no CR1.
    pub(crate) control: [u64; 5],
    /// What `swapgs` exchanges with the base of `gs`.
    pub(crate) kernel_gs_base: u64,
}

impl AllRegisters {
    /// The content of a note `NT_PRSTATUS`.
    pub(crate) fn status(&self, vcpu: u32) -> [u8; STATUS_BYTES] {
        let general = STATUS_ORDER.map(|number| self.general[number]);
        let selector = |segment: &Segment| u64::from(segment.selector);
        // A core is in no system call.
        let others = [u64::MAX, self.rip, selector(&self.cs), self.rflags, self.general[RSP], selector(&self.ss)];
        let bases = [self.fs.base, self.gs.base];
        let segments = [&self.ds, &self.es, &self.fs, &self.gs].map(selector);
        let mut bytes = [0; STATUS_BYTES];
        bytes[STATUS_PROCESS..][..4].copy_from_slice(&vcpu.wrapping_add(1).to_le_bytes());
        let words = general.into_iter().chain(others).chain(bases).chain(segments);
        for (into, word) in bytes[STATUS_REGISTERS..].chunks_exact_mut(8).zip(words) {
            into.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The content of a note of QEMU.
    pub(crate) fn state(&self) -> [u8; STATE_BYTES] {
        let mut bytes = Vec::with_capacity(STATE_BYTES);
        bytes.extend(STATE_VERSION.to_le_bytes());
        bytes.extend((STATE_BYTES as u32).to_le_bytes());
        ORDER.iter().for_each(|number| bytes.extend(self.general[*number].to_le_bytes()));
        bytes.extend(self.rip.to_le_bytes());
        bytes.extend(self.rflags.to_le_bytes());
        let segments = [&self.cs, &self.ds, &self.es, &self.fs, &self.gs, &self.ss, &self.ldt, &self.tr];
        for segment in segments.into_iter().chain([&self.gdt, &self.idt]) {
            for half in [u32::from(segment.selector), segment.limit, segment.flags, 0] {
                bytes.extend(half.to_le_bytes());
            }
            bytes.extend(segment.base.to_le_bytes());
        }
        self.control.iter().chain([&self.kernel_gs_base]).for_each(|word| bytes.extend(word.to_le_bytes()));
        std::array::from_fn(|at| bytes.get(at).copied().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::x86_64::note::parse_state;

    /// Offsets from a C program that printed `offsetof` of `struct elf_prstatus` and `struct user_regs_struct` (2026-11-27).
    #[test]
    fn registers_are_where_linux_puts_them() {
        let segment = |selector, base| Segment { selector, base, ..Segment::default() };
        let registers = AllRegisters {
            general: std::array::from_fn(|number| 0x100 + number as u64),
            rip: 0x200,
            rflags: 0x201,
            cs: segment(0x10, 0),
            ss: segment(0x18, 0),
            fs: segment(0x2b, 0x300),
            gs: segment(0x33, 0x301),
            ..AllRegisters::default()
        };
        let bytes = registers.status(3);
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
        let at = |field: usize| word(112 + field);
        assert_eq!(word(32), 4, "the process");
        // r15, rbp, rbx, rax, rdi; orig_rax, rip, cs, eflags, rsp, ss; the bases, ds, fs, gs.
        assert_eq!([at(0), at(32), at(40), at(80), at(112)], [0x10f, 0x106, 0x103, 0x100, 0x105]);
        assert_eq!([at(120), at(128), at(136), at(144)], [u64::MAX, 0x200, 0x10, 0x201]);
        assert_eq!([at(152), at(160), at(168), at(176)], [0x107, 0x18, 0x300, 0x301]);
        assert_eq!([at(184), at(200), at(208)], [0, 0x2b, 0x33]);
    }

    #[test]
    fn our_reader_has_the_registers_again() {
        let registers = AllRegisters {
            general: std::array::from_fn(|number| 0x100 + number as u64),
            rip: 0xffff_8000_0000_1000,
            cs: Segment { selector: 0x10, flags: 1 << 21, ..Segment::default() },
            idt: Segment { base: 0xffff_fe00_0000_0000, limit: 4095, ..Segment::default() },
            control: [1 << 31 | 1, 0, 2, 0x5000, 1 << 5],
            ..AllRegisters::default()
        };
        let core = parse_state(&registers.state()).unwrap();
        assert_eq!(core.registers.x86_64().unwrap().general(), Some(registers.general));
        let paging = core.paging.x86_64().unwrap();
        assert_eq!((core.registers.ip(), paging.cr3, paging.cr4), (registers.rip, 0x5000, 1 << 5));
        assert_eq!((core.is_privileged, core.interrupt_table), (true, Some(0xffff_fe00_0000_0000)));
    }
}
