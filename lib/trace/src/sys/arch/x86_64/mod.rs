//! x86-64: the TSC, and two words of the core at %gs or of the thread at %fs.

#[cfg(glass_functions)]
pub(crate) mod functions;
#[cfg(glass_vm)]
#[path = "own_core.rs"]
pub(crate) mod own;
#[cfg(not(glass_vm))]
#[path = "own_thread.rs"]
pub(crate) mod own;

/// The clock of events: the TSC.
#[inline(always)]
pub fn ticks() -> u64 {
    // SAFETY: every x86-64 CPU has the instruction, and neither our kernel nor Linux forbids it.
    unsafe { core::arch::x86_64::_rdtsc() }
}
