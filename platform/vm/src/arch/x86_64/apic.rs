//! The local APIC: its timer, the end of interrupts, and interrupts to other cores, by memory-mapped registers.
//!
//! (x2APIC would need the wrmsr service for each access, 10 us on hosts that emulate ring 0.)

use crate::arch::ports::{halt, write_port8};
use crate::arch::time::Frequency;
use crate::clock;
use crate::cores::this_core;
use crate::interrupts::{Target, Wake};
use crate::machine::Machine;
use crate::xen::events::{self, UPCALL_VECTOR};
use glass_api::Instant;

/// Local APIC registers, an architectural address.
pub const LOCAL_APIC: u64 = 0xfee0_0000;
const TIMER_VECTOR: u8 = 0x40;
/// Another core has work for this one.
const DOORBELL_VECTOR: u8 = 0x41;
const SPURIOUS_VECTOR: u8 = 0xff;
const NO_VECTOR: u8 = 0;

/// Registers of the local APIC (Intel SDM volume 3, table 11-1).
mod register {
    pub const IDENTIFIER: u64 = 0x20;
    pub const TASK_PRIORITY: u64 = 0x80;
    pub const END_OF_INTERRUPT: u64 = 0xb0;
    pub const SPURIOUS: u64 = 0xf0;
    pub const COMMAND: u64 = 0x300;
    pub const COMMAND_TARGET: u64 = 0x310;
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
/// Fields of the command register (figure 11-12 there).
const SENDING: u32 = 1 << 12;
const ASSERT: u32 = 1 << 14;
const NON_MASKABLE: u32 = 4 << 8;
const INIT: u32 = 5 << 8;
const START_UP: u32 = 6 << 8;
/// Reads of the command register while an interrupt is being sent. Hypervisors send at once.
const SENDING_READS_MAX: u32 = 100_000;

fn read(register: u64) -> u32 {
    // SAFETY: the local APIC's page is mapped as a device; its registers touch no memory.
    unsafe { ((LOCAL_APIC + register) as *const u32).read_volatile() }
}

fn write(register: u64, value: u32) {
    // SAFETY: as for `read`; interrupts are taken only in the idle service, whatever is enabled.
    unsafe { ((LOCAL_APIC + register) as *mut u32).write_volatile(value) }
}

/// Enables the boot core's APIC, masks what we do not use and measures the timer's rate in Hz, unless the hypervisor reports it.
pub fn initialize(_: &Machine, frequency: &Frequency) {
    // The two 8259s, if there are any, stay silent.
    write_port8(0x21, 0xff);
    write_port8(0xa1, 0xff);
    enable();
    this_core().timer_hz.set(frequency.timer_hz().unwrap_or_else(measure_timer));
    write(register::TIMER, u32::from(TIMER_VECTOR));
}

/// Enables the APIC of a secondary core, whose timer is as fast as the boot core's.
pub fn initialize_secondary(timer_hz: u64) {
    enable();
    this_core().timer_hz.set(timer_hz);
    write(register::TIMER, u32::from(TIMER_VECTOR));
}

fn enable() {
    write(register::SPURIOUS, ENABLED | u32::from(SPURIOUS_VECTOR));
    write(register::TASK_PRIORITY, 0);
    write(register::LINT0, MASKED);
    write(register::LINT1, MASKED);
    write(register::TIMER_DIVIDE, DIVIDE_BY_1);
    write(register::TIMER, MASKED | u32::from(TIMER_VECTOR));
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

/// Makes the core with this APIC wait for [`start_up`].
pub fn init(apic: u8) {
    send(apic, INIT | ASSERT);
}

/// Makes a core that waits for it start at the page with this number, below 256, in 16-bit mode. Others ignore it.
pub fn start_up(apic: u8, page: u8) {
    send(apic, START_UP | ASSERT | u32::from(page));
}

/// Ends a halt of the core with this APIC, or its next one.
pub fn ring(processor: u32) {
    send(processor as u8, ASSERT | u32::from(DOORBELL_VECTOR));
}

/// Stops the core with this APIC wherever it is: see `report.rs`.
pub fn interrupt_unmaskably(processor: u32) {
    send(processor as u8, NON_MASKABLE | ASSERT);
}

fn send(apic: u8, command: u32) {
    write(register::COMMAND_TARGET, u32::from(apic) << 24);
    write(register::COMMAND, command);
    let _ = (0..SENDING_READS_MAX).find(|_| read(register::COMMAND) & SENDING == 0);
}

/// This core's identifier, for who routes interrupts to it.
pub fn identifier() -> u8 {
    (read(register::IDENTIFIER) >> 24) as u8
}

/// The vector of a wake.
pub fn vector(wake: Wake) -> u8 {
    match wake {
        Wake::Timer => TIMER_VECTOR,
        Wake::Interrupt(vector) => vector,
        Wake::Core => DOORBELL_VECTOR,
        Wake::Other => SPURIOUS_VECTOR,
    }
}

/// What a device writes, and where, to interrupt `target` (Intel SDM volume 3, section 11.11): bits 12 to 19 of the address choose an APIC.
/// Which device it is makes no difference.
pub fn message(_device: u16, target: Target) -> Option<(u64, u32)> {
    Some((LOCAL_APIC | u64::from(target.processor) << 12, target.vector.into()))
}

/// Lets interrupts of the same and of lower priority come again.
pub fn end_of_interrupt() {
    write(register::END_OF_INTERRUPT, 0);
}

/// Halts the core until a device or another core needs attention or `deadline` is reached.
///
/// An interrupt raised since the caller last looked ends the halt at once, so arming the devices,
/// looking once more and then calling this loses no wake-up.
pub fn idle(deadline: Option<Instant>) -> Wake {
    if let Some(deadline) = deadline {
        let ns = deadline.since(clock::now()).as_nanos().clamp(1, 1_000_000_000);
        let ticks = ns * u128::from(this_core().timer_hz.get()) / 1_000_000_000;
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
        DOORBELL_VECTOR => {
            end_of_interrupt();
            Wake::Core
        }
        // Without an interrupt: this VM was made while it was halted, as a copy of another one.
        SPURIOUS_VECTOR | NO_VECTOR => Wake::Other,
        UPCALL_VECTOR => {
            end_of_interrupt();
            events::take().map_or(Wake::Other, Wake::Interrupt)
        }
        vector => Wake::Interrupt(vector),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_chooses_the_core_and_its_vector() {
        assert_eq!(message(8, Target { processor: 3, vector: 0x51 }), Some((0xfee0_3000, 0x51)));
    }
}
