//! Changes of ELF files: headers, tables, and contents of sections that are parsed.

use fastrand::Rng;

use super::{fields, pick, plain, words};

/// Offset and width of the header's fields that contain locations.
const HEADER: [(usize, usize); 12] =
    [(4, 1), (5, 1), (16, 2), (18, 2), (24, 8), (32, 8), (40, 8), (54, 2), (56, 2), (58, 2), (60, 2), (62, 2)];
/// The same for the header of a section and of a segment.
const SECTION: [(usize, usize); 10] =
    [(0, 4), (4, 4), (8, 8), (16, 8), (24, 8), (32, 8), (40, 4), (44, 4), (48, 8), (56, 8)];
const SEGMENT: [(usize, usize); 8] = [(0, 4), (4, 4), (8, 8), (16, 8), (24, 8), (32, 8), (40, 8), (48, 8)];

fn number(bytes: &[u8], at: usize, width: usize) -> Option<usize> {
    let mut word = [0; 8];
    word[..width].copy_from_slice(bytes.get(at..at.checked_add(width)?)?);
    usize::try_from(u64::from_le_bytes(word)).ok()
}

/// The location of a table, and its number of entries.
fn table(bytes: &[u8], offset_at: usize, count_at: usize) -> Option<(usize, usize)> {
    Some((number(bytes, offset_at, 8)?, number(bytes, count_at, 2)?)).filter(|(_, count)| *count > 0)
}

fn entry_fields(start: usize, fields: &[(usize, usize)]) -> Vec<(usize, usize)> {
    fields.iter().map(|(at, width)| (start.saturating_add(*at), *width)).collect()
}

/// Changes an ELF file by its structure, or some bytes of it.
pub fn elf(bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
    let sections = table(bytes, 40, 60);
    let segments = table(bytes, 32, 56);
    match (rng.u32(..16), sections, segments) {
        (0, ..) => fields(bytes, &HEADER, rng),
        (1 | 2, _, Some((start, count))) => {
            let start = start.saturating_add(56 * rng.usize(..count));
            fields(bytes, &entry_fields(start, &SEGMENT), rng);
        }
        (3..=5, Some((start, count)), _) => {
            let start = start.saturating_add(64 * rng.usize(..count));
            fields(bytes, &entry_fields(start, &SECTION), rng);
        }
        (6..=14, Some((start, count)), _) => {
            let header = start.saturating_add(64 * rng.usize(..count));
            let place = |at: usize| number(bytes, header.checked_add(at)?, 8);
            if let (Some(offset), Some(length)) = (place(24), place(32))
                && let Some(end) = offset.checked_add(length)
                && let Some(inside) = bytes.get(offset..end)
                && length > 0
            {
                // The section keeps its length, so that everything after it stays in place.
                let mut inside = inside.to_vec();
                match rng.u32(..4) {
                    0 => words(&mut inside, 0, *pick(rng, &[4, 8, 16, 24, 32]), rng),
                    _ => plain(&mut inside, corpus, rng),
                }
                inside.resize(length, 0);
                bytes[offset..end].copy_from_slice(&inside);
            }
        }
        _ => plain(bytes, corpus, rng),
    }
}
