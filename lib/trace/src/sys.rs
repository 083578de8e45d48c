//! What needs unsafe code: the clock, the control page's symbol and the way to the current core's ring.

#[cfg(glass_functions)]
pub(crate) mod functions;
#[cfg(not(glass_functions))]
#[path = "sys/functions_absent.rs"]
pub(crate) mod functions;

use crate::writer::Writer;
use core::mem::transmute;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use glass_formats::trace::Control;

/// The page that the host looks at. A process maps its shared memory over it.
#[unsafe(export_name = "GLASS_TRACE")]
pub static CONTROL: Control = Control::new();

/// Finds the ring of the core or thread that runs.
pub(crate) type Current = fn() -> Option<&'static Writer>;

static CURRENT: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

pub(crate) fn set_current(current: Current) {
    CURRENT.store(current as *mut (), Ordering::Release);
}

#[inline(always)]
pub(crate) fn current() -> Option<&'static Writer> {
    let current = CURRENT.load(Ordering::Relaxed);
    if current.is_null() {
        return None;
    }
    // SAFETY: only `set_current` writes it, and what it writes is a `Current`.
    let current = unsafe { transmute::<*mut (), Current>(current) };
    current()
}

/// The clock of events: the TSC.
#[inline(always)]
pub fn ticks() -> u64 {
    // SAFETY: every x86-64 CPU has the instruction, and neither our kernel nor Linux forbids it.
    unsafe { core::arch::x86_64::_rdtsc() }
}
