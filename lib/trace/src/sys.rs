//! The unsafe code: the clock, the control page's symbol and the access to the current core's ring.

#[cfg(glass_functions)]
pub(crate) mod functions;
#[cfg(not(glass_functions))]
#[path = "sys/functions_absent.rs"]
pub(crate) mod functions;

#[cfg(glass_vm)]
#[path = "sys/own_core.rs"]
pub(crate) mod own;
#[cfg(not(glass_vm))]
#[path = "sys/own_thread.rs"]
pub(crate) mod own;

use glass_formats::trace::Control;

/// In a VM, the offset from %gs of two words of the core's block that belong to this crate: the ring that the recorder
/// of functions writes to, and the core's writer. They must be 0 at first.
pub const CORE_WORDS_OFFSET: usize = 8;

/// The page that the host reads. A process maps its shared memory over it.
#[unsafe(export_name = "GLASS_TRACE")]
pub static CONTROL: Control = Control::new();

/// The clock of events: the TSC.
#[inline(always)]
pub fn ticks() -> u64 {
    // SAFETY: every x86-64 CPU has the instruction, and neither our kernel nor Linux forbids it.
    unsafe { core::arch::x86_64::_rdtsc() }
}
