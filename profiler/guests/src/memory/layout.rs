//! Which physical addresses a VMM's memory may have, where KVM does not show it.
//!
//! RAM starts at address 0 and, if it is large, has a hole below 4 GiB, whose start depends on the VMM and the
//! machine (QEMU 7.2: q35 at 2 or 2.75 GiB, pc at 3 or 3.5, microvm at 3) and may be configured. QEMU
//! itself reports it to the guest's firmware, in a table in its heap, which is read here.
//! Without the table, only the addresses that are the same on every machine are certain. The rest is proposed: the layouts that VMMs are known to
//! have. What the guest has in its memory decides between them (`evidence.rs`).

/// Up to here every machine has its RAM without a hole.
pub(super) const SAME_EVERYWHERE_BYTES: u64 = 2 << 30;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const FOUR_GIB: u64 = 4 * GIB;
/// The first MiB of a PC has devices and firmware from here on.
const DEVICES_START: u64 = 0xa_0000;
const DEVICES_END: u64 = 0x10_0000;
/// Where VMMs start the hole: Cloud Hypervisor (`MEM_32BIT_RESERVED_START` in arch/src/x86_64/layout.rs), Firecracker since it has PCI
/// (`MMIO32_MEM_START`), QEMU's microvm and pc; Firecracker before (`MEM_32BIT_GAP_SIZE` of 768 MiB), libkrun, crosvm and kvmtool
/// (`KVM_32BIT_GAP_SIZE`), which took it from each other; QEMU's q35; pc and q35 with little RAM.
const HOLES: [u64; 5] = [3 * GIB, 3328 * MIB, 2 * GIB, 2816 * MIB, 3584 * MIB];
/// Those of VMMs that have each range of RAM as a block of its own.
const HOLES_OF_RANGES: usize = 2;
/// Hotplugged memory starts above 4 GiB and all other, at a multiple of these: Cloud Hypervisor's virtio-mem and ACPI (`memory_manager.rs`), QEMU's
/// device memory (`pc_memory_init` in hw/i386/pc.c).
const HOTPLUG_ALIGNMENTS: [u64; 2] = [128 * MIB, GIB];
/// The most first blocks that are considered.
pub(super) const FIRST_BLOCKS_MAX: usize = 8;
/// The most blocks of a proposed layout besides the first one, and the most of them that were hotplugged.
const OTHERS_MAX: usize = 3;
const HOTPLUGGED_MAX: usize = 2;
/// Blocks that are no file and smaller are no RAM besides the first one: a VMM has the stacks of its threads.
const OTHER_BYTES_MIN: u64 = 16 * MIB;
/// The most layouts that are proposed for a first block.
const PROPOSALS_MAX: usize = 128;

/// Where machines of AArch64 have their RAM, which has no hole: QEMU's `virt` (`base_memmap` in hw/arm/virt.c).
const RAM_OF_AARCH64: u64 = GIB;

/// Bytes below and above the hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Split {
    pub(super) low: u64,
    pub(super) high: u64,
}

/// What decides the place of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// Its address in the VMM.
    pub(super) host: u64,
    pub(super) bytes: u64,
    pub(super) is_file: bool,
    /// The number of its file, and where it starts there.
    pub(super) file: (u64, u64),
}

/// A range of physical addresses, and where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) block: usize,
    pub(super) offset: u64,
}

/// A part of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    block: usize,
    offset: u64,
    bytes: u64,
}

/// RAM that starts with some block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    /// What is certain if this block is the first.
    pub(super) certain: Vec<Range>,
    /// This is all RAM, as far as is known.
    pub(super) is_whole: bool,
    /// All RAM as it may be, by several layouts that VMMs have.
    pub(super) proposals: Vec<Vec<Range>>,
}

