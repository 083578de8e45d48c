//! Version 2: its CPU interfaces are registers in memory (GIC architecture specification, version 2, chapter 4).

use super::PRIORITY_MASK;
use super::distributor::Bank;
use core::sync::atomic::{AtomicU64, Ordering, fence};

/// Registers of the distributor.
mod register {
    pub const CONTROL: u64 = 0x000;
    pub const TARGETS: u64 = 0x800;
    pub const SEND: u64 = 0xf00;
}
/// Registers of a CPU interface.
mod interface {
    pub const CONTROL: u64 = 0x00;
    pub const PRIORITY_MASK: u64 = 0x04;
    pub const ACKNOWLEDGE: u64 = 0x0c;
    pub const END: u64 = 0x10;
}
const BOTH_GROUPS: u32 = 3;
/// One register acknowledges both groups; group 0 arrives as an FIQ.
const ACKNOWLEDGE_BOTH: u32 = 1 << 2;
const GROUP_0_AS_FIQ: u32 = 1 << 3;

static DISTRIBUTOR: AtomicU64 = AtomicU64::new(0);
static INTERFACES: AtomicU64 = AtomicU64::new(0);

/// Switches the distributor on. Both are mapped.
pub fn start(distributor: u64, interfaces: u64) {
    DISTRIBUTOR.store(distributor, Ordering::Relaxed);
    INTERFACES.store(interfaces, Ordering::Relaxed);
    self::distributor().write(register::CONTROL, BOTH_GROUPS);
}

pub fn distributor() -> Bank {
    // SAFETY: the device tree has the address, and start.rs has mapped the registers.
    unsafe { Bank::new(DISTRIBUTOR.load(Ordering::Relaxed)) }
}

/// A core's own interrupts are in the same registers: each core sees its own there.
pub fn private() -> Bank {
    distributor()
}

fn interface() -> Bank {
    // SAFETY: as for `distributor`.
    unsafe { Bank::new(INTERFACES.load(Ordering::Relaxed)) }
}

/// Lets interrupts arrive at this core.
pub fn start_interface() {
    interface().write(interface::PRIORITY_MASK, PRIORITY_MASK.into());
    interface().write(interface::CONTROL, BOTH_GROUPS | ACKNOWLEDGE_BOTH | GROUP_0_AS_FIQ);
}

/// Lets an interrupt that all cores share arrive at this one.
pub fn route_here(interrupt: u32) {
    // The targets of a core's own interrupts are the core that reads them.
    let own = distributor().read(register::TARGETS) as u8;
    distributor().write_u8(register::TARGETS + u64::from(interrupt), own);
}

/// Interfaces are numbered as processors are, of which there are at most eight.
pub fn send(processor: u32, interrupt: u32) {
    // What was written for the other core is there before the interrupt.
    fence(Ordering::SeqCst);
    distributor().write(register::SEND, 1 << (16 + (processor & 7)) | interrupt);
}

pub fn acknowledge() -> u32 {
    interface().read(interface::ACKNOWLEDGE)
}

pub fn end(acknowledged: u32) {
    interface().write(interface::END, acknowledged);
}
