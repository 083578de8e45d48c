//! Memory that no core's heap has yet, and the owner of each part of what the heaps have.
//!
//! Pure: it moves numbers. `heap.rs` has the one pool of a machine.

use crate::machine::Ram;

/// Memory is handed out in whole parts of this size, so that a table of bytes has their owners.
pub const PART_BYTES: u64 = 1 << 20;
/// Ranges of memory; what does not fit in is the boot core's at once.
const RANGES_MAX: usize = 32;

/// Ranges of whole parts.
pub struct Pool {
    ranges: [Ram; RANGES_MAX],
    count: usize,
}

impl Pool {
    /// Without memory.
    pub const fn new() -> Pool {
        Pool { ranges: [(0, 0); RANGES_MAX], count: 0 }
    }

    /// Adds the whole parts of `ram`, and returns what is left at its two ends.
    pub fn add(&mut self, (start, end): Ram) -> [Ram; 2] {
        let (first, last) = (start.next_multiple_of(PART_BYTES), end / PART_BYTES * PART_BYTES);
        if first >= last || self.count == RANGES_MAX {
            return [(start, end), (end, end)];
        }
        self.ranges[self.count] = (first, last);
        self.count += 1;
        [(start, first), (last, end)]
    }

    /// Bytes that it has.
    pub fn left_bytes(&self) -> u64 {
        self.ranges[..self.count].iter().map(|(start, end)| end - start).sum()
    }

    /// Takes at least `bytes_min` bytes in a row, and `bytes` if there are so many; the lowest that there are.
    pub fn take(&mut self, bytes_min: u64, bytes: u64) -> Option<Ram> {
        let range =
            self.ranges[..self.count].iter_mut().find(|(start, end)| end - start >= bytes_min && start < end)?;
        let (start, end) = *range;
        let bytes = bytes.max(bytes_min).checked_next_multiple_of(PART_BYTES)?.min(end - start);
        range.0 += bytes;
        Some((start, start + bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_parts_are_handed_out_and_the_ends_come_back() {
        let mut pool = Pool::new();
        assert_eq!(pool.add((0x28_1000, 0x1_0000_0000 - 4096)), [(0x28_1000, 0x30_0000), (0xfff0_0000, 0xffff_f000)]);
        assert_eq!(
            pool.add((0x1_0010_0800, 0x1_0010_1000)),
            [(0x1_0010_0800, 0x1_0010_1000), (0x1_0010_1000, 0x1_0010_1000)]
        );
        assert_eq!(pool.add((4 << 30, 5 << 30)), [(4 << 30, 4 << 30), (5 << 30, 5 << 30)]);
        assert_eq!(pool.left_bytes(), (0xfff0_0000 - 0x30_0000) + (1 << 30));
        assert_eq!(pool.take(1, 3 << 20), Some((0x30_0000, 0x60_0000)));
        assert_eq!(pool.take(100, 0), Some((0x60_0000, 0x70_0000)));
        // What no range has in a row is not there; the rest of one is.
        assert_eq!(pool.take(5 << 30, 0), None);
        assert_eq!(pool.take(1, u64::MAX >> 1), Some((0x70_0000, 0xfff0_0000)));
        assert_eq!(pool.take((1 << 30) - 5, 1 << 21), Some((4 << 30, 5 << 30)));
        assert_eq!(pool.take(1, 1), None);
        assert_eq!(pool.left_bytes(), 0);
        assert_eq!(pool.take(u64::MAX, u64::MAX), None);
    }
}
