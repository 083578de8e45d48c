//! AArch64: the virtual counter.

/// The clock of the processor: CNTVCT_EL0 (Arm Architecture Reference Manual, D12.1).
pub(super) fn ticks() -> u64 {
    let ticks;
    // SAFETY: Linux permits the register to processes.
    unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags)) };
    ticks
}
