//! Changes of bytes of any kind.

use fastrand::Rng;

use super::{pick, range};

/// No input grows beyond this by insertion.
const BYTES_MAX: usize = 4 << 20;

/// A boundary value, or a neighbour of one.
pub fn interesting(rng: &mut Rng) -> u64 {
    let edge = match rng.u32(..6) {
        0 => 0,
        1 => u64::MAX,
        2 => 1 << rng.u32(..64),
        3 => return rng.u64(..256),
        4 => u64::MAX << rng.u32(..64),
        _ => return rng.u64(..),
    };
    edge.wrapping_add(rng.u64(..5)).wrapping_sub(2)
}

/// Changes some bytes, regardless of their format.
pub fn plain(bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
    if bytes.is_empty() {
        bytes.extend((0..rng.usize(1..32)).map(|_| rng.u8(..)));
        return;
    }
    match rng.u32(..9) {
        0 | 1 => {
            let at = rng.usize(..bytes.len());
            bytes[at] ^= 1 << rng.u32(..8);
        }
        2 => {
            let at = rng.usize(..bytes.len());
            bytes[at] = rng.u8(..);
        }
        3 => {
            // An integer of 1, 2, 4 or 8 bytes in either order.
            let width = (1usize << rng.u32(..4)).min(bytes.len());
            let at = rng.usize(..=bytes.len() - width);
            let value = interesting(rng).to_le_bytes();
            bytes[at..at + width].copy_from_slice(&value[..width]);
            if rng.bool() {
                bytes[at..at + width].reverse();
            }
        }
        4 => {
            let range = range(rng, bytes.len());
            bytes.drain(range);
        }
        5 if bytes.len() < BYTES_MAX => {
            let range = range(rng, bytes.len());
            let again = bytes[range.clone()].to_vec();
            let at = if rng.bool() { range.end } else { rng.usize(..=bytes.len()) };
            bytes.splice(at..at, again);
        }
        6 if bytes.len() < BYTES_MAX => {
            let other = pick(rng, corpus);
            let taken = other[range(rng, other.len())].to_vec();
            let at = range(rng, bytes.len());
            bytes.splice(at, taken);
        }
        7 => bytes.truncate(rng.usize(..=bytes.len())),
        _ => {
            let range = range(rng, bytes.len());
            let value = *pick(rng, &[0, 0xff, 0x80, 0x7f, b' ', rng.clone().u8(..)]);
            bytes[range].fill(value);
        }
    }
}
