//! Two words of the running thread. `thread_local!` would call the dynamic linker, or contain code
//! that leaves room for that call: 1 to 2 ns of each event.

use crate::writer::Writer;
use core::arch::{asm, global_asm};
use core::ptr;
use glass_formats::trace::RingEntry;

// At an offset that is fixed at link time: this crate is always part of a program, never of a shared library.
global_asm!(
    ".pushsection .tbss.glass_trace_words, \"awT\", @nobits",
    ".balign 8",
    ".globl glass_trace_words",
    ".type glass_trace_words, @object",
    ".size glass_trace_words, 16",
    "glass_trace_words: .zero 16",
    ".popsection",
    options(att_syntax)
);

/// Where this thread's events go.
#[inline(always)]
pub(crate) fn writer() -> Option<&'static Writer> {
    let writer: *const Writer;
    // SAFETY: the word is the thread's own, defined above.
    unsafe {
        asm!("movq %fs:glass_trace_words@tpoff + 8, {}", out(reg) writer, options(att_syntax, pure, readonly, nostack, preserves_flags));
    }
    // SAFETY: only `set_writer` writes the word, so it is 0 or a `'static` reference.
    unsafe { writer.as_ref() }
}

pub(crate) fn set_writer(writer: Option<&'static Writer>) {
    let writer = writer.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the word is the thread's own, and `writer` is the only one that reads it.
    unsafe {
        asm!("movq {}, %fs:glass_trace_words@tpoff + 8", in(reg) writer, options(att_syntax, nostack, preserves_flags));
    }
}

/// Where the recorder of functions writes to.
pub(crate) fn set_ring(ring: &'static RingEntry) {
    // SAFETY: the word is the thread's own, and the recorder expects there a ring of the thread, or 0.
    unsafe {
        asm!("movq {}, %fs:glass_trace_words@tpoff", in(reg) ptr::from_ref(ring), options(att_syntax, nostack, preserves_flags));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recorder_of_functions_finds_the_ring_of_its_thread() {
        static ENTRY: RingEntry = RingEntry::new();
        set_ring(&ENTRY);
        let ring: *const RingEntry;
        // SAFETY: the word is the thread's own; `functions.s` reads it in the same way.
        unsafe {
            asm!("movq %fs:glass_trace_words@tpoff, {}", out(reg) ring, options(att_syntax, pure, readonly, nostack, preserves_flags));
        }
        assert_eq!(ring, ptr::from_ref(&ENTRY));
    }
}
