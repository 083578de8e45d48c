//! Registers from a gdbstub.

use glass_profiler_core::arch::Width;
use glass_profiler_core::arch::x86_64::mode::{CR0_PROTECTION, CodeSegment};
use glass_profiler_core::arch::x86_64::paging::Paging;
use glass_profiler_core::arch::x86_64::{GENERAL, GENERAL_NAMES, Registers};

use super::all::{AllRegisters, Segment};
use crate::arch::CoreState;
use crate::arch::gdb::value;

/// DWARF numbers.
const RBP: usize = 6;
const RSP: usize = 7;

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
    others: Others,
}

/// Offsets of what only dumps hold, as far as it is sent: `eflags` and selectors have 4 bytes, the others 8.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Others {
    eflags: Option<usize>,
    /// ds, es, fs, gs, ss.
    selectors: [Option<usize>; 5],
    fs_base: Option<usize>,
    gs_base: Option<usize>,
    kernel_gs_base: Option<usize>,
    cr2: Option<usize>,
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
            others: Others {
                eflags: offset_of("eflags", 4),
                selectors: ["ds", "es", "fs", "gs", "ss"].map(|name| offset_of(name, 4)),
                fs_base: offset("fs_base"),
                gs_base: offset("gs_base"),
                kernel_gs_base: offset("k_gs_base"),
                cr2: offset("cr2"),
            },
        })
    }

    /// All registers of the digits of a `g` packet, for a dump; `None` if one is missing that has to be there.
    pub(crate) fn all(&self, digits: &[u8]) -> Option<AllRegisters> {
        let core = self.registers(digits)?;
        let paging = *core.paging.x86_64()?;
        let value = |offset: Option<usize>, bytes| offset.and_then(|offset| value(digits, offset, bytes));
        let word = |offset| value(offset, 8).unwrap_or(0);
        let is_real = paging.cr0 & CR0_PROTECTION == 0;
        let segment = |offset| {
            let selector = value(offset, 4).unwrap_or(0) as u16;
            let base = if is_real { u64::from(selector) << 4 } else { 0 };
            Segment { selector, base, limit: u32::MAX, flags: 0 }
        };
        let [ds, es, fs, gs, ss] = self.others.selectors.map(segment);
        let (is_long, is_32_bit) = (core.width == Width::Bits64, core.width == Width::Bits32);
        let flags = u32::from(is_long) << 21 | u32::from(is_32_bit) << 22;
        let others = &self.others;
        let mut general = self.general.map_or([0; GENERAL], |places| places.map(Some).map(word));
        (general[RSP], general[RBP]) = (word(Some(self.rsp)), word(Some(self.rbp)));
        Some(AllRegisters {
            general,
            rip: word(Some(self.rip)),
            rflags: value(others.eflags, 4).unwrap_or(0),
            cs: Segment { flags, ..segment(Some(self.cs)) },
            ds,
            es,
            fs: Segment { base: word(others.fs_base), ..fs },
            gs: Segment { base: word(others.gs_base), ..gs },
            ss,
            control: [paging.cr0, 0, word(others.cr2), paging.cr3, paging.cr4],
            kernel_gs_base: word(others.kernel_gs_base),
            ..AllRegisters::default()
        })
    }

    /// Takes the registers out of the digits of a `g` packet; `None` if one is missing.
    pub(crate) fn registers(&self, digits: &[u8]) -> Option<CoreState> {
        let word = |offset| value(digits, offset, 8);
        let mut registers = Registers::new(word(self.rip)?, word(self.rsp)?, word(self.rbp)?);
        if let Some(places) = &self.general {
            let general: Option<Vec<u64>> = places.iter().map(|place| word(*place)).collect();
            registers = Registers::of_all(registers.rip, general?.try_into().ok()?);
        }
        let efer = self.efer.and_then(word);
        let paging = Paging { cr0: word(self.cr0)?, cr3: word(self.cr3)?, cr4: word(self.cr4)?, efer };
        // QEMU does not send descriptors.
        let selector = value(digits, self.cs, 4)? as u16;
        let code = CodeSegment { selector, is_long: None, is_32_bit: None };
        let is_real = paging.cr0 & CR0_PROTECTION == 0;
        let level = if is_real { 0 } else { (selector & 3) as u8 };
        // In real mode a selector determines its segment's base. QEMU does not name that of the stack in all versions, and
        // nothing in real mode can be unwound.
        let start = if is_real { u64::from(selector) << 4 } else { 0 };
        Some(CoreState::of_x86_64(registers, paging, code, level, [start, 0]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::x86_64::note::parse_state;

    #[test]
    fn all_registers_of_a_packet_are_in_a_dump() {
        let general = GENERAL_NAMES.map(|name| (name, 8));
        let others = [("rip", 8), ("eflags", 4), ("cs", 4), ("ss", 4), ("ds", 4), ("es", 4), ("fs", 4), ("gs", 4)];
        let system = [("fs_base", 8), ("gs_base", 8), ("k_gs_base", 8), ("cr0", 8), ("cr2", 8), ("cr3", 8)];
        let last = [("cr4", 8), ("efer", 8)];
        let fields: Vec<(&str, usize)> = general.into_iter().chain(others).chain(system).chain(last).collect();
        let named: Vec<(String, usize)> = fields.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes)).collect();
        let digits = |values: &dyn Fn(&str) -> u64| -> Vec<u8> {
            let text = |(name, bytes): &(&str, usize)| {
                values(name).to_le_bytes()[..*bytes].iter().map(|byte| format!("{byte:02x}")).collect::<String>()
            };
            fields.iter().map(text).collect::<String>().into_bytes()
        };
        let layout = Layout::of(&named).unwrap();
        let long = |name: &str| match name {
            "cs" => 0x33,
            "cr0" => 1 << 31 | 1,
            "cr4" => 1 << 5,
            "efer" => 1 << 10,
            name => fields.iter().position(|(known, _)| *known == name).unwrap() as u64 + 1,
        };
        let sent = digits(&long);
        let all = layout.all(&sent).unwrap();
        assert_eq!((all.rip, all.rflags, all.ss.selector, all.gs.selector), (17, 18, 20, 24));
        assert_eq!((all.fs.base, all.gs.base, all.kernel_gs_base, all.control[2]), (25, 26, 27, 29));
        let (read, core) = (parse_state(&all.state()).unwrap(), layout.registers(&sent).unwrap());
        assert_eq!((read.registers, read.width, read.is_privileged), (core.registers, core.width, false));
        assert!(layout.all(&sent[..sent.len() - 1]).is_some(), "efer is not needed");
        assert!(layout.all(&sent[..40]).is_none());
        // One that was never started.
        let reset = |name: &str| match name {
            "cs" => 0xf000,
            "rip" => 0xfff0,
            _ => 0,
        };
        let read = parse_state(&layout.all(&digits(&reset)).unwrap().state()).unwrap();
        assert!(read.is_at_reset);
    }
}
