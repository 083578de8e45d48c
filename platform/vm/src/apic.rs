//! The local APIC: its timer and the end of interrupts, by memory-mapped registers.
//!
//! (x2APIC would need the wrmsr service for each access, 10 us on hosts that emulate ring 0.)

use crate::clock;
use crate::cores::this_core;
use crate::ports::{halt, write_port8};
use glass_api::Instant;

/// Local APIC registers, an architectural address.
pub const LOCAL_APIC: u64 = 0xfee0_0000;
const TIMER_VECTOR: u8 = 0x40;
const SPURIOUS_VECTOR: u8 = 0xff;

/// Registers of the local APIC (Intel SDM volume 3, table 11-1).
mod register {
    pub const IDENTIFIER: u64 = 0x20;
    pub const TASK_PRIORITY: u64 = 0x80;
    pub const END_OF_INTERRUPT: u64 = 0xb0;
    pub const SPURIOUS: u64 = 0xf0;
    pub const TIMER: u64 = 0x320;
    pub const LINT0: u64 = 0x350;
    pub const LINT1: u64 = 0x360;
    pub const TIMER_INITIAL: u64 = 0x380;
    pub const TIMER_CURRENT: u64 = 0x390;
    pub const TIMER_DIVIDE: u64 = 0x3e0;
}
const MASKED: u32 = 1 << 16;
const ENABLED: u32 = 1 << 8;
const DIVIDE_BY_1: u32 = 0xb;

fn read(register: u64) -> u32 {
    // SAFETY: the local APIC's page is mapped as a device; its registers touch no memory.
    unsafe { ((LOCAL_APIC + register) as *const u32).read_volatile() }
}

fn write(register: u64, value: u32) {
    // SAFETY: as for `read`; interrupts are taken only in the idle service, whatever is enabled.
    unsafe { ((LOCAL_APIC + register) as *mut u32).write_volatile(value) }
}

/// Enables this core's APIC, masks what we do not use and measures the timer.
pub fn initialize() {
    // The two 8259s, if there are any, stay silent.
    write_port8(0x21, 0xff);
    write_port8(0xa1, 0xff);
    write(register::SPURIOUS, ENABLED | u32::from(SPURIOUS_VECTOR));
    write(register::TASK_PRIORITY, 0);
    write(register::LINT0, MASKED);
    write(register::LINT1, MASKED);
    write(register::TIMER_DIVIDE, DIVIDE_BY_1);
    write(register::TIMER, MASKED | u32::from(TIMER_VECTOR));
    let timer_hz = measure_timer();
    this_core().apic_timer_hz.set(timer_hz);
    write(register::TIMER, u32::from(TIMER_VECTOR));
}

/// Timer ticks per second, measured against the TSC for 250 us.
fn measure_timer() -> u64 {
    write(register::TIMER_INITIAL, u32::MAX);
    let start = clock::now();
    let first = read(register::TIMER_CURRENT);
    while clock::now().0 - start.0 < 250_000 {}
    let last = read(register::TIMER_CURRENT);
    let elapsed_ns = (clock::now().0 - start.0).max(1);
    write(register::TIMER_INITIAL, 0);
    (u64::from(first.wrapping_sub(last)) * 1_000_000_000 / elapsed_ns).max(1)
}

/// This core's identifier, for who routes interrupts to it.
pub fn identifier() -> u8 {
    (read(register::IDENTIFIER) >> 24) as u8
}

/// Why [`idle`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// The deadline was reached.
    Timer,
    /// An interrupt with this vector: call [`end_of_interrupt`] when its device has been acknowledged.
    Interrupt(u8),
    /// Something else; look at everything.
    Other,
}

impl Wake {
    /// The interrupt's vector.
    pub fn vector(self) -> u8 {
        match self {
            Wake::Timer => TIMER_VECTOR,
            Wake::Interrupt(vector) => vector,
            Wake::Other => SPURIOUS_VECTOR,
        }
    }
}

/// Lets interrupts of the same and of lower priority come again.
pub fn end_of_interrupt() {
    write(register::END_OF_INTERRUPT, 0);
}

/// Halts the core until a device needs attention or `deadline` is reached.
///
/// An interrupt raised since the caller last looked ends the halt at once, so arming the devices,
/// looking once more and then calling this loses no wake-up.
pub fn idle(deadline: Option<Instant>) -> Wake {
    if let Some(deadline) = deadline {
        let ns = deadline.since(clock::now()).as_nanos().clamp(1, 1_000_000_000);
        let ticks = ns * u128::from(this_core().apic_timer_hz.get()) / 1_000_000_000;
        write(register::TIMER_INITIAL, ticks.clamp(1, u128::from(u32::MAX)) as u32);
    }
    let vector = halt();
    if deadline.is_some() && vector != TIMER_VECTOR {
        write(register::TIMER_INITIAL, 0);
    }
    match vector {
        TIMER_VECTOR => {
            end_of_interrupt();
            Wake::Timer
        }
        SPURIOUS_VECTOR => Wake::Other,
        vector => Wake::Interrupt(vector),
    }
}
