//! Registers from a gdbstub: the general ones are in the answer to `g`, those of the system are requested by their numbers (`p`).

use glass_profiler_core::arch::aarch64::paging::Paging;
use glass_profiler_core::arch::aarch64::{GENERAL, Registers};

use super::core_state;
use crate::arch::CoreState;
use crate::arch::gdb::value;

/// The registers of QEMU's first description, which are those in an answer to `g`: x0 to x30, sp, pc, cpsr.
const IN_PACKET: usize = GENERAL + 3;
/// Bytes of them: cpsr has 4.
const PACKET_BYTES: usize = 8 * IN_PACKET - 4;
const SP: usize = GENERAL * 8;
const PC: usize = SP + 8;
const PSTATE: usize = PC + 8;
/// The registers of the system that are needed, each by the names that versions of QEMU have for it.
const OF_SYSTEM: [&[&str]; 4] = [&["SCTLR_EL1", "SCTLR"], &["TCR_EL1"], &["TTBR0_EL1"], &["TTBR1_EL1"]];

/// Others, which show what an exception has interrupted of which no instruction has run: where the kernel has its vectors, and what it is to return to.
const OF_EXCEPTION: [&[&str]; 4] = [&["VBAR_EL1", "VBAR"], &["ELR_EL1"], &["SPSR_EL1"], &["SP_EL0"]];
/// Bytes of all vectors, and of each (Arm Architecture Reference Manual, D1.3).
const VECTORS_BYTES: u64 = 0x800;
const VECTOR_BYTES: u64 = 0x80;
/// In the processor's state: the stack pointer is that of its level, and not that of processes.
const OWN_STACK: u32 = 1;

/// Where registers are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The numbers of SCTLR_EL1, TCR_EL1, TTBR0_EL1 and TTBR1_EL1, and, if all are described, VBAR_EL1, ELR_EL1, SPSR_EL1 and SP_EL0.
    pub(crate) of_system: Vec<usize>,
}

impl Layout {
    /// Finds the registers in a description: names and sizes in bytes, in the order of their numbers.
    pub(crate) fn of(registers: &[(String, usize)]) -> Option<Layout> {
        let general = (0..GENERAL).map(|number| (format!("x{number}"), 8));
        let first = general.chain([("sp".to_owned(), 8), ("pc".to_owned(), 8), ("cpsr".to_owned(), 4)]);
        if !first.eq(registers.get(..IN_PACKET)?.iter().cloned()) {
            return None;
        }
        let number = |names: &&[&str]| {
            let is_it = |name: &&str| registers.iter().position(|(known, bytes)| known == name && *bytes == 8);
            names.iter().find_map(is_it)
        };
        let numbers = |names: &[&[&str]]| names.iter().map(number).collect::<Option<Vec<usize>>>();
        let mut of_system = numbers(&OF_SYSTEM)?;
        of_system.extend(numbers(&OF_EXCEPTION).unwrap_or_default());
        Some(Layout { of_system })
    }

