//! Two words that belong to the core that runs, in its block at %gs.

use crate::sys::CORE_WORDS_OFFSET;
use crate::writer::Writer;
use core::arch::asm;
use core::ptr;
use glass_formats::trace::RingEntry;

/// Where this core's events go.
#[inline(always)]
pub(crate) fn writer() -> Option<&'static Writer> {
    let writer: *const Writer;
    // SAFETY: %gs points at the core's block before any event can be on, and the platform keeps the word free for us.
    unsafe {
        asm!("movq %gs:{} + 8, {}", const CORE_WORDS_OFFSET, out(reg) writer, options(att_syntax, pure, readonly, nostack, preserves_flags));
    }
    // SAFETY: only `set_writer` writes the word, so it is 0 or a `'static` reference.
    unsafe { writer.as_ref() }
}

pub(crate) fn set_writer(writer: Option<&'static Writer>) {
    let writer = writer.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the word is ours, see `writer`, the only one that reads it.
    unsafe {
        asm!("movq {}, %gs:{} + 8", in(reg) writer, const CORE_WORDS_OFFSET, options(att_syntax, nostack, preserves_flags));
    }
}

/// Where the recorder of functions writes to.
pub(crate) fn set_ring(ring: &'static RingEntry) {
    // SAFETY: the word is ours, and the recorder expects there a ring of the core, or 0.
    unsafe {
        asm!("movq {}, %gs:{}", in(reg) ptr::from_ref(ring), const CORE_WORDS_OFFSET, options(att_syntax, nostack, preserves_flags));
    }
}
