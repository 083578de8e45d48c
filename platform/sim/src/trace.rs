//! A hash of everything that happened: two runs of a seed must have the same.

use core::cell::Cell;
use glass_api::Instant;
use std::rc::Rc;

/// A running hash over every event of a world. Clones add to the same one.
#[derive(Debug, Clone)]
pub(crate) struct Trace {
    hash: Rc<Cell<u64>>,
}

impl Trace {
    pub(crate) fn new() -> Trace {
        Trace { hash: Rc::new(Cell::new(0xcbf2_9ce4_8422_2325)) }
    }

    /// Adds an event: its time, its kind, and its bytes.
    pub(crate) fn add(&self, now: Instant, what: &str, numbers: &[u64], bytes: &[u8]) {
        let mut hash = self.hash.get();
        let mut mix = |word: u64| {
            hash = (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
            hash ^= hash >> 29;
        };
        mix(now.0);
        for piece in what.as_bytes().chunks(8).chain(bytes.chunks(8)) {
            let mut word = [0; 8];
            word[..piece.len()].copy_from_slice(piece);
            mix(u64::from_le_bytes(word));
        }
        for number in numbers {
            mix(*number);
        }
        self.hash.set(hash);
    }

    pub(crate) fn value(&self) -> u64 {
        self.hash.get()
    }
}
