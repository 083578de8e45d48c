//! Random bytes: a ChaCha20 generator that is seeded with entropy, from the CPU or from the host's entropy device, and with
//! nothing less. The time stamp counter is no entropy: the host can read it.
//!
//! A VM that is restored from a snapshot, and another one restored from the same, have the same generator. So each request for bytes first mixes in a
//! word of the CPU's source: from the first request after the restore on, their bytes differ, and cannot be computed from the snapshot. On a CPU without a
//! source they differ by the time stamp counter at once, which the host could guess, and by entropy when the device has given bytes again: within
//! [`RESEED_TIME`](crate::random::RESEED_TIME). What a service has kept of earlier bytes, such as a key, stays the same in both.

use crate::arch::random::Source;
use chacha20::ChaCha20Rng;
use chacha20::rand_core::{Rng, SeedableRng};
use core::sync::atomic::{AtomicU64, Ordering};

/// Bytes of entropy without which nothing is generated.
const ENTROPY_BYTES_MIN: usize = 32;

/// What the entropy device has given, for all cores: each mixes in what it has not mixed in yet. Any words are as good as others, so a core
/// that reads while they change takes nothing wrong.
struct Given {
    count: AtomicU64,
    words: [AtomicU64; 4],
}

static GIVEN: Given = Given { count: AtomicU64::new(0), words: [const { AtomicU64::new(0) }; 4] };

/// A core's generator.
pub struct Generator {
    rng: ChaCha20Rng,
    /// Bytes of entropy that went into it.
    entropy_bytes: usize,
    /// [`Given::count`] of what it has mixed in.
    given: u64,
    /// The CPU's instruction for random words.
    source: Option<Source>,
}

impl Generator {
    /// One without entropy.
    pub fn new() -> Generator {
        Generator { rng: ChaCha20Rng::from_seed([0; 32]), entropy_bytes: 0, given: 0, source: Source::find() }
    }

    /// One with entropy of the CPU, if that has a source.
    pub fn seeded_by_cpu() -> Generator {
        let mut generator = Generator::new();
        for _ in 0..ENTROPY_BYTES_MIN / 8 {
            let Some(word) = generator.source.and_then(Source::seed) else { break };
            generator.add(&word.to_le_bytes());
        }
        generator
    }

    /// Mixes entropy in: the new key is the old generator's output combined with it, so bytes that an attacker chose make nothing worse.
    pub fn add(&mut self, entropy: &[u8]) {
        self.mix(entropy);
        self.entropy_bytes += entropy.len();
    }

    /// Mixes in bytes that need not be entropy.
    fn mix(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(32) {
            let mut seed = [0; 32];
            self.rng.fill_bytes(&mut seed);
            seed.iter_mut().zip(chunk).for_each(|(byte, fresh)| *byte ^= fresh);
            self.rng = ChaCha20Rng::from_seed(seed);
        }
    }

    /// Mixes in what makes this generator differ from a copy of it that is used elsewhere: a word of the CPU's, if it has a source, the time
    /// stamp counter, and what the entropy device has given since.
    fn diverge(&mut self, cpu_word: Option<u64>, ticks: u64) {
        let count = GIVEN.count.load(Ordering::Acquire);
        if count != self.given {
            self.given = count;
            let words = GIVEN.words.each_ref().map(|word| word.load(Ordering::Relaxed).to_le_bytes());
            self.mix(words.as_flattened());
        }
        self.mix([cpu_word.unwrap_or(0).to_le_bytes(), ticks.to_le_bytes()].as_flattened());
    }

    /// Fills `bytes` with what no copy of this generator gives elsewhere; `ticks` is the time stamp counter.
    ///
    /// # Panics
    /// As [`fill`](Generator::fill).
    pub fn fill_apart(&mut self, ticks: u64, bytes: &mut [u8]) {
        self.diverge(self.source.and_then(Source::word), ticks);
        self.fill(bytes);
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

/// Keeps at most 32 bytes for all cores. Only the core of the device calls it.
pub fn give(entropy: &[u8]) {
    for (word, bytes) in GIVEN.words.iter().zip(entropy.chunks(8)) {
        let mut fresh = [0; 8];
        fresh[..bytes.len()].copy_from_slice(bytes);
        word.fetch_xor(u64::from_le_bytes(fresh), Ordering::Relaxed);
    }
    // Release: pairs with the Acquire in `diverge`.
    GIVEN.count.fetch_add(1, Ordering::Release);
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
        let Some(source) = Source::find() else { return };
        if let (Some(first), Some(second), Some(third)) = (source.word(), source.word(), source.seed()) {
            assert!(first != second && second != third);
        }
    }

    /// Two VMs that are restored from one snapshot, and a third that differs in nothing.
    #[test]
    fn copies_of_a_generator_differ_from_their_first_bytes_on() {
        let bytes = |cpu_word, ticks| {
            // The same in each.
            let mut generator = Generator::new();
            generator.add(&[1; 32]);
            let mut bytes = [0; 32];
            generator.diverge(cpu_word, ticks);
            generator.fill(&mut bytes);
            bytes
        };
        assert_eq!(bytes(Some(5), 100), bytes(Some(5), 100));
        assert_ne!(bytes(Some(5), 100), bytes(Some(6), 100));
        // Without a source in the CPU the time is left, until the entropy device has given bytes.
        assert_ne!(bytes(None, 100), bytes(None, 101));
        let before = bytes(None, 100);
        give(&[7; 32]);
        let after = bytes(None, 100);
        assert_ne!(after, before);
        give(&[8; 5]);
        assert_ne!(bytes(None, 100), after);
    }
}
