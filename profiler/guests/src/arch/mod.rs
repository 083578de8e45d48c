//! The code that depends on the guest's processor: the registers of each backend, and their meaning.

pub(crate) mod aarch64;
pub(crate) mod entry;
pub(crate) mod gdb;
pub(crate) mod x86_64;

use glass_profiler_core::arch::{Paging, Registers, Width};

/// What a core's registers say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoreState {
    /// As addresses in memory.
    pub(crate) registers: Registers,
    pub(crate) paging: Paging,
    /// How wide the code is that runs.
    pub(crate) width: Width,
    /// It may do more than processes may.
    pub(crate) is_privileged: bool,
    /// The core has not been started since its reset.
    pub(crate) is_at_reset: bool,
    /// Where its interrupt table is, if that is known.
    pub(crate) interrupt_table: Option<u64>,
}