    /// Takes the registers out of the digits of an answer to `g`, which those of the system follow; `None` if one is missing.
    pub(crate) fn registers(&self, digits: &[u8]) -> Option<CoreState> {
        let word = |at| value(digits, at, 8);
        let mut general = [0; GENERAL];
        for (number, register) in general.iter_mut().enumerate() {
            *register = word(number * 8)?;
        }
        let system = |index: usize| word(PACKET_BYTES + index * 8);
        let paging = Paging { sctlr: system(0)?, tcr: system(1)?, tables: [system(2)?, system(3)?] };
        let (mut pc, mut sp, mut pstate) = (word(PC)?, word(SP)?, value(digits, PSTATE, 4)? as u32);
        if self.of_system.len() > OF_SYSTEM.len() {
            let [vectors, to, state, of_process] = [system(4)?, system(5)?, system(6)?, system(7)?];
            let inside = pc.wrapping_sub(vectors);
            // QEMU delivers an interrupt that is pending when it stops a core: then the core is where it was interrupted.
            if inside < VECTORS_BYTES && inside.is_multiple_of(VECTOR_BYTES) && vectors != 0 {
                (pc, pstate) = (to, state as u32);
                sp = if pstate & OWN_STACK == 0 { of_process } else { sp };
            }
        }
        let registers = Registers { pc, sp, general, ..Registers::default() };
        Some(core_state(registers, pstate, paging))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_profiler_core::arch::{self, Width};

    fn described() -> Vec<(String, usize)> {
        let general = (0..GENERAL).map(|number| format!("x{number}"));
        let words = general.chain(["sp", "pc"].map(str::to_owned)).map(|name| (name, 8));
        let system = ["TTBR1_EL1", "SCTLR", "TTBR0_EL1", "TCR_EL1"].map(|name| (name.to_owned(), 8));
        words.chain([("cpsr".to_owned(), 4), ("v0".to_owned(), 16)]).chain(system).collect()
    }

    #[test]
    fn registers_of_the_system_have_their_numbers() {
        assert_eq!(Layout::of(&described()), Some(Layout { of_system: vec![36, 38, 37, 35] }));
        let mut without = described();
        without.pop();
        assert_eq!(Layout::of(&without), None);
        let mut other = described();
        other.swap(3, 4);
        assert_eq!(Layout::of(&other), None);
    }

    /// A core that QEMU stops has taken the interrupt that was pending (2026-11-28: two of three samples of a busy guest were there).
    #[test]
    fn an_exception_that_has_just_begun_is_where_it_interrupted() {
        let mut all = described();
        all.extend(["VBAR", "ELR_EL1", "SPSR_EL1", "SP_EL0"].map(|name| (name.to_owned(), 8)));
        let layout = Layout::of(&all).unwrap();
        assert_eq!(layout.of_system, [36, 38, 37, 35, 39, 40, 41, 42]);
        let at = |pc: u64, state: u64| {
            let mut bytes: Vec<u8> = (0..31u64).chain([0x5000, pc]).flat_map(u64::to_le_bytes).collect();
            bytes.extend(0x3c5u32.to_le_bytes());
            let system = [1, 25 << 16 | 16, 0x4000, 0x5000, 0x1_0000, 0x40_1000, state, 0x7000u64];
            bytes.extend(system.iter().flat_map(|value| value.to_le_bytes()));
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            let core = layout.registers(digits.as_bytes()).unwrap();
            (core.registers.ip(), core.registers.sp(), core.is_privileged)
        };
        // Of a process, of a kernel on its own stack, and of one on the other.
        assert_eq!(at(0x1_0480, 0), (0x40_1000, 0x7000, false));
        assert_eq!(at(0x1_0280, 5), (0x40_1000, 0x5000, true));
        assert_eq!(at(0x1_0080, 4), (0x40_1000, 0x7000, true));
        for pc in [0x1_0484, 0x1_0800, 0xff80] {
            assert_eq!(at(pc, 0), (pc, 0x5000, true));
        }
    }

    #[test]
    fn the_state_of_a_core() {
        let layout = Layout::of(&described()).unwrap();
        let mut bytes: Vec<u8> = (0..33u64).flat_map(|value| (value + 0x1000).to_le_bytes()).collect();
        // At EL1 with SP_EL0, and condition flags.
        bytes.extend(0x6000_03c4u32.to_le_bytes());
        // Address spaces of 48 and 39 bits.
        let system = [1, 25 << 16 | 16, 0x4000, 0x5000u64];
        bytes.extend(system.iter().flat_map(|value| value.to_le_bytes()));
        let digits = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into_bytes();
        let core = layout.registers(&digits(&bytes)).unwrap();
        let arch::Registers::Aarch64(registers) = core.registers else { panic!("{core:?}") };
        assert_eq!((registers.general[0], registers.general[30]), (0x1000, 0x101e));
        assert_eq!((registers.sp, registers.pc, registers.address_bits), (0x101f, 0x1020, 48));
        let paging = Paging { sctlr: 1, tcr: 25 << 16 | 16, tables: [0x4000, 0x5000] };
        assert_eq!((core.paging, core.width, core.is_privileged), (paging.into(), Width::Bits64, true));
        assert!(!core.is_at_reset);
        assert_eq!(layout.registers(&digits(&bytes[..bytes.len() - 1])), None);
        // A process; one of 32 bits; one that was never started.
        for (pstate, width) in [(0u32, Width::Bits64), (0x10, Width::Bits32)] {
            bytes[33 * 8..][..4].copy_from_slice(&pstate.to_le_bytes());
            let core = layout.registers(&digits(&bytes)).unwrap();
            assert_eq!((core.width, core.is_privileged), (width, false));
        }
        bytes[..33 * 8].fill(0);
        assert!(layout.registers(&digits(&bytes)).unwrap().is_at_reset);
    }
}
