//! x86-64: what the processor reports of its clock, and code that was written.

use std::arch::x86_64::__cpuid;

/// The rate that the CPU reports for its clock, until it is measured.
pub(crate) fn nominal_rate() -> Option<u64> {
    let leaf_max = __cpuid(0).eax;
    // Intel's manual, volume 2, CPUID: leaf 0x15 has the ratio to a crystal and the crystal's rate, leaf 0x16 has MHz.
    if leaf_max >= 0x15 {
        let leaf = __cpuid(0x15);
        let product = u64::from(leaf.ecx) * u64::from(leaf.ebx);
        if let Some(rate) = product.checked_div(leaf.eax.into()).filter(|rate| *rate > 0) {
            return Some(rate);
        }
    }
    let mhz = if leaf_max >= 0x16 { __cpuid(0x16).eax & 0xffff } else { 0 };
    (mhz > 0).then(|| u64::from(mhz) * 1_000_000)
}

/// Discards the instructions that this core has fetched. Intel's manual, volume 3, 9.1.3: code that was written through another address than it
/// runs at requires a serializing instruction.
pub(crate) fn discard_fetched_instructions() {
    __cpuid(0);
}
