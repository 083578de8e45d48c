//! Texts and arrays that the program passes by pointer.

use alloc::vec::Vec;
use core::ffi::{c_char, c_int};
use core::slice;

/// Writes a text and its end; `capacity` bytes are there.
pub unsafe fn put_text(text: &[u8], to: *mut c_char, length: *mut c_int, capacity: usize) {
    let count = text.len().min(capacity - 1);
    unsafe {
        core::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, count);
        *to.add(count) = 0;
        if !length.is_null() {
            *length = count as c_int;
        }
    }
}

/// The bytes of a text of the program.
pub unsafe fn text_of(text: *const c_char) -> Vec<u8> {
    unsafe { core::ffi::CStr::from_ptr(text) }.to_bytes().to_vec()
}

/// The `count` values at `start`.
pub unsafe fn slice_of<'a, T>(start: *const T, count: usize) -> &'a [T] {
    if count == 0 { &[] } else { unsafe { slice::from_raw_parts(start, count) } }
}
