//! Random bytes: a ChaCha20 generator that is seeded with entropy, from the CPU or from the host's entropy device, and with
//! nothing less. The time stamp counter is no entropy: the host can read it.

use crate::cores::this_core;
use chacha20::ChaCha20Rng;
use chacha20::rand_core::{Rng, SeedableRng};
use core::arch::x86_64::{__cpuid, __cpuid_count, _rdrand64_step, _rdseed64_step};

/// CPUID leaf 1, ecx: RDRAND. Leaf 7, ebx: RDSEED.
const CPUID_RDRAND: u32 = 1 << 30;
const CPUID_RDSEED: u32 = 1 << 18;
/// Intel's advice: a generator that fails ten times in a row is broken. RDSEED fails more often while its source is busy.
const RDRAND_TRIES: usize = 10;
const RDSEED_TRIES: usize = 100;
/// Bytes of entropy without which nothing is generated.
const ENTROPY_BYTES_MIN: usize = 32;

/// A core's generator.
pub struct Generator {
    rng: ChaCha20Rng,
    /// Bytes of entropy that went into it.
    entropy_bytes: usize,
}

impl Generator {
    /// One without entropy.
    pub fn new() -> Generator {
        Generator { rng: ChaCha20Rng::from_seed([0; 32]), entropy_bytes: 0 }
    }

    /// Mixes entropy in: the new key is the old generator's output combined with it, so bytes that an attacker chose make nothing worse.
    pub fn add(&mut self, entropy: &[u8]) {
        for chunk in entropy.chunks(32) {
            let mut seed = [0; 32];
            self.rng.fill_bytes(&mut seed);
            seed.iter_mut().zip(chunk).for_each(|(byte, fresh)| *byte ^= fresh);
            self.rng = ChaCha20Rng::from_seed(seed);
        }
        self.entropy_bytes += entropy.len();
    }

    /// Whether it has enough entropy.
    pub fn is_seeded(&self) -> bool {
        self.entropy_bytes >= ENTROPY_BYTES_MIN
    }

    /// Fills `bytes`.
    ///
    /// # Panics
    /// Without entropy: zeros in their place would be found too late.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        assert!(self.is_seeded(), "random bytes were requested before there was entropy");
        self.rng.fill_bytes(bytes);
    }
}

/// Seeds this core's generator from the CPU, if that has a source.
pub fn initialize() {
    let mut generator = Generator::new();
    for _ in 0..ENTROPY_BYTES_MIN / 8 {
        let Some(word) = from_cpu() else { break };
        generator.add(&word.to_le_bytes());
    }
    this_core().random.replace(Some(generator));
}

/// Mixes entropy of a device into this core's generator.
pub fn add(entropy: &[u8]) {
    if let Some(generator) = &mut *this_core().random.borrow_mut() {
        generator.add(entropy);
    }
}

/// Whether this core's generator has enough entropy.
pub fn is_seeded() -> bool {
    this_core().random.borrow().as_ref().is_some_and(Generator::is_seeded)
}

/// Fills `bytes`. The platform starts no service before there is entropy.
pub fn fill(bytes: &mut [u8]) {
    this_core().random.borrow_mut().as_mut().expect("start.rs has made a generator").fill(bytes);
}

/// 64 random bits.
pub fn next() -> u64 {
    let mut bytes = [0; 8];
    fill(&mut bytes);
    u64::from_le_bytes(bytes)
}

/// 64 bits from the CPU's source. CPUID is executed, not requested of the VMM as a service: these instructions run natively.
fn from_cpu() -> Option<u64> {
    if __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ebx & CPUID_RDSEED != 0 {
        // SAFETY: CPUID reports the instruction.
        if let Some(value) = unsafe { from_rdseed() } {
            return Some(value);
        }
    }
    // SAFETY: CPUID reports the instruction.
    if __cpuid(1).ecx & CPUID_RDRAND != 0 { unsafe { from_rdrand() } } else { None }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn output(entropy: &[&[u8]]) -> [u8; 48] {
        let mut generator = Generator::new();
        entropy.iter().for_each(|bytes| generator.add(bytes));
        let mut bytes = [0; 48];
        generator.fill(&mut bytes);
        bytes
    }

    #[test]
    fn every_byte_of_entropy_counts() {
        let first = output(&[&[1; 32]]);
        assert_eq!(output(&[&[1; 32]]), first);
        for position in 0..32 {
            let mut entropy = [1; 32];
            entropy[position] = 2;
            assert_ne!(output(&[&entropy]), first);
        }
        // What is added later does not replace what was there.
        assert_ne!(output(&[&[1; 32], &[3; 32]]), output(&[&[2; 32], &[3; 32]]));
        assert_ne!(output(&[&[1; 32], &[3; 1]]), first);
        let mut generator = Generator::new();
        generator.add(&[1; 32]);
        let (mut one, mut two) = ([0; 21], [0; 21]);
        generator.fill(&mut one);
        generator.fill(&mut two);
        assert_ne!(one, two);
    }

    #[test]
    #[should_panic(expected = "before there was entropy")]
    fn nothing_is_generated_without_entropy() {
        output(&[&[1; 31]]);
    }

    #[test]
    fn the_cpu_of_this_machine_has_two_words_that_differ() {
        if let (Some(first), Some(second)) = (from_cpu(), from_cpu()) {
            assert_ne!(first, second);
        }
    }
}
