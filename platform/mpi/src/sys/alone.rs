//! What the standard library provides otherwise: memory, by the C library, and the end after a panic.

use alloc::alloc::{GlobalAlloc, Layout};
use alloc::format;
use core::panic::PanicInfo;
use core::ptr;

/// Exit code of a rank whose library has a bug.
const PANICKED: i32 = 101;
/// `malloc` aligns for every type of C.
const ALIGNED_BY_MALLOC: usize = 16;

struct CLibrary;

// SAFETY: the C library's functions keep the contract; memory of either is freed by `free`.
unsafe impl GlobalAlloc for CLibrary {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= ALIGNED_BY_MALLOC {
            // SAFETY: plain numbers.
            return unsafe { libc::malloc(layout.size()) }.cast();
        }
        let mut memory = ptr::null_mut();
        // SAFETY: the alignment is a power of two above that of a pointer.
        match unsafe { libc::posix_memalign(&mut memory, layout.align(), layout.size()) } {
            0 => memory.cast(),
            _ => ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, _: Layout) {
        // SAFETY: it is from `alloc`.
        unsafe { libc::free(pointer.cast()) };
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if layout.align() <= ALIGNED_BY_MALLOC {
            // SAFETY: it is from `malloc`.
            return unsafe { libc::realloc(pointer.cast(), new_size) }.cast();
        }
        // SAFETY: a new block, a copy of what both have, and the old one is freed as the caller requested.
        unsafe {
            let new = self.alloc(Layout::from_size_align_unchecked(new_size, layout.align()));
            if !new.is_null() {
                ptr::copy_nonoverlapping(pointer, new, layout.size().min(new_size));
                self.dealloc(pointer, layout);
            }
            new
        }
    }
}

#[global_allocator]
static ALLOCATOR: CLibrary = CLibrary;

#[panic_handler]
fn panic(info: &PanicInfo) -> ! {
    super::print_error(&format!("MPI: {info}"));
    super::exit(PANICKED)
}

// The precompiled core library was built to unwind and names these two; a panic ends the rank.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    super::exit(PANICKED)
}
