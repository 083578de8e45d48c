//! The frequency of the virtual counter, which the firmware has set.

use core::arch::asm;

/// That frequency.
pub struct Frequency(u64);

impl Frequency {
    /// Reads it.
    pub fn start() -> Frequency {
        let hz;
        // SAFETY: reads a register that every AArch64 has.
        unsafe { asm!("mrs {}, cntfrq_el0", out(reg) hz, options(nomem, nostack, preserves_flags)) };
        Frequency(hz)
    }

    /// The frequency in Hz.
    pub fn hz(&self) -> u64 {
        self.0
    }
}
