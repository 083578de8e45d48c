//! The global allocator: each core allocates from a heap of its own.

use crate::cores::this_core;
use crate::machine::Ram;
use core::alloc::{GlobalAlloc, Layout};
use glass_api::MemoryUse;

/// The allocator that `entry!` registers.
pub struct Heap;

// SAFETY: talc's cell implements the contract for one core; memory is freed on the core that
// allocated it as long as there is one core.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract.
        let pointer = unsafe { this_core().heap.alloc(layout) };
        if !pointer.is_null() {
            count(layout.size(), 0);
        }
        pointer
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract.
        unsafe { this_core().heap.dealloc(pointer, layout) };
        count(0, layout.size());
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller keeps the contract.
        let pointer = unsafe { this_core().heap.realloc(pointer, layout, new_size) };
        if !pointer.is_null() {
            count(new_size, layout.size());
        }
        pointer
    }
}

/// Keeps the books: so many bytes more and less are in use.
fn count(more: usize, less: usize) {
    let core = this_core();
    let used = core.heap_used_bytes.get().wrapping_add(more).wrapping_sub(less);
    core.heap_used_bytes.set(used);
    core.heap_peak_bytes.set(core.heap_peak_bytes.get().max(used));
}

/// This core's heap. Bytes that were asked for: what the allocator adds to each piece is not counted.
pub fn memory() -> MemoryUse {
    let core = this_core();
    MemoryUse {
        used_bytes: core.heap_used_bytes.get() as u64,
        peak_bytes: core.heap_peak_bytes.get() as u64,
        total_bytes: core.heap_bytes.get() as u64,
    }
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
pub unsafe fn add(ram: impl Iterator<Item = Ram>) {
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
    fn what_is_taken_is_not_given_to_the_heap() {
        let ram = [(0x1000, 0x2800), (0x28_0800, 0x200_0000)];
        let rest = |taken| without(ram.into_iter(), taken).collect::<alloc::vec::Vec<_>>();
        assert_eq!(rest((0x28_1000, 0x2a_1000)), [(0x1000, 0x2800), (0x28_0800, 0x28_1000), (0x2a_1000, 0x200_0000)]);
        assert_eq!(rest((0x1000, 0x2000)), [(0x2000, 0x2800), (0x28_0800, 0x200_0000)]);
        assert_eq!(rest((0, 0)), ram);
    }
}
