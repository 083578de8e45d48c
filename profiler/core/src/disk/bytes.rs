//! Numbers in blocks of a disk.

use crate::elf::ReadAt;

/// The bytes at an offset of a disk; `None` if they are not all there.
pub(super) fn read<const BYTES: usize>(disk: &dyn ReadAt, offset: u64) -> Option<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    disk.read_at(offset, &mut bytes).then_some(bytes)
}

/// A little-endian number of two bytes.
pub(super) fn short(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The same of four bytes.
pub(super) fn half(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The same of eight bytes.
pub(super) fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}
