//! The bytes of one direction: a ring that grows from nothing to its limit.

use alloc::vec::Vec;
use core::fmt;
use glass_api::zeroed_bytes;

/// The least that is allocated.
const BYTES_MIN: usize = 4096;
/// It grows by this factor, so that a byte is copied by growing a third of a time on average.
const GROWTH: usize = 4;

/// A ring of bytes. Behind its bytes there may be others that arrived out of order.
pub struct Ring {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
    limit: usize,
}

/// Its sizes: its bytes are the user's.
impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} of {} bytes, {} allocated", self.len, self.limit, self.bytes.len())
    }
}

impl Ring {
    /// An empty one for up to `limit` bytes.
    pub fn new(limit: usize) -> Ring {
        Ring { bytes: Vec::new(), start: 0, len: 0, limit }
    }

    /// Bytes that it has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes that it can have.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// It can have so many bytes more.
    pub fn lengthen(&mut self, bytes: usize) {
        self.limit += bytes;
    }

    /// Bytes that still fit.
    pub fn space(&self) -> usize {
        self.limit - self.len
    }

    /// Memory that it uses.
    pub fn allocated(&self) -> usize {
        self.bytes.len()
    }

    /// Gives its memory back if it is empty.
    pub fn release(&mut self) {
        if self.len == 0 {
            (self.bytes, self.start) = (Vec::new(), 0);
        }
    }

    /// Makes room for `total` bytes, at most its limit. Returns whether there was memory.
    fn reserve(&mut self, total: usize) -> bool {
        if total <= self.bytes.len() {
            return true;
        }
        let wanted = total.max(self.bytes.len() * GROWTH).max(BYTES_MIN).min(self.limit);
        let Ok(mut bytes) = zeroed_bytes(wanted) else { return false };
        let (first, second) = (&self.bytes[self.start..], &self.bytes[..self.start]);
        bytes[..first.len()].copy_from_slice(first);
        bytes[first.len()..self.bytes.len()].copy_from_slice(second);
        (self.bytes, self.start) = (bytes, 0);
        true
    }

    /// The place of the byte at `offset` from the start.
    fn place(&self, offset: usize) -> usize {
        let place = self.start + offset;
        if place < self.bytes.len() { place } else { place - self.bytes.len() }
    }

    /// Puts `data` at `offset` from the start; that can be behind the bytes that it has, which does not become longer. Returns whether
    /// there was room and memory.
    pub fn write_at(&mut self, offset: usize, data: &[u8]) -> bool {
        let end = offset + data.len();
        if end > self.limit || !self.reserve(end) {
            return false;
        }
        if data.is_empty() {
            return true;
        }
        let place = self.place(offset);
        let first = data.len().min(self.bytes.len() - place);
        self.bytes[place..place + first].copy_from_slice(&data[..first]);
        self.bytes[..data.len() - first].copy_from_slice(&data[first..]);
        true
    }

    /// The next `count` bytes behind its end belong to it now.
    pub fn extend(&mut self, count: usize) {
        self.len += count;
        debug_assert!(self.len <= self.bytes.len());
    }

    /// Appends what fits, and returns how much that was.
    pub fn write(&mut self, data: &[u8]) -> usize {
        let count = data.len().min(self.space());
        if count == 0 || !self.write_at(self.len, &data[..count]) {
            return 0;
        }
        self.extend(count);
        count
    }

    /// Space for up to `max` bytes behind the end, in one piece, which may be shorter; [`Ring::extend`] makes it part of the ring.
    pub fn free_piece(&mut self, max: usize) -> &mut [u8] {
        let count = max.min(self.space());
        if count == 0 || !self.reserve(self.len + count) {
            return &mut [];
        }
        let place = self.place(self.len);
        let count = count.min(self.bytes.len() - place);
        &mut self.bytes[place..place + count]
    }

    /// `count` bytes from `offset` on, in two pieces.
    pub fn pieces(&self, offset: usize, count: usize) -> [&[u8]; 2] {
        if count == 0 {
            return [&[], &[]];
        }
        debug_assert!(offset + count <= self.len);
        let place = self.place(offset);
        let first = count.min(self.bytes.len() - place);
        [&self.bytes[place..place + first], &self.bytes[..count - first]]
    }

    /// Moves bytes from its start into `buf`, and returns how many.
    pub fn read(&mut self, buf: &mut [u8]) -> usize {
        let count = buf.len().min(self.len);
        let [first, second] = self.pieces(0, count);
        buf[..first.len()].copy_from_slice(first);
        buf[first.len()..count].copy_from_slice(second);
        self.remove(count);
        count
    }

    /// Removes `count` bytes from its start.
    pub fn remove(&mut self, count: usize) {
        debug_assert!(count <= self.len);
        if count > 0 {
            self.start = self.place(count);
            self.len -= count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    #[test]
    fn it_grows_around_its_end_and_keeps_what_is_behind_its_bytes() {
        let mut ring = Ring::new(20_000);
        assert_eq!((ring.write(&[1; 4000]), ring.allocated()), (4000, 4096));
        ring.remove(3000);
        assert_eq!(ring.write(&[2; 2000]), 2000);
        // 500 bytes that arrived too early, around the end.
        assert!(ring.write_at(3500, &[3; 500]));
        assert_eq!(ring.allocated(), 4096);
        assert!(ring.write_at(5000, &[4; 10]));
        assert_eq!((ring.allocated(), ring.len()), (16_384, 3000));
        assert!(ring.write_at(3000, &[9; 500]) && ring.write_at(4000, &[9; 1000]));
        ring.extend(2010);
        let mut found = vec![0; 6000];
        assert_eq!(ring.read(&mut found), 5010);
        let expected = [(1, 1000), (2, 2000), (9, 500), (3, 500), (9, 1000), (4, 10)];
        let expected: Vec<u8> = expected.iter().flat_map(|(byte, count)| vec![*byte; *count]).collect();
        assert_eq!(found[..5010], expected);
        ring.release();
        assert_eq!(ring.allocated(), 0);
    }

    #[test]
    fn it_is_never_longer_than_its_limit() {
        let mut ring = Ring::new(10);
        assert_eq!((ring.write(&[1; 30]), ring.write(&[1]), ring.allocated()), (10, 0, 10));
        assert!(!ring.write_at(10, &[1]) && ring.free_piece(5).is_empty());
        ring.remove(4);
        assert_eq!((ring.free_piece(9).len(), ring.space()), (4, 4));
        ring.release();
        assert_eq!(ring.allocated(), 10, "it is not empty");
        ring.lengthen(5000);
        assert_eq!((ring.space(), ring.write(&[7; 6000]), ring.len(), ring.allocated()), (5004, 5004, 5010, 5010));
        let mut found = vec![0; 6];
        assert_eq!((ring.read(&mut found), &found[..]), (6, &[1; 6][..]));
    }
}
