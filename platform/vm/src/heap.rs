//! The global allocator: each core allocates from a heap of its own.

use crate::cores::this_core;
use crate::pvh::Ram;
use core::alloc::{GlobalAlloc, Layout};

/// RAM above this is not used yet: boot.s maps no more while tables are built.
const RAM_END_MAX: u64 = 1 << 32;

/// The allocator that `entry!` registers.
pub struct Heap;

// SAFETY: talc's cell implements the contract for one core; memory is freed on the core that
// allocated it as long as there is one core.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract.
        unsafe { this_core().heap.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract.
        unsafe { this_core().heap.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller keeps the contract.
        unsafe { this_core().heap.realloc(pointer, layout, new_size) }
    }
}

/// The RAM after the image and below 4 GiB, by ranges.
pub fn usable(ram: &[Ram], image_end: u64) -> impl Iterator<Item = Ram> + Clone {
    ram.iter().map(move |&(start, end)| (start.max(image_end), end.min(RAM_END_MAX))).filter(|(start, end)| start < end)
}

/// `ram` without the range `taken`, which lies inside of one of its ranges or nowhere.
pub fn without(ram: impl Iterator<Item = Ram>, taken: Ram) -> impl Iterator<Item = Ram> {
    let around = move |(start, end): Ram| match start <= taken.0 && taken.1 <= end {
        true => [(start, taken.0), (taken.1, end)],
        false => [(start, end), (end, end)],
    };
    ram.flat_map(around).filter(|(start, end)| start < end)
}

/// Gives `ram` to this core's heap.
///
/// # Safety
/// The ranges are mapped, writable RAM that nothing else uses.
pub unsafe fn initialize(ram: impl Iterator<Item = Ram>) {
    let core = this_core();
    for (start, end) in ram {
        let bytes = (end - start) as usize;
        // SAFETY: the caller vouches for the range.
        if unsafe { core.heap.claim(start as *mut u8, bytes) }.is_some() {
            core.heap_bytes.set(core.heap_bytes.get() + bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ram_below_the_image_and_above_4_gib_is_left_alone() {
        let ram = [(0, 0xa_0000), (0x10_0000, 0x200_0000), (1 << 32, 1 << 33)];
        assert!(usable(&ram, 0x28_0000).eq([(0x28_0000, 0x200_0000)]));
        assert!(usable(&[(0x10_0000, 1 << 33)], 0x28_0000).eq([(0x28_0000, 1 << 32)]));
    }

    #[test]
    fn what_is_taken_is_not_given_to_the_heap() {
        let ram = [(0x1000, 0x2800), (0x28_0800, 0x200_0000)];
        let rest = |taken| without(ram.into_iter(), taken).collect::<alloc::vec::Vec<_>>();
        assert_eq!(rest((0x28_1000, 0x2a_1000)), [(0x1000, 0x2800), (0x28_0800, 0x28_1000), (0x2a_1000, 0x200_0000)]);
        assert_eq!(rest((0x1000, 0x2000)), [(0x2000, 0x2800), (0x28_0800, 0x200_0000)]);
        assert_eq!(rest((0, 0)), ram);
    }
}
