//! The only source of randomness: a small generator with a seed.

use core::ops::Range;
use core::time::Duration;

/// Pseudo-random numbers (SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators", 2014). Fast and well spread; not for secrets.
#[derive(Debug, Clone)]
pub struct Chance {
    state: u64,
}

impl Chance {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Chance {
        Chance { state: seed }
    }

    /// A separate sequence for a part of the world, so that the draws of one part do not change
    /// those of others.
    pub fn fork(&mut self) -> Chance {
        Chance::new(self.next_u64())
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, or 0 when that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The bias is bound / 2^64, which is negligible.
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns true with probability `per_million` / 1,000,000.
    pub fn per_million(&mut self, per_million: u32) -> bool {
        // Drawn in any case, so that two worlds that differ in one rate stay comparable.
        self.below(1_000_000) < u64::from(per_million)
    }

    /// A duration in the range, or its start when it is empty.
    pub fn duration(&mut self, range: &Range<Duration>) -> Duration {
        let span = range.end.saturating_sub(range.start);
        range.start + Duration::from_nanos(self.below(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            let word = self.next_u64().to_le_bytes();
            piece.copy_from_slice(&word[..piece.len()]);
        }
    }
}

/// The variable that picks one seed for [`for_seeds`].
const SEED_VARIABLE: &str = "GLASS_SIM_SEED";

/// Calls `test` with each seed; a panic's output ends with the seed that it came from. With
/// `GLASS_SIM_SEED` in the environment, only that seed runs.
pub fn for_seeds(seeds: Range<u64>, mut test: impl FnMut(u64)) {
    let only = std::env::var(SEED_VARIABLE).ok().and_then(|seed| seed.parse::<u64>().ok());
    let seeds = only.map_or(seeds, |seed| seed..seed + 1);
    for seed in seeds {
        let _named = NamedSeed(seed);
        test(seed);
    }
}

struct NamedSeed(u64);

impl Drop for NamedSeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {0} failed; {SEED_VARIABLE}={0} runs it alone", self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_one_sequence() {
        let draw = |seed| {
            let mut chance = Chance::new(seed);
            [chance.next_u64(), chance.below(10), chance.fork().next_u64()]
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn bounds_are_kept_and_reached() {
        let mut chance = Chance::new(3);
        let mut seen = [false; 10];
        for _ in 0..1000 {
            seen[chance.below(10) as usize] = true;
        }
        assert_eq!(seen, [true; 10]);
        assert_eq!(chance.below(0), 0);
        let hits = (0..100_000).filter(|_| chance.per_million(10_000)).count();
        assert!((800..1200).contains(&hits), "{hits} of 100000 at 1 %");
        let second = Duration::from_secs(1);
        assert_eq!(chance.duration(&(second..second)), second);
    }
}