/// The layouts that are possible with these blocks, of which the first are the likeliest: one for each block that may be the first.
pub(super) fn layouts(blocks: &[Shape], splits: &[Split]) -> Vec<Layout> {
    let count = blocks.len().min(FIRST_BLOCKS_MAX);
    let blocks = &blocks[..count];
    let first = (0..count).map(|first| of_first(blocks, first, splits));
    // RAM in one mapping, of which the part above the hole was mapped later: the kernel places it below, and joins both.
    let turned = (0..count).filter(|block| !blocks[*block].is_file).flat_map(|block| {
        HOLES[..HOLES_OF_RANGES].iter().filter_map(move |hole| {
            let rest = blocks[block].bytes.checked_sub(*hole).filter(|rest| *rest > 0)?;
            let (low, high) = (Part { block, offset: rest, bytes: *hole }, Part { block, offset: 0, bytes: rest });
            let proposals = vec![place(&[low, high], *hole, 0, GIB)];
            Some(Layout { certain: place(&[low], *hole, 0, GIB), is_whole: false, proposals })
        })
    });
    first.chain(turned).collect()
}

/// The same of a machine of AArch64, of which one block is the RAM.
pub(super) fn layouts_of_aarch64(blocks: &[Shape]) -> Vec<Layout> {
    let of_block = |(block, shape): (usize, &Shape)| Layout {
        certain: vec![Range { address: RAM_OF_AARCH64, bytes: shape.bytes, block, offset: 0 }],
        is_whole: true,
        proposals: Vec::new(),
    };
    blocks.iter().take(FIRST_BLOCKS_MAX).enumerate().map(of_block).collect()
}

fn whole(blocks: &[Shape], block: usize) -> Part {
    Part { block, offset: 0, bytes: blocks[block].bytes }
}

fn of_first(blocks: &[Shape], first: usize, splits: &[Split]) -> Layout {
    let (exact, split) = by_table(blocks, first, splits);
    // Nodes of a NUMA machine: the contents decide which is the first, so if there are two the rest belongs to the other.
    if let ([only], Some(split)) = (&exact[..], split) {
        let certain = place(only, split.low, 0, GIB);
        let proposals = orders(blocks, first).into_iter().flat_map(|others| {
            let is_new = move |other: &usize| only.iter().all(|part| part.block != *other);
            let added: Vec<Part> = others.into_iter().filter(is_new).map(|other| whole(blocks, other)).collect();
            (1..=added.len().min(HOTPLUGGED_MAX))
                .map(|count| place(&[&only[..], &added[..count]].concat(), split.low, count, GIB))
                .collect::<Vec<_>>()
        });
        return Layout { certain, is_whole: true, proposals: limited(proposals) };
    }
    let bytes = blocks[first].bytes;
    let certain_bytes = split.map_or(SAME_EVERYWHERE_BYTES, |split| split.low).min(bytes);
    let certain = place(&[Part { block: first, offset: 0, bytes: certain_bytes }], FOUR_GIB, 0, GIB);
    let proposals = match split {
        Some(split) => limited(exact.iter().map(|parts| place(parts, split.low, 0, GIB))),
        None => limited(proposed(blocks, first)),
    };
    let is_whole = split.is_none() && bytes <= SAME_EVERYWHERE_BYTES;
    Layout { certain, is_whole, proposals }
}

/// The blocks, in each possible order, that together have the size in QEMU's table, and what the table has.
fn by_table(blocks: &[Shape], first: usize, splits: &[Split]) -> (Vec<Vec<Part>>, Option<Split>) {
    // Other bytes of the heap may look like the table: if two disagree, neither is used.
    let split_of = |bytes: u64| {
        let mut fitting = splits.iter().filter(|split| split.low + split.high == bytes);
        let first = *fitting.next()?;
        fitting.all(|other| *other == first).then_some(first)
    };
    let others: Vec<usize> =
        (0..blocks.len()).filter(|other| *other != first && is_alike(&blocks[*other], &blocks[first])).collect();
    let mut sequences = vec![vec![whole(blocks, first)]];
    for _ in 0..=OTHERS_MAX {
        let total = |sequence: &[Part]| sequence.iter().fold(0u64, |sum, part| sum.saturating_add(part.bytes));
        if let Some(split) = sequences.iter().find_map(|sequence| split_of(total(sequence))) {
            let bytes = split.low + split.high;
            sequences.retain(|sequence| total(sequence) == bytes);
            return (sequences, Some(split));
        }
        let longer = |sequence: &Vec<Part>| {
            let left = others.iter().filter(|other| sequence.iter().all(|part| part.block != **other));
            left.map(|other| [&sequence[..], &[whole(blocks, *other)]].concat()).collect::<Vec<_>>()
        };
        sequences = sequences.iter().flat_map(longer).collect();
    }
    (Vec::new(), None)
}

