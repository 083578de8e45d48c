//! The CPU's instructions for random words (FEAT_RNG).

use core::arch::asm;

/// A generator that fails as often in a row is broken.
const TRIES: usize = 100;
/// Where ID_AA64ISAR0_EL1 has its version of FEAT_RNG.
const RNDR_SHIFT: u32 = 60;

/// The registers that give random words: RNDRRS, which seeds its generator anew, and RNDR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source(());

impl Source {
    /// What this CPU has.
    pub fn find() -> Option<Source> {
        let features: u64;
        // SAFETY: reads a register that every AArch64 has; to a process Linux gives it as well.
        unsafe { asm!("mrs {}, id_aa64isar0_el1", out(reg) features, options(nomem, nostack, preserves_flags)) };
        (features >> RNDR_SHIFT != 0).then_some(Source(()))
    }

    /// 64 random bits to seed a generator with.
    pub fn seed(self) -> Option<u64> {
        read(|| {
            let (value, failed): (u64, u64);
            // SAFETY: `find` has found the register (RNDRRS); the Z flag is set if it failed.
            unsafe {
                asm!("mrs {}, s3_3_c2_c4_1", "cset {}, eq", out(reg) value, out(reg) failed, options(nomem, nostack))
            };
            (failed == 0).then_some(value)
        })
    }

    /// 64 random bits, sooner.
    pub fn word(self) -> Option<u64> {
        read(|| {
            let (value, failed): (u64, u64);
            // SAFETY: as for `seed`, of RNDR.
            unsafe {
                asm!("mrs {}, s3_3_c2_c4_0", "cset {}, eq", out(reg) value, out(reg) failed, options(nomem, nostack))
            };
            (failed == 0).then_some(value)
        })
    }
}

fn read(once: impl Fn() -> Option<u64>) -> Option<u64> {
    (0..TRIES).find_map(|_| once())
}
