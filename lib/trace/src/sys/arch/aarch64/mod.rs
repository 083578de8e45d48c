//! AArch64: the virtual counter, and two words of the thread at TPIDR_EL0. There is no VM of this architecture yet, and no functions are traced.

#[cfg(glass_vm)]
compile_error!("there is no VM of this architecture yet: build the service as a process");
#[cfg(glass_functions)]
compile_error!("functions cannot be traced on this architecture yet: build without them");

#[path = "own_thread.rs"]
pub(crate) mod own;

/// The clock of events: CNTVCT_EL0, whose rate is in CNTFRQ_EL0 (Arm Architecture Reference Manual, D12.1).
#[inline(always)]
pub fn ticks() -> u64 {
    let ticks;
    // SAFETY: Linux permits the register to processes.
    unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags)) };
    ticks
}
