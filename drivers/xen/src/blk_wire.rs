//! Requests and responses of disks as x86-64 domains have them (`xen/include/public/io/blkif.h`).

use alloc::vec::Vec;

/// Length of an entry of the ring: the longest request.
pub const ENTRY_BYTES: usize = 112;
/// Length of a response.
pub const RESPONSE_BYTES: usize = 16;
/// Segments that a request itself has room for, and a page of an indirect one.
pub const SEGMENTS: usize = 11;
pub const INDIRECT_SEGMENTS: usize = 512;
/// Length of a segment in either.
pub const SEGMENT_BYTES: usize = 8;
/// Offsets and sizes are in sectors of this size, whatever the disk's are.
pub const SECTOR_BYTES: usize = 512;
/// The status of success, and that of a request that the back end does not have.
pub const STATUS_OK: i16 = 0;
pub const STATUS_UNSUPPORTED: i16 = -2;

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Operation {
    Read = 0,
    Write = 1,
    Barrier = 2,
    Flush = 3,
}

/// Its segments are in a page of their own.
const INDIRECT: u8 = 6;

/// An answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Response {
    pub id: u64,
    pub status: i16,
}

impl Response {
    pub fn decode(bytes: &[u8; RESPONSE_BYTES]) -> Response {
        let [a, b, c, d, e, f, g, h, _operation, _, low, high, ..] = *bytes;
        Response { id: u64::from_le_bytes([a, b, c, d, e, f, g, h]), status: i16::from_le_bytes([low, high]) }
    }
}

/// Where a request is on the disk, in sectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub id: u64,
    pub sector: u64,
}

/// The part of a page that a segment is: from its first sector, whole pages and then the rest of `bytes`.
fn segment(reference: u32, bytes: usize) -> [u8; SEGMENT_BYTES] {
    let [a, b, c, d] = reference.to_le_bytes();
    [a, b, c, d, 0, (bytes / SECTOR_BYTES - 1) as u8, 0, 0]
}

/// The segments of `bytes` bytes in the pages with these grants.
pub fn segments(references: impl Iterator<Item = u32>, bytes: usize) -> Vec<u8> {
    let pages = (0..bytes).step_by(crate::PAGE_BYTES).zip(references);
    pages.flat_map(|(start, reference)| segment(reference, (bytes - start).min(crate::PAGE_BYTES))).collect()
}

/// A request that has its segments, at most [`SEGMENTS`], itself.
pub fn direct(operation: Operation, place: Place, segments: &[u8]) -> [u8; ENTRY_BYTES] {
    let mut request = [0; ENTRY_BYTES];
    request[0] = operation as u8;
    request[1] = (segments.len() / SEGMENT_BYTES) as u8;
    request[8..16].copy_from_slice(&place.id.to_le_bytes());
    request[16..24].copy_from_slice(&place.sector.to_le_bytes());
    request[24..24 + segments.len()].copy_from_slice(segments);
    request
}

/// A request whose `count` segments are in the page with the grant `page`.
pub fn indirect(operation: Operation, place: Place, count: usize, page: u32) -> [u8; ENTRY_BYTES] {
    let mut request = [0; ENTRY_BYTES];
    request[0] = INDIRECT;
    request[1] = operation as u8;
    request[2..4].copy_from_slice(&(count as u16).to_le_bytes());
    request[8..16].copy_from_slice(&place.id.to_le_bytes());
    request[16..24].copy_from_slice(&place.sector.to_le_bytes());
    request[28..32].copy_from_slice(&page.to_le_bytes());
    request
}
