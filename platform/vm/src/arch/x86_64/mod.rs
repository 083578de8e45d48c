//! x86-64: the boot, the privileged stub, page tables, interrupts, the register of the core's block, and instructions.
//!
//! An architecture has files of these names: `boot.s`, `program.s` (system calls of a C program), `mem.s`, `paging.rs`, `smp.rs` (secondary cores), `fault.rs` (what is saved at an
//! exception), `random.rs`, and the functions of this file. Its interrupt controller (`apic.rs`), port instructions (`ports.rs`) and the firmware that an image has for QEMU's microvm
//! (`firmware.s`) are x86's own.

pub mod apic;
mod block;
pub mod fault;
pub mod machine;
pub mod paging;
pub mod pins;
pub mod ports;
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
core::arch::global_asm!(
    include_str!("boot.s"),
    include_str!("firmware.s"),
    include_str!("mem.s"),
    include_str!("program.s"),
    options(att_syntax)
);

pub use apic as controller;
pub use block::Block;
pub use ports::read_tsc as ticks;
#[cfg(not(test))]
pub use ports::{halt, load_page_tables};

use core::arch::asm;

/// The block of the core that runs this, to which boot.s has pointed GS: its first word is its own address.
#[inline(always)]
pub fn block<T>() -> *const T {
    let block: *const T;
    // SAFETY: this reads the word.
    unsafe { asm!("mov {}, gs:[0]", out(reg) block, options(pure, readonly, nostack, preserves_flags)) };
    block
}

/// The frame pointer of the function into which this is inlined.
#[inline(always)]
pub fn frame_pointer() -> u64 {
    let rbp: u64;
    // SAFETY: copies a register.
    unsafe { asm!("mov {}, rbp", out(reg) rbp, options(nomem, nostack, preserves_flags)) };
    rbp
}

/// Discards the instructions that this core has fetched. Intel's manual, volume 3, 9.1.3: who writes code through another address than it runs at
/// executes a serializing instruction.
pub fn discard_fetched_instructions() {
    core::arch::x86_64::__cpuid(0);
}

/// Lets the CPU see page tables that were changed, which it does by itself.
pub fn publish_tables() {}
