//! The allocator of the tests: it counts the memory that devices could use, and refuses memory where a test wants to have none. Each
//! thread, and so each test, has a count and a limit of its own.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::Cell;
use core::ptr;
use glass_drivers_device::PAGE_BYTES;
use std::alloc::System;

std::thread_local! {
    static PAGE_BYTES_IN_USE: Cell<usize> = const { Cell::new(0) };
    static BYTES_MAX: Cell<usize> = const { Cell::new(usize::MAX) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes of memory at page boundaries that this thread has allocated and not freed.
pub fn page_bytes_in_use() -> usize {
    PAGE_BYTES_IN_USE.get()
}

/// Does `work` while there is no memory for anything of `bytes` bytes or more.
pub fn with_less_memory_than<R>(bytes: usize, work: impl FnOnce() -> R) -> R {
    BYTES_MAX.set(bytes - 1);
    let result = work();
    BYTES_MAX.set(usize::MAX);
    result
}

/// Bytes of an allocation that count.
fn counted(layout: Layout) -> usize {
    if layout.align() == PAGE_BYTES { layout.size() } else { 0 }
}

// SAFETY: the system's allocator does the work, or there is no memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > BYTES_MAX.get() {
            return ptr::null_mut();
        }
        PAGE_BYTES_IN_USE.set(PAGE_BYTES_IN_USE.get().wrapping_add(counted(layout)));
        // SAFETY: the caller vouches for the layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.size() > BYTES_MAX.get() {
            return ptr::null_mut();
        }
        PAGE_BYTES_IN_USE.set(PAGE_BYTES_IN_USE.get().wrapping_add(counted(layout)));
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        PAGE_BYTES_IN_USE.set(PAGE_BYTES_IN_USE.get().wrapping_sub(counted(layout)));
        // SAFETY: the caller vouches for both.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if bytes > BYTES_MAX.get() {
            return ptr::null_mut();
        }
        // SAFETY: the caller vouches for all of it. Nothing at a page boundary grows.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}
