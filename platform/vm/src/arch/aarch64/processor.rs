//! What a secondary core of AArch64 needs beside its stacks, and its start by PSCI.

use super::{ADDRESS_SPACE, psci};

use crate::cores::Core;
use crate::memory::PAGE_TABLES;
use crate::serial::print_line;
use core::arch::asm;
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};

/// Bytes that a core needs behind its stacks.
pub const OWN_BYTES: u64 = 0;

pub use super::affinity as identifier;

unsafe extern "C" {
    static glass_page_tables: AtomicU64;
    fn glass_core_entry();
}

/// Whether a core with this affinity can be addressed: one interrupt between cores reaches 16 of a cluster.
pub fn is_reachable(identifier: u32) -> bool {
    identifier & 0xff < 16
}

/// Nothing is missing in the block of a core that does not run yet.
///
/// # Safety
/// None is needed; other processors have conditions.
pub unsafe fn prepare(_: &Core, _: u64) {}

/// Requests the start of these cores, which have everything else that they need.
pub fn start(cores: &[&'static Core]) {
    // SAFETY: boot.s defines it; a secondary core reads it when it starts, which is requested below.
    let page_tables = unsafe { &glass_page_tables };
    page_tables.store(PAGE_TABLES.load(Ordering::Relaxed) | ADDRESS_SPACE, Ordering::Relaxed);
    // SAFETY: writes the line back: the core reads it without translation, so past the cache.
    unsafe { asm!("dc cvac, {}", "dsb sy", in(reg) ptr::from_ref(page_tables), options(nostack, preserves_flags)) };
    for core in cores {
        let affinity = core.public.processor.load(Ordering::Relaxed);
        // SAFETY: boot.s has the code, which expects the block.
        let started = unsafe {
            psci::start(affinity, glass_core_entry as *const () as u64, ptr::from_ref(*core).expose_provenance() as u64)
        };
        if let Err(error) = started {
            print_line(format_args!("core {} cannot be started: PSCI returned {error}", core.index()));
        }
    }
}
