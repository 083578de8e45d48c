//! Two words of the running thread, as on x86-64: the ring that a recorder of functions would write to, and the thread's writer.

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
);

/// Where the words are.
#[inline(always)]
fn words() -> *mut *const () {
    let words;
    // SAFETY: this computes an address (ELF for the Arm 64-bit Architecture, local exec).
    unsafe {
        asm!(
            "mrs {0}, tpidr_el0",
            "add {0}, {0}, #:tprel_hi12:glass_trace_words, lsl #12",
            "add {0}, {0}, #:tprel_lo12_nc:glass_trace_words",
            out(reg) words, options(pure, nomem, nostack, preserves_flags)
        );
    }
    words
}

/// Where this thread's events go.
#[inline(always)]
pub(crate) fn writer() -> Option<&'static Writer> {
    // SAFETY: the word is the thread's own, defined above, and only `set_writer` writes it, so it is 0 or a `'static` reference.
    unsafe { words().add(1).read().cast::<Writer>().as_ref() }
}

pub(crate) fn set_writer(writer: Option<&'static Writer>) {
    let writer = writer.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the word is the thread's own, and `writer` is the only one that reads it.
    unsafe { words().add(1).write(writer.cast()) };
}

/// Where a recorder of functions would write to.
pub(crate) fn set_ring(ring: &'static RingEntry) {
    // SAFETY: the word is the thread's own.
    unsafe { words().write(ptr::from_ref(ring).cast()) };
}
