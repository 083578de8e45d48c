//! Two words that belong to the core that runs, in its block at TPIDR_EL1.

use crate::sys::CORE_WORDS_OFFSET;
use crate::writer::Writer;
use core::arch::asm;
use core::ptr;
use glass_formats::trace::RingEntry;

/// Where the words are.
#[inline(always)]
fn words() -> *mut *const () {
    let block: *mut u8;
    // SAFETY: this reads the register, which points at the core's block before any event can be on.
    unsafe { asm!("mrs {}, tpidr_el1", out(reg) block, options(pure, nomem, nostack, preserves_flags)) };
    block.wrapping_add(CORE_WORDS_OFFSET).cast()
}

/// Where this core's events go.
#[inline(always)]
pub(crate) fn writer() -> Option<&'static Writer> {
    // SAFETY: the platform keeps the word free for us, and only `set_writer` writes it, so it is 0 or a `'static` reference.
    unsafe { words().add(1).read_volatile().cast::<Writer>().as_ref() }
}

pub(crate) fn set_writer(writer: Option<&'static Writer>) {
    let writer = writer.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the word is ours, see `writer`, the only one that reads it.
    unsafe { words().add(1).write_volatile(writer.cast()) };
}

/// Where a recorder of functions would write to.
pub(crate) fn set_ring(ring: &'static RingEntry) {
    // SAFETY: the word is ours.
    unsafe { words().write_volatile(ptr::from_ref(ring).cast()) };
}
