//! x86-64: the TSC, and loops over elements with AVX2.

use super::vector::combine_all;

cpufeatures::new!(avx2, "avx2");

/// The clock of events: the time stamp counter.
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    // SAFETY: every x86-64 CPU has the instruction, and neither our kernel nor Linux forbids it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// As [`combine_all`]. The compiler makes vector code of it, once for every x86-64 CPU and once for AVX2, which takes half the time.
pub(crate) fn each<const N: usize>(first: &[u8], second: &mut [u8], combine: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
    #[target_feature(enable = "avx2")]
    fn wide<const N: usize>(first: &[u8], second: &mut [u8], combine: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
        combine_all(first, second, combine);
    }
    if avx2::get() {
        // SAFETY: the CPU has AVX2, and the system saves its registers.
        unsafe { wide(first, second, combine) }
    } else {
        combine_all(first, second, combine);
    }
}
