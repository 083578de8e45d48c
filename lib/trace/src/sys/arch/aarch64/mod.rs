//! AArch64: the virtual counter, and two words of the core at TPIDR_EL1 or of the thread at TPIDR_EL0. No functions are traced.

#[cfg(glass_functions)]
compile_error!("functions cannot be traced on this architecture yet: build without them");

#[cfg(glass_vm)]
#[path = "own_core.rs"]
pub(crate) mod own;
#[cfg(not(glass_vm))]
#[path = "own_thread.rs"]
pub(crate) mod own;

/// The clock of events: CNTVCT_EL0, whose rate is in CNTFRQ_EL0 (Arm Architecture Reference Manual, D12.1).
#[inline(always)]
pub fn ticks() -> u64 {
    let ticks;
    // SAFETY: Linux permits the register to processes, and our kernel runs at EL1.
    unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags)) };
    ticks
}
