//! Maps physical addresses to offsets in a VMM's RAM.
//!
//! RAM starts at address 0 and, if it is large, has a hole below 4 GiB, whose start depends on the
//! machine (QEMU 7.2: q35 at 2 or 2.75 GiB, pc at 3 or 3.5, microvm at 3) and may be configured. QEMU
//! itself reports it to the guest's firmware, in a table in its heap, which is read here.
//! Without the table, only the addresses that are the same on every machine are read.

/// Up to here every machine has its RAM without a hole.
pub(super) const SAME_EVERYWHERE_BYTES: u64 = 2 << 30;
const FOUR_GIB: u64 = 4 << 30;
/// The first MiB of a PC has devices and firmware from here on.
const DEVICES_START: u64 = 0xa_0000;
const DEVICES_END: u64 = 0x10_0000;

/// Bytes below and above the hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Split {
    pub(super) low: u64,
    pub(super) high: u64,
}

/// A range of physical addresses and its offset in RAM, not counting the hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) offset: u64,
}

/// The RAM of a machine with this split.
pub(super) fn ranges(split: Split) -> Vec<Range> {
    let all = [
        Range { address: 0, bytes: split.low.min(DEVICES_START), offset: 0 },
        Range { address: DEVICES_END, bytes: split.low.saturating_sub(DEVICES_END), offset: DEVICES_END },
        Range { address: FOUR_GIB, bytes: split.high, offset: split.low },
    ];
    all.into_iter().filter(|range| range.bytes > 0).collect()
}

/// Searches for the firmware's table in QEMU's heap: entries of 20 bytes, address, length and type, of
/// which 1 is RAM; the first is the RAM below the hole, the second that above it. Other bytes may look
/// the same, so all finds are returned; the one whose sum is the size of RAM is used.
pub(super) fn find_splits(heap: &[u8]) -> Vec<Split> {
    const ENTRY_BYTES: usize = 20;
    const SPLITS_MAX: usize = 10_000;
    let entry = |at: usize| {
        let bytes = heap.get(at..at + ENTRY_BYTES)?;
        let word = |from: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[from + index]));
        Some((word(0), word(8), &bytes[16..]))
    };
    // Allocations are aligned to 8 bytes, entries that follow the first to 4.
    let splits = (0..heap.len()).step_by(4).filter_map(|at| {
        let (0, low, [1, 0, 0, 0]) = entry(at)? else { return None };
        if !(DEVICES_END..FOUR_GIB).contains(&low) || low % 4096 != 0 {
            return None;
        }
        let high = match entry(at + ENTRY_BYTES) {
            Some((FOUR_GIB, high, [1, 0, 0, 0])) if high < u64::MAX - FOUR_GIB => high,
            _ => 0,
        };
        Some(Split { low, high })
    });
    splits.take(SPLITS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(entries: &[(u64, u64, u32)]) -> Vec<u8> {
        let mut bytes = vec![0x55; 12];
        for (address, length, kind) in entries {
            bytes.extend(address.to_le_bytes());
            bytes.extend(length.to_le_bytes());
            bytes.extend(kind.to_le_bytes());
        }
        bytes.resize(bytes.len() + 24, 0);
        bytes
    }

    #[test]
    fn the_table_of_the_firmware_says_where_the_hole_is() {
        let bytes = table(&[(0, 0x8000_0000, 1), (FOUR_GIB, 3 << 30, 1), (0xfeff_c000, 0x4000, 2)]);
        assert_eq!(find_splits(&bytes), [Split { low: 2 << 30, high: 3 << 30 }]);
        let small = table(&[(0, 32 << 20, 1), (0xfeff_c000, 0x4000, 2)]);
        assert_eq!(find_splits(&small), [Split { low: 32 << 20, high: 0 }]);
        for other in [table(&[(0, 32 << 20, 2)]), table(&[(4096, 32 << 20, 1)]), bytes[..30].to_vec(), Vec::new()] {
            assert_eq!(find_splits(&other), []);
        }
        let wild = table(&[(0, 32 << 20, 1), (FOUR_GIB, u64::MAX, 1)]);
        assert_eq!(find_splits(&wild), [Split { low: 32 << 20, high: 0 }]);
    }

    #[test]
    fn ranges_leave_out_what_is_no_ram() {
        let ranges = ranges(Split { low: 2 << 30, high: 1 << 30 });
        let as_tuples: Vec<_> = ranges.iter().map(|range| (range.address, range.bytes, range.offset)).collect();
        assert_eq!(
            as_tuples,
            [(0, 0xa_0000, 0), (0x10_0000, (2 << 30) - 0x10_0000, 0x10_0000), (4 << 30, 1 << 30, 2 << 30)]
        );
    }
}
