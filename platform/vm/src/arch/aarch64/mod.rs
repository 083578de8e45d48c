//! AArch64: the boot, page tables, the interrupt controller, the register of the core's block, and instructions.
//!
//! The files have the names of x86-64's where they do the same; the interrupt controller is in `gic`.

#![cfg_attr(not(test), warn(dead_code))]

mod block;
pub mod fault;
pub mod gic;
pub mod machine;
pub mod paging;
pub mod random;
pub mod time;
pub mod uart;
pub mod wall;

// What refers to symbols that exist only in an image.
#[cfg(not(test))]
pub mod power;
#[cfg(not(test))]
pub mod processor;
#[cfg(not(test))]
mod psci;
#[cfg(not(test))]
core::arch::global_asm!(include_str!("boot.s"));

pub use block::Block;
pub use gic as controller;
pub use gic::pins;

use core::arch::asm;

/// The block of the core that runs this, to which boot.s has pointed TPIDR_EL1.
#[inline(always)]
pub fn block<T>() -> *const T {
    let block: *const T;
    // SAFETY: this reads the register.
    unsafe { asm!("mrs {}, tpidr_el1", out(reg) block, options(pure, nomem, nostack, preserves_flags)) };
    block
}

/// The frame pointer of the function into which this is inlined.
#[inline(always)]
pub fn frame_pointer() -> u64 {
    let frame: u64;
    // SAFETY: copies a register.
    unsafe { asm!("mov {}, x29", out(reg) frame, options(nomem, nostack, preserves_flags)) };
    frame
}

/// This core's affinity: levels 0 to 2 of MPIDR_EL1.
pub fn affinity() -> u32 {
    let register: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mrs {}, mpidr_el1", out(reg) register, options(nomem, nostack, preserves_flags)) };
    (register & 0xff_ffff) as u32
}

/// The virtual counter.
#[inline(always)]
pub fn ticks() -> u64 {
    let ticks;
    // SAFETY: reads a register that every AArch64 has (Arm Architecture Reference Manual, D12.1).
    unsafe { asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags)) };
    ticks
}

/// Halts until an interrupt is pending. One that was pending earlier ends the halt at once; none is taken as an exception but a crash's FIQ.
pub fn halt() {
    // SAFETY: halting changes nothing. The barrier completes what was written to devices before.
    unsafe { asm!("dsb sy", "wfi", options(nostack, preserves_flags)) };
}

/// Lets the CPU see page tables that were changed: entries that were invalid are in no TLB, but the walk must find the new ones.
pub fn publish_tables() {
    // SAFETY: barriers.
    unsafe { asm!("dsb ishst", "isb", options(nostack, preserves_flags)) };
}

/// The address space identifier of the kernel's page tables; those of boot.s have 0.
const ADDRESS_SPACE: u64 = 1 << 48;

/// Makes the tables at `root` (physical) the core's page tables.
///
/// # Safety
/// They must map all code, stacks and data in use where they are now.
pub unsafe fn load_page_tables(root: u64) {
    // SAFETY: the caller vouches for the tables. Entries of another address space are not used, so none contradicts a new one.
    unsafe {
        asm!("dsb ish", "msr ttbr0_el1, {}", "isb", "tlbi aside1, xzr", "dsb nsh", "isb", in(reg) root | ADDRESS_SPACE,
            options(nostack, preserves_flags));
    }
}

/// Discards the instructions that this core has fetched.
pub fn discard_fetched_instructions() {
    // SAFETY: a barrier.
    unsafe { asm!("isb", options(nostack, preserves_flags)) };
}
