//! In place of `functions.rs` in a program whose functions cannot be traced: a table without sleds.

use crate::functions::SLED_BYTES;

pub(crate) type Entry = [u8; 32];

pub(crate) fn table() -> &'static [Entry] {
    &[]
}

pub(crate) fn recorders() -> [usize; 3] {
    [0; 3]
}

pub(crate) fn code(_address: usize) -> [u8; SLED_BYTES] {
    [0; SLED_BYTES]
}
