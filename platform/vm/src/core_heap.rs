//! The heap of one core: talc's, and which of its memory was never used, so that zeroed memory of that need not be written.
//!
//! A page that a VM writes for the first time costs an exit and a page of the host: 4 to 5 us under a KVM that emulates (2026-11-25). Most memory
//! that is requested as zeroes, buffers and rings, is written much later or never.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::Cell;
use core::ops::Range;
use core::ptr::{self, NonNull};
use talc::{TalcCell, source::Manual};

/// How far into unused memory talc writes its own data: behind the end of a block, at the start of a gap, and at the end of a part. It is less
/// than 80 bytes with talc 5.1.
const BOOKKEEPING_BYTES: usize = 128;

/// A heap that grows by parts.
pub struct CoreHeap {
    talc: TalcCell<Manual>,
    /// The end of the part that was added last.
    end: Cell<Option<NonNull<u8>>>,
    /// Where no block has been since the part was added, of a part that was zero then.
    unused: Cell<Unused>,
}

/// Addresses of unused memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Unused {
    first: usize,
    /// Behind the last one.
    last: usize,
    /// Where two parts were joined; talc has written there.
    seam: usize,
}

impl CoreHeap {
    /// A heap without memory.
    pub const fn new() -> CoreHeap {
        CoreHeap {
            talc: TalcCell::new(Manual),
            end: Cell::new(None),
            unused: Cell::new(Unused { first: 0, last: 0, seam: 0 }),
        }
    }

    /// Adds memory; a part behind the last one is joined to it. `is_zero`: all of its bytes are.
    ///
    /// # Safety
    /// It is mapped, writable RAM that nothing else uses, and zero if `is_zero`.
    pub unsafe fn claim(&self, start: *mut u8, bytes: usize, is_zero: bool) {
        let end = start.wrapping_add(bytes);
        // SAFETY: the caller vouches for the range; `self.end` is what talc returned for the range that ends where this one starts.
        let new_end = unsafe {
            match self.end.get() {
                Some(last) if last.as_ptr() == start => Some(self.talc.extend(last, end)),
                _ => self.talc.claim(start, bytes),
            }
        };
        if new_end.is_some() {
            self.end.set(new_end);
        }
        if is_zero {
            self.unused.set(self.unused.get().with_part(start.addr(), end.addr()));
        }
    }

    /// As [`GlobalAlloc::alloc`].
    ///
    /// # Safety
    /// As there.
    #[inline]
    pub unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract.
        let pointer = unsafe { self.talc.alloc(layout) };
        self.note_use(pointer, layout.size());
        pointer
    }

    /// As [`GlobalAlloc::alloc_zeroed`]. Writes what was used before.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let unused = self.unused.get();
        // SAFETY: the caller keeps the contract.
        let pointer = unsafe { self.alloc(layout) };
        if !pointer.is_null() {
            let block = pointer.addr()..pointer.addr() + layout.size();
            for part in unused.used_parts(block.clone()) {
                // SAFETY: `Unused::used_parts` returns parts of the block, which is the caller's.
                unsafe { ptr::write_bytes(pointer.add(part.start - block.start), 0, part.len()) };
            }
        }
        pointer
    }

    /// As [`GlobalAlloc::dealloc`].
    ///
    /// # Safety
    /// As there.
    #[inline]
    pub unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract.
        unsafe { self.talc.dealloc(pointer, layout) };
    }

    /// As [`GlobalAlloc::realloc`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller keeps the contract.
        let moved = unsafe { self.talc.realloc(pointer, layout, new_size) };
        self.note_use(moved, new_size);
        moved
    }

    /// There is a block now: what is below its end counts as used.
    #[inline]
    fn note_use(&self, pointer: *mut u8, bytes: usize) {
        let unused = self.unused.get();
        let end = pointer.addr() + bytes;
        if end > unused.first && pointer.addr() < unused.last && !pointer.is_null() {
            self.unused.set(Unused { first: end, ..unused });
        }
    }
}

impl Unused {
    /// After a part was added. One range with one seam is enough: heaps that grow as they need have little left when they do, and a machine's memory is in
    /// few parts of very different sizes.
    fn with_part(self, start: usize, end: usize) -> Unused {
        if self.last == start && self.first < self.last {
            Unused { first: self.first.max(self.seam), last: end, seam: start }
        } else if end - start > self.last.saturating_sub(self.first) {
            Unused { first: start, last: end, seam: 0 }
        } else {
            self
        }
    }

