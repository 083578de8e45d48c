//! AArch64.

pub(crate) mod gdb;
pub(crate) mod note;

use glass_profiler_core::arch::Width;
use glass_profiler_core::arch::aarch64::Registers;
use glass_profiler_core::arch::aarch64::paging::Paging;

use super::CoreState;

/// The exception level in PSTATE, in units of its two bits (Arm Architecture Reference Manual, C5.2.19), and the one of processes.
const LEVEL: u32 = 1 << 2 | 1 << 3;
const LEVEL_USER: u32 = 0;
/// PSTATE of a core in AArch32 state: its lower 5 bits are another code.
const IS_32_BIT: u32 = 1 << 4;

/// What these registers say; `pstate` as gdb names it `cpsr`.
pub(crate) fn core_state(registers: Registers, pstate: u32, paging: Paging) -> CoreState {
    let address_bits = paging.address_bits(registers.pc);
    let registers = Registers { address_bits, ..registers };
    CoreState {
        registers: registers.into(),
        paging: paging.into(),
        width: if pstate & IS_32_BIT == 0 { Width::Bits64 } else { Width::Bits32 },
        is_privileged: pstate & LEVEL != LEVEL_USER,
        // A secondary core is off until PSCI starts it: all its registers are 0, and nothing is executed at address 0 of `virt`, where its flash is.
        is_at_reset: (registers.pc, registers.sp) == (0, 0) && registers.general.iter().all(|value| *value == 0),
        interrupt_table: None,
    }
}
