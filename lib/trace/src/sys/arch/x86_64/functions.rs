//! The table of sleds that the compiler made, and the recorder.

use crate::functions::SLED_BYTES;
#[cfg(glass_vm)]
use crate::sys::CORE_WORDS_OFFSET;
use core::arch::global_asm;
use core::ptr;
use core::slice;

/// An entry of the compiler's table, not aligned.
pub(crate) type Entry = [u8; 32];

#[cfg(glass_vm)]
global_asm!(
    ".set glass_trace_words, {offset}",
    ".macro load_ring register",
    "movq %gs:glass_trace_words, \\register",
    ".endm",
    include_str!("functions.s"),
    offset = const CORE_WORDS_OFFSET,
    options(att_syntax)
);

#[cfg(not(glass_vm))]
global_asm!(
    ".macro load_ring register",
    "movq %fs:glass_trace_words@tpoff, \\register",
    ".endm",
    include_str!("functions.s"),
    options(att_syntax)
);

unsafe extern "C" {
    // The linker defines these from the section's name.
    #[link_name = "__start_xray_instr_map"]
    static TABLE_START: Entry;
    #[link_name = "__stop_xray_instr_map"]
    static TABLE_END: Entry;
    fn glass_function_begins();
    fn glass_function_returns();
    fn glass_function_tail_calls();
}

/// The table of sleds.
pub(crate) fn table() -> &'static [Entry] {
    let (start, end) = (&raw const TABLE_START, &raw const TABLE_END);
    let count = (end as usize - start as usize) / size_of::<Entry>();
    // SAFETY: the linker puts the two symbols around the section, which is read-only data of this image.
    unsafe { slice::from_raw_parts(start, count) }
}

/// Entries of the recorder for function entry, return and exit by a jump.
pub(crate) fn recorders() -> [usize; 3] {
    let addresses: [unsafe extern "C" fn(); 3] =
        [glass_function_begins, glass_function_returns, glass_function_tail_calls];
    addresses.map(|address| address as usize)
}

/// The code of a sled of the table.
pub(crate) fn code(address: usize) -> [u8; SLED_BYTES] {
    let mut code = [0; SLED_BYTES];
    for (index, byte) in code.iter_mut().enumerate() {
        // SAFETY: the compiler put a whole sled there, in code of this image, which can be read.
        *byte = unsafe { ptr::read_volatile((address + index) as *const u8) };
    }
    code
}
