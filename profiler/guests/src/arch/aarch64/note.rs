//! Registers as a dump of QEMU has them: `NT_PRSTATUS` of each vCPU, as Linux has those of a process (`struct elf_prstatus` of `linux/elfcore.h`).
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 112 | 31 x 8 | x0 to x30 |
//! | 360 | 8 | sp |
//! | 368 | 8 | pc |
//! | 376 | 8 | the processor's state |
//!
//! The registers of page tables are in no note.

use glass_profiler_core::arch::aarch64::paging::Paging;
use glass_profiler_core::arch::aarch64::{GENERAL, Registers};

use super::core_state;
use crate::arch::CoreState;

/// Where the registers are.
const REGISTERS: usize = 112;

/// The registers in a note. Until the guest's page tables are known its addresses are taken for physical ones, as they are in images of ours.
pub(crate) fn parse_status(bytes: &[u8]) -> Option<CoreState> {
    let (words, _) = bytes.get(REGISTERS..)?.as_chunks::<8>();
    let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
    let mut general = [0; GENERAL];
    for register in &mut general {
        *register = words.next()?;
    }
    let (sp, pc, pstate) = (words.next()?, words.next()?, words.next()?);
    // Of all address spaces nearly all have so many bits.
    let address_bits = Registers::default().address_bits;
    let registers = Registers { pc, sp, general, address_bits };
    let state = core_state(registers, pstate as u32, Paging::default());
    Some(CoreState { registers: registers.into(), ..state })
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_profiler_core::arch::Width;

    #[test]
    fn registers_are_where_qemu_puts_them() {
        let mut bytes = vec![0; 392];
        let mut set = |at: usize, value: u64| bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        (0..31).for_each(|register| set(112 + register * 8, 100 + register as u64));
        set(360, 0x4020_0000);
        set(368, 0x4030_0004);
        set(376, 0x6000_0005);
        let state = parse_status(&bytes).unwrap();
        let registers = state.registers.aarch64().unwrap();
        assert_eq!((registers.pc, registers.sp, registers.fp(), registers.lr()), (0x4030_0004, 0x4020_0000, 129, 130));
        assert_eq!((state.width, state.is_privileged, state.is_at_reset), (Width::Bits64, true, false));
        assert_eq!(state.paging, Paging::default().into());
        assert_eq!(parse_status(&bytes[..383]), None);
        // A process, and a core that was never started.
        bytes[376] = 0;
        assert!(!parse_status(&bytes).unwrap().is_privileged);
        assert!(parse_status(&[0; 392]).unwrap().is_at_reset);
    }
}
