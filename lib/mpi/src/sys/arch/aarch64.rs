//! AArch64: the virtual counter, and loops over elements, for which the compiler uses the vector registers that each CPU has.

use super::vector::combine_all;

/// The clock of events: CNTVCT_EL0 (Arm Architecture Reference Manual, D12.1).
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    let ticks;
    // SAFETY: Linux permits the register to processes.
    unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags)) };
    ticks
}

/// As [`combine_all`].
pub(crate) fn each<const N: usize>(first: &[u8], second: &mut [u8], combine: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
    combine_all(first, second, combine);
}
