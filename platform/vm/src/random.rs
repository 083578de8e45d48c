//! This core's random bytes, and the entropy of devices.

use crate::arch::ticks;
use crate::cores::this_core;
use crate::generator::{Generator, give};
use core::time::Duration;

/// How often the entropy device is requested to give bytes.
pub const RESEED_TIME: Duration = Duration::from_secs(30);
/// Seeds this core's generator from the CPU, if that has a source.
pub fn initialize() {
    this_core().random.replace(Some(Generator::seeded_by_cpu()));
}

/// Mixes entropy of a device into this core's generator, and into those of other cores when they are used.
pub fn add(entropy: &[u8]) {
    if let Some(generator) = &mut *this_core().random.borrow_mut() {
        generator.add(entropy);
    }
    give(entropy);
}

/// Whether this core's generator has enough entropy.
pub fn is_seeded() -> bool {
    this_core().random.borrow().as_ref().is_some_and(Generator::is_seeded)
}

/// Fills `bytes`. The platform starts no service before there is entropy.
pub fn fill(bytes: &mut [u8]) {
    let mut generator = this_core().random.borrow_mut();
    let generator = generator.as_mut().expect("start.rs has made a generator");
    generator.fill_apart(ticks(), bytes);
}

/// 64 random bits.
pub fn next() -> u64 {
    let mut bytes = [0; 8];
    fill(&mut bytes);
    u64::from_le_bytes(bytes)
}
