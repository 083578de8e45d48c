//! Mutators of valid bytes: some for bytes of any kind, some for a format.

mod elf;
mod plain;
mod protobuf;
mod text;
mod words;

use fastrand::Rng;

pub use elf::elf;
pub use plain::{interesting, plain};
pub use protobuf::protobuf;
pub use text::text;
pub use words::{fields, kinds, words};

/// One of several items.
pub fn pick<'a, T>(rng: &mut Rng, things: &'a [T]) -> &'a T {
    &things[rng.usize(..things.len())]
}

/// A range of bytes within `length`, short more often than long.
pub fn range(rng: &mut Rng, length: usize) -> std::ops::Range<usize> {
    let start = rng.usize(..=length);
    let longest = 1usize << rng.u32(..14);
    start..start + rng.usize(..=(length - start).min(longest))
}
