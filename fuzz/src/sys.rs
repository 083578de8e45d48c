//! The counters that the compiler adds to every edge of the code, if it is built with SanitizerCoverage's inline 8-bit counters
//! (<https://clang.llvm.org/docs/SanitizerCoverage.html#inline-8bit-counters>, read 2026-11-22; `xtask/src/fuzz.rs` has the options).

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// The first counter, null without instrumentation. Release in the constructor pairs with Acquire in [`counters`].
static START: AtomicPtr<u8> = AtomicPtr::new(null_mut());
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The constructor of each instrumented object file calls this before `main`, each with the bounds of all counters of the program.
// SAFETY: no other definition of this symbol is linked: the name is reserved for the runtime of SanitizerCoverage, and the program
// is built without one.
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_8bit_counters_init(start: *mut u8, stop: *mut u8) {
    COUNT.store(stop.addr().saturating_sub(start.addr()), Ordering::Relaxed);
    START.store(start, Ordering::Release);
}

/// The first counter and how many there are.
fn counters() -> Option<(*mut u8, usize)> {
    let start = START.load(Ordering::Acquire);
    (!start.is_null()).then(|| (start, COUNT.load(Ordering::Relaxed)))
}

/// The number of counters; 0 without instrumentation.
pub fn count() -> usize {
    counters().map_or(0, |(_, count)| count)
}

/// Copies all counters, and sets them to 0. The code that reads the copy has counters itself, which this does not change meanwhile.
pub fn take(copy: &mut Vec<u8>) {
    let Some((start, count)) = counters() else { return };
    copy.resize(count, 0);
    // SAFETY: the linker has put `count` counters of one byte from `start` on, in memory that is mapped and writable until the
    // program ends, and `copy`, which the line above gave that length, lies elsewhere. Instrumented code of other threads adds to
    // counters meanwhile, with plain instructions on bytes: one of its counts can be missing here, and coverage tolerates that.
    unsafe { std::ptr::copy_nonoverlapping(start, copy.as_mut_ptr(), count) };
    // SAFETY: as above; a byte may have any value.
    unsafe { std::ptr::write_bytes(start, 0, count) };
}
