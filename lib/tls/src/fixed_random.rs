//! Bytes of our generator for ring, which otherwise takes those of an operating system.
//!
//! ring's trait for randomness is sealed. The only implementation that takes the bytes from its caller is in its module for tests, marked
//! as deprecated because it may go in another version; what it does is to copy. `Cargo.toml` names the exact version of ring.
#![allow(deprecated)]

use crate::entropy::Entropy;
use ring::rand::SecureRandom;
use ring::test::rand::FixedSliceRandom;

/// Bytes that ring refuses, such as a number larger than the order of a curve, come once in 2^32 times.
const TRIES: usize = 3;

/// Calls `operation` with `N` random bytes, exactly as many as it takes; again with others if it fails. `None` if it fails with all.
pub(crate) fn with_random<const N: usize, T>(
    entropy: &Entropy,
    operation: impl Fn(&dyn SecureRandom) -> Result<T, ring::error::Unspecified>,
) -> Option<T> {
    (0..TRIES).find_map(|_| operation(&FixedSliceRandom { bytes: &entropy.bytes::<N>() }).ok())
}
