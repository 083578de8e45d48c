//! The unsafe code: the control page's symbol, and what depends on the processor.

#[cfg(target_arch = "x86_64")]
#[path = "sys/arch/x86_64/mod.rs"]
mod arch;
#[cfg(target_arch = "aarch64")]
#[path = "sys/arch/aarch64/mod.rs"]
mod arch;
#[cfg(not(glass_functions))]
#[path = "sys/functions_absent.rs"]
pub(crate) mod functions;

#[cfg(glass_functions)]
pub(crate) use arch::functions;
pub(crate) use arch::own;
pub use arch::ticks;
use glass_formats::trace::Control;

/// In a VM, the offset in the block of the core that runs of two words that belong to this crate: the ring that the recorder
/// of functions writes to, and the core's writer. They must be 0 at first.
pub const CORE_WORDS_OFFSET: usize = 8;

/// The page that the host reads. A process maps its shared memory over it.
#[unsafe(export_name = "GLASS_TRACE")]
pub static CONTROL: Control = Control::new();
