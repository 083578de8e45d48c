//! AArch64: what the processor reports of its clock, and code that was written.

use std::arch::asm;

/// The rate of the clock of events: CNTFRQ_EL0 (Arm Architecture Reference Manual, D12.1).
pub(crate) fn nominal_rate() -> Option<u64> {
    let rate: u64;
    // SAFETY: Linux permits the register to processes.
    unsafe { asm!("mrs {}, cntfrq_el0", out(reg) rate, options(nomem, nostack, preserves_flags)) };
    (rate > 0).then_some(rate)
}

/// Discards the instructions that this core has fetched.
pub(crate) fn discard_fetched_instructions() {
    // SAFETY: a barrier changes nothing.
    unsafe { asm!("isb", options(nostack, preserves_flags)) };
}
