//! The api on bare x86-64: boot, memory, interrupts, devices, one executor a core.
//!
//! A service's crate calls [`entry!`] (through `glasshouse::main!`); boot.s enters at the PVH entry
//! point and ends in ring 3 at `start.rs`, which hands the machine to `platform.rs`'s loop.
//! Interrupts are off for ever; a core takes them only while it is halted (docs/decisions/0002).
#![no_std]
// Under test only the pure parts are used.
#![cfg_attr(test, allow(dead_code))]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod acpi;
mod apic;
mod clock;
mod command_line;
mod cores;
mod heap;
mod paging;
mod ports;
mod pvh;
mod serial;

// What refers to symbols that exist only in an image.
#[cfg(not(test))]
mod report;
#[cfg(not(test))]
mod start;
#[cfg(not(test))]
core::arch::global_asm!(include_str!("boot.s"), include_str!("mem.s"), options(att_syntax));

#[cfg(not(test))]
pub use start::Boot;

/// What `entry!` expands to refers to.
#[doc(hidden)]
#[cfg(not(test))]
pub mod private {
    pub use crate::heap::Heap;
    pub use crate::report::{exit, exit_code, panicked};
    pub use crate::serial::print_line;
    pub use crate::clock::now;
}
