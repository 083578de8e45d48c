//! x86-64: the TSC.

/// The clock of the processor.
pub(super) fn ticks() -> u64 {
    // SAFETY: every x86-64 has it, and Linux permits it.
    unsafe { core::arch::x86_64::_rdtsc() }
}