fn is_alike(one: &Shape, other: &Shape) -> bool {
    one.is_file == other.is_file
}

/// The other blocks that may follow a first one, in the orders in which VMMs make them: by address upwards and downwards, by file.
fn orders(blocks: &[Shape], first: usize) -> Vec<Vec<usize>> {
    let by = |key: &dyn Fn(&Shape) -> (u64, u64)| {
        let start = key(&blocks[first]);
        let follows = |other: &usize| {
            let block = &blocks[*other];
            let is_large = block.is_file || block.bytes >= OTHER_BYTES_MIN;
            *other != first && is_large && is_alike(block, &blocks[first]) && key(block) > start
        };
        let mut order: Vec<usize> = (0..blocks.len()).filter(follows).collect();
        order.sort_by_key(|other| key(&blocks[*other]));
        order
    };
    let mut orders = vec![by(&|block| (block.host, 0)), by(&|block| (u64::MAX - block.host, 0))];
    if blocks[first].is_file {
        orders.push(by(&|block| block.file));
    }
    orders
}

fn proposed(blocks: &[Shape], first: usize) -> impl Iterator<Item = Vec<Range>> {
    let alone =
        HOLES.iter().filter(move |hole| blocks[first].bytes > **hole || blocks[first].bytes > SAME_EVERYWHERE_BYTES);
    let alone = alone.map(move |hole| place(&[whole(blocks, first)], *hole, 0, GIB));
    let several = orders(blocks, first).into_iter().flat_map(move |others| {
        let mut found = Vec::new();
        for count in 1..=others.len().min(OTHERS_MAX) {
            let parts: Vec<Part> = [first].iter().chain(&others[..count]).map(|block| whole(blocks, *block)).collect();
            for hole in &HOLES[..HOLES_OF_RANGES] {
                found.push(place(&parts, *hole, 0, GIB));
                for hotplugged in 1..=count.min(HOTPLUGGED_MAX) {
                    found.extend(HOTPLUG_ALIGNMENTS.iter().map(|to| place(&parts, *hole, hotplugged, *to)));
                }
            }
        }
        found
    });
    alone.chain(several)
}

/// Each once, and not more than are worth it.
fn limited(proposals: impl IntoIterator<Item = Vec<Range>>) -> Vec<Vec<Range>> {
    let mut kept: Vec<Vec<Range>> = Vec::new();
    for proposal in proposals {
        if kept.len() < PROPOSALS_MAX && !kept.contains(&proposal) {
            kept.push(proposal);
        }
    }
    kept
}

/// Places parts one after the other from address 0 on, with a hole up to 4 GiB. The last ones were hotplugged: each starts above 4 GiB,
/// at the next multiple of `alignment`.
fn place(parts: &[Part], hole: u64, hotplugged: usize, alignment: u64) -> Vec<Range> {
    let (mut ranges, mut next) = (Vec::new(), 0u64);
    for (index, part) in parts.iter().enumerate() {
        if index + hotplugged >= parts.len() {
            next = next.max(FOUR_GIB).next_multiple_of(alignment);
        }
        let low = part.bytes.min(hole.saturating_sub(next));
        if low > 0 {
            ranges.push(Range { address: next, bytes: low, block: part.block, offset: part.offset });
            next += low;
        }
        if low < part.bytes {
            next = next.max(FOUR_GIB);
            let (bytes, offset) = (part.bytes - low, part.offset + low);
            ranges.push(Range { address: next, bytes, block: part.block, offset });
            next = next.saturating_add(bytes);
        }
    }
    ranges.into_iter().flat_map(without_devices).collect()
}

