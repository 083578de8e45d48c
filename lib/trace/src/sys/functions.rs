//! The table of sleds that the compiler made, and the way of the recorder to the ring.

#[cfg(glass_vm)]
use crate::functions::RING_OFFSET;
use crate::functions::SLED_BYTES;
use core::arch::{asm, global_asm};
use core::ptr;
use core::slice;
use glass_formats::trace::RingEntry;

/// An entry of the table as the compiler wrote it, not aligned.
pub(crate) type Entry = [u8; 32];

#[cfg(glass_vm)]
global_asm!(
    ".set glass_function_ring, {offset}",
    ".macro load_ring register",
    "movq %gs:glass_function_ring, \\register",
    ".endm",
    include_str!("functions.s"),
    offset = const RING_OFFSET,
    options(att_syntax)
);

#[cfg(not(glass_vm))]
global_asm!(
    ".section .tbss.glass_function_ring, \"awT\", @nobits",
    ".align 8",
    ".type glass_function_ring, @object",
    ".size glass_function_ring, 8",
    ".globl glass_function_ring",
    "glass_function_ring: .zero 8",
    ".macro load_ring register",
    "movq %fs:glass_function_ring@tpoff, \\register",
    ".endm",
    include_str!("functions.s"),
    options(att_syntax)
);

unsafe extern "C" {
    // Made by the linker, which knows the section's name.
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

/// Entries of the recorder for where a function begins, returns and calls in its stead.
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

/// From now on the recorder writes to this ring on the core or thread that calls.
pub(crate) fn set_ring(ring: &'static RingEntry) {
    // SAFETY: the word is the recorder's own: in a VM the platform keeps it free in the core's block at %gs, in a
    // process it is the thread's. The recorder expects there a ring of the core or thread, or 0.
    #[cfg(glass_vm)]
    unsafe {
        asm!("movq {}, %gs:{}", in(reg) ptr::from_ref(ring), const RING_OFFSET, options(att_syntax, nostack, preserves_flags));
    }
    // SAFETY: as above.
    #[cfg(not(glass_vm))]
    unsafe {
        asm!("movq {}, %fs:glass_function_ring@tpoff", in(reg) ptr::from_ref(ring), options(att_syntax, nostack, preserves_flags));
    }
}
