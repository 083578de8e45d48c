//! Random bytes of one server or client, from those of its platform.
//!
//! rustls wants a source that lives as long as the program and that any thread may use; a platform's handle is neither. So each context has a generator
//! (ChaCha20), into which the platform's bytes are mixed before each handshake: a VM that is restored twice from one snapshot makes
//! other keys in each.

use chacha20::ChaCha20Rng;
use chacha20::rand_core::{Rng, SeedableRng};
use core::fmt;
use glass_api::Random;
use rustls::crypto::{GetRandomFailed, SecureRandom};
use spin::Mutex;

/// The generator of a context.
pub(crate) struct Entropy(Mutex<ChaCha20Rng>);

impl Entropy {
    /// One with the platform's entropy.
    pub(crate) fn new(random: &impl Random) -> Entropy {
        let mut seed = [0; 32];
        random.fill_random(&mut seed);
        Entropy(Mutex::new(ChaCha20Rng::from_seed(seed)))
    }

    /// Mixes fresh bytes of the platform in: the new key is the old generator's output combined with them.
    pub(crate) fn stir(&self, random: &impl Random) {
        let mut fresh = [0; 32];
        random.fill_random(&mut fresh);
        let mut rng = self.0.lock();
        let mut seed = [0; 32];
        rng.fill_bytes(&mut seed);
        seed.iter_mut().zip(fresh).for_each(|(byte, fresh)| *byte ^= fresh);
        *rng = ChaCha20Rng::from_seed(seed);
    }

    /// Random bytes.
    pub(crate) fn bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.lock().fill_bytes(&mut bytes);
        bytes
    }
}

impl SecureRandom for Entropy {
    fn fill(&self, bytes: &mut [u8]) -> Result<(), GetRandomFailed> {
        self.0.lock().fill_bytes(bytes);
        Ok(())
    }
}

impl fmt::Debug for Entropy {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("Entropy")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Constant;

    impl Random for Constant {
        fn fill_random(&self, bytes: &mut [u8]) {
            bytes.fill(7);
        }
    }

    struct Other;

    impl Random for Other {
        fn fill_random(&self, bytes: &mut [u8]) {
            bytes.fill(8);
        }
    }

    #[test]
    fn bytes_follow_from_those_of_the_platform() {
        let [first, second] = [Entropy::new(&Constant), Entropy::new(&Constant)];
        assert_eq!(first.bytes::<32>(), second.bytes());
        assert_ne!(first.bytes::<32>(), first.bytes());
        second.bytes::<32>();
        // Two copies, as of a VM restored twice: they differ from the next handshake on.
        first.stir(&Constant);
        second.stir(&Other);
        assert_ne!(first.bytes::<32>(), second.bytes());
    }
}