/// The parts of a range below and above the devices of a PC.
fn without_devices(range: Range) -> impl Iterator<Item = Range> {
    let end = range.address + range.bytes;
    let cut = move |from: u64, to: u64| {
        let (from, to) = (from.max(range.address), to.min(end));
        let offset = range.offset + from.saturating_sub(range.address);
        (from < to).then(|| Range { address: from, bytes: to - from, offset, ..range })
    };
    [cut(0, DEVICES_START), cut(DEVICES_END, u64::MAX)].into_iter().flatten()
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

    /// Files, each at a lower address than the one before and with the next number.
    fn files(sizes: &[u64]) -> Vec<Shape> {
        let shape = |(index, bytes): (usize, &u64)| {
            let index = index as u64;
            Shape { host: (100 - index) << 40, bytes: *bytes, is_file: true, file: (7 + index, 0) }
        };
        sizes.iter().enumerate().map(shape).collect()
    }

    fn anonymous(blocks: &[(u64, u64)]) -> Vec<Shape> {
        blocks.iter().map(|(host, bytes)| Shape { host: *host, bytes: *bytes, is_file: false, file: (0, 0) }).collect()
    }

    type Tuple = (u64, u64, usize, u64);

    fn tuples(ranges: &[Range]) -> Vec<Tuple> {
        ranges.iter().map(|range| (range.address, range.bytes, range.block, range.offset)).collect()
    }

    const LOW: Tuple = (0, 0xa_0000, 0, 0);

    fn proposes(layout: &Layout, expected: &[Tuple]) -> bool {
        layout.proposals.iter().any(|proposal| tuples(proposal) == expected)
    }

    #[test]
    fn only_what_is_the_same_everywhere_is_certain() {
        let small = &layouts(&files(&[32 * MIB]), &[])[0];
        assert_eq!(tuples(&small.certain), [LOW, (MIB, 31 * MIB, 0, MIB)]);
        assert!(small.is_whole && small.proposals.is_empty());
        let large = &layouts(&files(&[8 * GIB]), &[])[0];
        assert_eq!(tuples(&large.certain), [LOW, (MIB, 2 * GIB - MIB, 0, MIB)]);
        assert!(!large.is_whole);
        assert!(proposes(large, &[LOW, (MIB, 3 * GIB - MIB, 0, MIB), (4 * GIB, 5 * GIB, 0, 3 * GIB)]));
        assert!(proposes(large, &[LOW, (MIB, 3328 * MIB - MIB, 0, MIB), (4 * GIB, 4864 * MIB, 0, 3328 * MIB)]));
    }

    #[test]
    fn a_block_that_the_table_describes() {
        let all = layouts(&files(&[8 * GIB]), &[Split { low: 3 * GIB, high: 5 * GIB }]);
        assert_eq!(tuples(&all[0].certain), [LOW, (MIB, 3 * GIB - MIB, 0, MIB), (4 * GIB, 5 * GIB, 0, 3 * GIB)]);
        assert!(all[0].is_whole && all[0].proposals.is_empty());
        // Tables that disagree are not used.
        let two = [Split { low: 3 * GIB, high: 5 * GIB }, Split { low: 2 * GIB, high: 6 * GIB }];
        assert!(!layouts(&files(&[8 * GIB]), &two)[0].is_whole);
    }

    #[test]
    fn two_nodes_follow_each_other() {
        let all = layouts(&files(&[GIB, 3 * GIB]), &[Split { low: 3 * GIB, high: GIB }]);
        let expected = [LOW, (MIB, GIB - MIB, 0, MIB), (GIB, 2 * GIB, 1, 0), (4 * GIB, GIB, 1, 2 * GIB)];
        assert_eq!(tuples(&all[0].certain), expected);
        assert!(all[0].is_whole && all[1].is_whole);
    }

    #[test]
    fn three_nodes_in_each_order() {
        let all = layouts(&files(&[GIB, 3 * GIB, 2 * GIB]), &[Split { low: 2 * GIB, high: 4 * GIB }]);
        let first = &all[0];
        assert_eq!(tuples(&first.certain), [LOW, (MIB, GIB - MIB, 0, MIB)]);
        assert!(!first.is_whole && first.proposals.len() == 2);
        let start = [LOW, (MIB, GIB - MIB, 0, MIB)];
        let one = [(GIB, GIB, 1, 0), (4 * GIB, 2 * GIB, 1, GIB), (6 * GIB, 2 * GIB, 2, 0)];
        let other = [(GIB, GIB, 2, 0), (4 * GIB, GIB, 2, GIB), (5 * GIB, 3 * GIB, 1, 0)];
        assert!(proposes(first, &[&start[..], &one].concat()) && proposes(first, &[&start[..], &other].concat()));
    }

    #[test]
    fn memory_that_qemu_got_while_it_ran() {
        let all = layouts(&files(&[5 * GIB, GIB]), &[Split { low: 3 * GIB, high: 2 * GIB }]);
        let base = [LOW, (MIB, 3 * GIB - MIB, 0, MIB), (4 * GIB, 2 * GIB, 0, 3 * GIB)];
        assert_eq!((tuples(&all[0].certain), all[0].is_whole), (base.to_vec(), true));
        assert!(proposes(&all[0], &[&base[..], &[(6 * GIB, GIB, 1, 0)]].concat()));
        let all = layouts(&files(&[64 * MIB, GIB, GIB]), &[Split { low: 64 * MIB, high: 0 }]);
        let base = [LOW, (MIB, 63 * MIB, 0, MIB), (4 * GIB, GIB, 1, 0), (5 * GIB, GIB, 2, 0)];
        assert!(proposes(&all[0], &base));
    }

    #[test]
    fn ranges_that_are_blocks_of_their_own() {
        // Cloud Hypervisor: zones, one of which was added while it ran.
        let all = layouts(&files(&[16 * MIB, 48 * MIB, 128 * MIB]), &[]);
        let zones = [LOW, (MIB, 15 * MIB, 0, MIB), (16 * MIB, 48 * MIB, 1, 0), (4 * GIB, 128 * MIB, 2, 0)];
        assert!(proposes(&all[0], &zones));
        assert_eq!((tuples(&all[0].certain), all[0].is_whole), (zones[..2].to_vec(), true));
        // libkrun and kvmtool: the part above the hole is at the higher address, or at the lower one.
        for blocks in [[(1 << 40, 3328 * MIB), (2 << 40, GIB)], [(2 << 40, 3328 * MIB), (1 << 40, GIB)]] {
            let all = layouts(&anonymous(&blocks), &[]);
            assert!(proposes(&all[0], &[LOW, (MIB, 3327 * MIB, 0, MIB), (4 * GIB, GIB, 1, 0)]));
        }
        // A stack of a thread is no RAM.
        let all = layouts(&anonymous(&[(1 << 40, 64 * MIB), (2 << 40, 8 * MIB)]), &[]);
        assert!(all[0].proposals.is_empty());
    }

    #[test]
    fn ranges_that_the_kernel_has_joined() {
        let all = layouts(&anonymous(&[(1 << 40, 5 * GIB)]), &[]);
        let expected = [(0, 0xa_0000, 0, 2 * GIB), (MIB, 3 * GIB - MIB, 0, 2 * GIB + MIB), (4 * GIB, 2 * GIB, 0, 0)];
        let turned = all.iter().find(|layout| proposes(layout, &expected)).unwrap();
        assert_eq!(tuples(&turned.certain), expected[..2]);
    }

    #[test]
    fn no_layout_has_an_address_or_a_byte_twice() {
        let sizes = [[GIB, 3 * GIB, 2 * GIB, 5 * GIB], [16 * MIB, 16 * MIB, 4 * GIB, 64 * MIB]];
        for sizes in sizes {
            for blocks in [files(&sizes), anonymous(&[(1 << 40, sizes[0]), (5 << 40, sizes[1]), (3 << 40, sizes[2])])] {
                let all = layouts(&blocks, &[]);
                for ranges in all.iter().flat_map(|layout| layout.proposals.iter().chain([&layout.certain])) {
                    let mut by_block = ranges.clone();
                    by_block.sort_by_key(|range| (range.block, range.offset));
                    assert!(
                        ranges.windows(2).all(|pair| pair[0].address + pair[0].bytes <= pair[1].address),
                        "{ranges:x?}"
                    );
                    let is_apart = |pair: &[Range]| {
                        pair[0].block != pair[1].block || pair[0].offset + pair[0].bytes <= pair[1].offset
                    };
                    assert!(by_block.windows(2).all(is_apart), "{ranges:x?}");
                    let is_inside = |range: &Range| range.offset + range.bytes <= blocks[range.block].bytes;
                    assert!(ranges.iter().all(is_inside), "{ranges:x?}");
                }
            }
        }
    }
}
