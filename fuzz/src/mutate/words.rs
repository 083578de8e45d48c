//! Changes of tables: of records of one size, and of fields at known places.

use fastrand::Rng;

use super::{interesting, pick};

/// Changes one field of `(offset, width)`, where the bytes reach that far.
pub fn fields(bytes: &mut [u8], fields: &[(usize, usize)], rng: &mut Rng) {
    if fields.is_empty() {
        return;
    }
    let (at, width) = *pick(rng, fields);
    let Some(field) = bytes.get_mut(at..at.saturating_add(width)) else { return };
    let mut word = [0; 8];
    word[..width].copy_from_slice(field);
    let old = u64::from_le_bytes(word);
    let new = match rng.u32(..4) {
        0 => old.wrapping_add(rng.u64(..17)).wrapping_sub(8),
        1 => old ^ 1 << rng.u32(..8 * width as u32),
        2 => old.rotate_left(rng.u32(..64)),
        _ => interesting(rng),
    };
    field.copy_from_slice(&new.to_le_bytes()[..width]);
}

/// Changes a table of records of `size` bytes after a header of `head` bytes: a word of a record, or the number
/// and order of the records.
pub fn words(bytes: &mut Vec<u8>, head: usize, size: usize, rng: &mut Rng) {
    let count = bytes.len().saturating_sub(head) / size;
    if count == 0 {
        return;
    }
    let place = |rng: &mut Rng| head + size * rng.usize(..count);
    let (one, other) = (place(rng), place(rng));
    match rng.u32(..8) {
        0 => drop(bytes.drain(one..one + size)),
        1 => {
            let record = bytes[one..one + size].to_vec();
            bytes.splice(other..other, record);
        }
        2 => {
            for index in 0..size {
                bytes.swap(one + index, other + index);
            }
        }
        3 => {
            // A field copied from another record.
            let width = *pick(rng, &[1, 2, 4, 8]);
            let at = rng.usize(..size) / width * width;
            if at + width <= size {
                bytes.copy_within(other + at..other + at + width, one + at);
            }
        }
        _ => {
            let width = *pick(rng, &[1, 2, 2, 4, 8]);
            let at = rng.usize(..size) / width * width;
            fields(bytes, &[(one + at, width.min(size - at))], rng);
        }
    }
}

/// Gives one of the steps of `size` bytes behind a header of `head` bytes another kind, which is its first byte.
pub fn kinds(bytes: &mut [u8], head: usize, size: usize, count: u8, rng: &mut Rng) {
    let steps = bytes.len().saturating_sub(head) / size;
    if steps > 0 {
        bytes[head + size * rng.usize(..steps)] = rng.u8(..count);
    }
}
