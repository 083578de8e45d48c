//! The CPU's instructions for random words.

use core::arch::x86_64::{__cpuid, __cpuid_count, _rdrand64_step, _rdseed64_step};

/// CPUID leaf 1, ecx: RDRAND. Leaf 7, ebx: RDSEED.
const CPUID_RDRAND: u32 = 1 << 30;
const CPUID_RDSEED: u32 = 1 << 18;
/// Intel's advice: a generator that fails ten times in a row is broken. RDSEED fails more often while its source is busy.
const RDRAND_TRIES: usize = 10;
const RDSEED_TRIES: usize = 100;

/// An instruction of the CPU that gives random words. It runs natively; CPUID, which costs an exit, is executed once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// RDRAND alone.
    Rdrand,
    /// RDSEED, and RDRAND where that is busy.
    Rdseed,
}

impl Source {
    /// What this CPU has.
    pub fn find() -> Option<Source> {
        let has_rdseed = __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ebx & CPUID_RDSEED != 0;
        match (__cpuid(1).ecx & CPUID_RDRAND != 0, has_rdseed) {
            (true, true) => Some(Source::Rdseed),
            (true, false) => Some(Source::Rdrand),
            (false, _) => None,
        }
    }

    /// 64 random bits to seed a generator with.
    pub fn seed(self) -> Option<u64> {
        if self == Source::Rdseed {
            // SAFETY: CPUID has reported the instruction.
            if let Some(value) = unsafe { from_rdseed() } {
                return Some(value);
            }
        }
        self.word()
    }

    /// 64 random bits, sooner.
    pub fn word(self) -> Option<u64> {
        // SAFETY: CPUID has reported the instruction, which each source has.
        unsafe { from_rdrand() }
    }
}

// AMD's early generators answer all ones forever after a suspend.
#[target_feature(enable = "rdseed")]
fn from_rdseed() -> Option<u64> {
    let mut value = 0;
    (0..RDSEED_TRIES).any(|_| _rdseed64_step(&mut value) == 1 && value != u64::MAX).then_some(value)
}

#[target_feature(enable = "rdrand")]
fn from_rdrand() -> Option<u64> {
    let mut value = 0;
    (0..RDRAND_TRIES).any(|_| _rdrand64_step(&mut value) == 1 && value != u64::MAX).then_some(value)
}
