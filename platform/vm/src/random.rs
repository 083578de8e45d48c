//! Random bytes: the CPU's generator where there is one, else the jitter of the clock.

use crate::ports::read_tsc;
use core::arch::x86_64::{__cpuid, _rdrand64_step};
use core::sync::atomic::{AtomicU64, Ordering};

/// CPUID leaf 1, ecx: RDRAND.
const CPUID_RDRAND: u32 = 1 << 30;
/// Intel's advice: a generator that fails ten times in a row is broken.
const RDRAND_TRIES: usize = 10;

/// Fills `bytes`. Without RDRAND the bytes are hard to guess from outside but no basis for keys.
pub fn fill(bytes: &mut [u8]) {
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&next().to_le_bytes()[..chunk.len()]);
    }
}

/// 64 random bits.
pub fn next() -> u64 {
    // Asked of the CPU that runs ring 3 itself, not of the VMM's table: this instruction runs natively.
    if __cpuid(1).ecx & CPUID_RDRAND != 0 {
        // SAFETY: CPUID says that the instruction exists.
        if let Some(value) = unsafe { from_cpu() } {
            return value;
        }
    }
    from_jitter()
}

#[target_feature(enable = "rdrand")]
fn from_cpu() -> Option<u64> {
    let mut value = 0;
    // AMD's early generators answer all ones for ever after a suspend.
    (0..RDRAND_TRIES).any(|_| _rdrand64_step(&mut value) == 1 && value != u64::MAX).then_some(value)
}

/// SplitMix64 over a state that each call stirs with the TSC (Steele, Lea, Flood: "Fast splittable
/// pseudorandom number generators", 2014).
fn from_jitter() -> u64 {
    static STATE: AtomicU64 = AtomicU64::new(0);
    let mut state = STATE.load(Ordering::Relaxed);
    for _ in 0..64 {
        state = mix(state.wrapping_add(0x9e37_79b9_7f4a_7c15) ^ read_tsc());
    }
    STATE.store(state, Ordering::Relaxed);
    state
}

fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_differ_from_call_to_call() {
        let (mut first, mut second) = ([0; 21], [0; 21]);
        fill(&mut first);
        fill(&mut second);
        assert_ne!(first, second);
        assert_ne!(from_jitter(), from_jitter());
    }
}