    /// The parts of a block that may not be zero.
    fn used_parts(self, block: Range<usize>) -> [Range<usize>; 3] {
        let clean_start = (block.start.max(self.first) + BOOKKEEPING_BYTES).min(block.end);
        let clean_end = self.last.saturating_sub(BOOKKEEPING_BYTES).clamp(clean_start, block.end);
        let seam = [self.seam.saturating_sub(BOOKKEEPING_BYTES), self.seam + BOOKKEEPING_BYTES];
        let [seam_start, seam_end] = seam.map(|address| address.clamp(clean_start, clean_end));
        [block.start..clean_start, seam_start..seam_end, clean_end..block.end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    const PAGE: usize = 4096;

    /// Memory for a heap, from a page boundary on.
    fn pages(count: usize, byte: u8) -> (Vec<u8>, *mut u8) {
        let mut memory = vec![byte; (count + 1) * PAGE];
        let start = memory.as_mut_ptr();
        let start = start.wrapping_add(start.align_offset(PAGE));
        (memory, start)
    }

    fn layout(bytes: usize, align: usize) -> Layout {
        Layout::from_size_align(bytes, align).unwrap()
    }

    fn bytes_of<'a>(pointer: *mut u8, bytes: usize) -> &'a mut [u8] {
        assert!(!pointer.is_null());
        // SAFETY: a block of the heap of the test, which uses it here only.
        unsafe { core::slice::from_raw_parts_mut(pointer, bytes) }
    }

    /// Bytes that are not zero show that nothing was written there.
    #[test]
    fn memory_that_was_never_used_is_not_written() {
        let (_memory, start) = pages(64, 7);
        let heap = CoreHeap::new();
        // SAFETY: the memory is the test's; it is not zero, and the test looks where zeroes are missing.
        unsafe { heap.claim(start, 64 * PAGE, true) };
        // SAFETY: the layouts' sizes are not zero, here and below.
        let large = unsafe { heap.alloc_zeroed(layout(32 * PAGE, PAGE)) };
        let untouched = bytes_of(large, 32 * PAGE).iter().filter(|byte| **byte == 7).count();
        assert_eq!(untouched, 32 * PAGE - BOOKKEEPING_BYTES);
        // The same memory is used when it is allocated again.
        // SAFETY: it was allocated so.
        unsafe { heap.dealloc(large, layout(32 * PAGE, PAGE)) };
        // SAFETY: the layout's size is not zero.
        let again = unsafe { heap.alloc_zeroed(layout(40 * PAGE, 16)) };
        let bytes = bytes_of(again, 40 * PAGE);
        let used = large.addr() + 32 * PAGE - again.addr();
        assert!(bytes[..used + BOOKKEEPING_BYTES].iter().all(|byte| *byte == 0));
        assert!(bytes[used + BOOKKEEPING_BYTES..].iter().all(|byte| *byte == 7));
    }

    /// As the boot core's memory: a part that is no whole one, and all others behind it.
    #[test]
    fn parts_that_are_joined_are_one() {
        let (_memory, start) = pages(64, 7);
        let heap = CoreHeap::new();
        for (from, to) in [(0, 9), (9, 16), (16, 64)] {
            // SAFETY: as above.
            unsafe { heap.claim(start.wrapping_add(from * PAGE), (to - from) * PAGE, true) };
        }
        // What is below the seam before the last one is lost.
        // SAFETY: the layout's size is not zero.
        let block = unsafe { heap.alloc_zeroed(layout(40 * PAGE, PAGE)) };
        let used = start.addr() + 9 * PAGE - block.addr();
        let untouched = bytes_of(block, 40 * PAGE).iter().filter(|byte| **byte == 7).count();
        assert_eq!(untouched, 40 * PAGE - used - BOOKKEEPING_BYTES - 2 * BOOKKEEPING_BYTES);
    }

    #[test]
    fn memory_of_unknown_contents_is_written() {
        let (_memory, start) = pages(8, 7);
        let heap = CoreHeap::new();
        // SAFETY: the memory is the test's.
        unsafe { heap.claim(start, 8 * PAGE, false) };
        // SAFETY: the layout's size is not zero.
        let block = unsafe { heap.alloc_zeroed(layout(4 * PAGE, 16)) };
        assert!(bytes_of(block, 4 * PAGE).iter().all(|byte| *byte == 0));
    }

    /// What talc writes between blocks is never in zeroed memory: all operations at random, in parts that are joined and parts that are not.
    #[test]
    fn zeroed_memory_is_zero_whatever_happened_before() {
        for seed in 1..=200u64 {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut random = |below: usize| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as usize % below
            };
            let (_memory, start) = pages(96, 0);
            let heap = CoreHeap::new();
            // In pages: two that join, one apart, and one that joins that; some of them not page by page.
            let parts =
                [(0, 20), (20, 44), (50, 60), (60, 96)].map(|(from, to)| (from * PAGE, to * PAGE - 8 * (to % 3)));
            let mut parts = parts.into_iter();
            let mut blocks: Vec<(*mut u8, Layout)> = Vec::new();
            for _ in 0..400 {
                match random(8) {
                    0 | 1 if !blocks.is_empty() => {
                        let (pointer, layout) = blocks.swap_remove(random(blocks.len()));
                        // SAFETY: it was allocated so.
                        unsafe { heap.dealloc(pointer, layout) };
                    }
                    2 if !blocks.is_empty() => {
                        let index = random(blocks.len());
                        let (pointer, old) = blocks[index];
                        let size = 1 + random(3 * PAGE);
                        // SAFETY: it was allocated so, and the size is not zero.
                        let moved = unsafe { heap.realloc(pointer, old, size) };
                        if !moved.is_null() {
                            bytes_of(moved, size).fill(0xaa);
                            blocks[index] = (moved, layout(size, old.align()));
                        }
                    }
                    kind => {
                        let bytes_max = [40, PAGE, 6 * PAGE][random(3)];
                        let layout = layout(1 + random(bytes_max), 1 << random(13));
                        let is_zeroed = kind < 6;
                        // SAFETY: the layout's size is not zero.
                        let pointer = unsafe { if is_zeroed { heap.alloc_zeroed(layout) } else { heap.alloc(layout) } };
                        if pointer.is_null() {
                            let Some((from, to)) = parts.next() else { continue };
                            // SAFETY: no part was claimed before, and all are zero.
                            unsafe { heap.claim(start.wrapping_add(from), to - from, true) };
                            continue;
                        }
                        let bytes = bytes_of(pointer, layout.size());
                        assert!(!is_zeroed || bytes.iter().all(|byte| *byte == 0), "seed {seed}: {layout:?}");
                        bytes.fill(0xaa);
                        blocks.push((pointer, layout));
                    }
                }
            }
            assert!(parts.next().is_none() && !blocks.is_empty(), "seed {seed}: not all memory was used");
        }
    }
}
