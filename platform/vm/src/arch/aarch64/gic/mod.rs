//! Arm's Generic Interrupt Controller, version 2 or 3, and the virtual timer: what ends a halt.
//!
//! Our interrupts are of group 1 and arrive as IRQs, which are always masked. So they wait, end a halt, and are acknowledged afterwards. Only the
//! interrupt by which a crash stops the other cores is of group 0: it arrives as an FIQ, wherever a core is.

mod distributor;
mod its;
mod messages;
pub mod pins;
mod v2;
mod v3;

use super::time::Frequency;
use super::{halt, machine::Gic, ticks};
use crate::clock;
use crate::cores::this_core;
use crate::interrupts::{FIRST_VECTOR, Wake};
use crate::machine::{Machine, Ram};
use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering};
use distributor::Bank;
use glass_api::Instant;
pub use messages::{Taker, message};

/// Interrupts of a core: two that other cores send, and the virtual timer's (Arm Base System Architecture, section 4.1.5).
const DOORBELL: u32 = 0;
const STOP: u32 = 1;
const TIMER: u32 = 27;
/// Interrupts from here to the last one stand for none (GIC architecture specification, section 2.2.1).
const SPECIAL: u32 = 1020;
const LAST_SPECIAL: u32 = 1023;
/// What [`vector`] returns for the timer, for other cores and for nothing; devices have others.
const TIMER_VECTOR: u8 = 0x40;
const DOORBELL_VECTOR: u8 = 0x41;
const SPURIOUS_VECTOR: u8 = 0xff;
/// Of all interrupts of group 1. Those of group 0 have 0, which is more urgent, so the one that is being handled does not hold them up.
const PRIORITY: u8 = 0xa0;
/// What a core accepts: all.
const PRIORITY_MASK: u8 = 0xf0;

/// The version is 3.
static IS_V3: AtomicBool = AtomicBool::new(false);

impl Gic {
    /// The registers that are used, on a machine of so many processors.
    pub fn registers(&self, processors: u64) -> [Ram; 2] {
        match *self {
            Gic::V2 { distributor, interfaces } => [distributor, interfaces],
            Gic::V3 { distributor, redistributors: (start, end) } => {
                [distributor, (start, end.min(start + processors * v3::FRAMES_BYTES_MAX))]
            }
        }
    }
}

/// Switches the controller and the boot core's part of it on.
pub fn initialize(machine: &Machine, frequency: &Frequency) {
    match machine.gic {
        Gic::V2 { distributor: (distributor, _), interfaces: (interfaces, _) } => v2::start(distributor, interfaces),
        Gic::V3 { distributor: (distributor, _), redistributors } => {
            IS_V3.store(true, Ordering::Relaxed);
            v3::start(distributor, redistributors);
        }
    }
    initialize_secondary(frequency.hz());
    machine.messages.into_iter().for_each(Taker::start);
}

/// Switches a core's own part on.
pub fn initialize_secondary(timer_hz: u64) {
    this_core().timer_hz.set(timer_hz);
    let private = if is_v3() { v3::redistributor() } else { Some(v2::private()) };
    // A core without a redistributor does not exist on a machine that its tree describes well; it would never wake.
    if let Some(private) = private {
        initialize_private(private);
    }
    if is_v3() { v3::start_interface() } else { v2::start_interface() }
}

fn initialize_private(private: Bank) {
    for interrupt in [DOORBELL, TIMER] {
        private.set_group_1(interrupt);
        private.set_priority(interrupt, PRIORITY);
    }
    private.set_priority(STOP, 0);
    [DOORBELL, STOP, TIMER].into_iter().for_each(|interrupt| private.enable(interrupt));
}

fn is_v3() -> bool {
    IS_V3.load(Ordering::Relaxed)
}

/// This core, for who routes interrupts to it: pins are routed to the core that routes them, so any number is as good.
pub fn identifier() -> u8 {
    0
}

/// Ends a halt of the processor with this affinity, or its next one.
pub fn ring(processor: u32) {
    send(processor, DOORBELL);
}

/// Stops that processor wherever it is: see `report.rs`.
pub fn interrupt_unmaskably(processor: u32) {
    send(processor, STOP);
}

fn send(processor: u32, interrupt: u32) {
    if is_v3() { v3::send(processor, interrupt) } else { v2::send(processor, interrupt) }
}

/// The number of a wake, for the trace.
pub fn vector(wake: Wake) -> u8 {
    match wake {
        Wake::Timer => TIMER_VECTOR,
        Wake::Interrupt(vector) => vector,
        Wake::Core => DOORBELL_VECTOR,
        Wake::Other => SPURIOUS_VECTOR,
    }
}

/// Lets the interrupt that ended the last halt come again.
pub fn end_of_interrupt() {
    end(this_core().arch.acknowledged.get());
}

fn end(acknowledged: u32) {
    if is_v3() { v3::end(acknowledged) } else { v2::end(acknowledged) }
}

/// Halts the core until a device or another core needs attention or `deadline` is reached.
///
/// An interrupt raised since the caller last looked ends the halt at once, so arming the devices,
/// looking once more and then calling this loses no wake-up.
pub fn idle(deadline: Option<Instant>) -> Wake {
    if let Some(deadline) = deadline {
        let ns = deadline.since(clock::now()).as_nanos().clamp(1, 1_000_000_000);
        let after = ns * u128::from(this_core().timer_hz.get()) / 1_000_000_000;
        set_timer(Some(ticks() + after as u64));
    }
    halt();
    // Its line is a level, which must fall before the end of the interrupt.
    if deadline.is_some() {
        set_timer(None);
    }
    let acknowledged = if is_v3() { v3::acknowledge() } else { v2::acknowledge() };
    this_core().arch.acknowledged.set(acknowledged);
    // An interrupt of another core of version 2 has that one's number above.
    match acknowledged & if is_v3() { 0xff_ffff } else { 0x3ff } {
        SPECIAL..=LAST_SPECIAL => Wake::Other,
        message @ its::FIRST_INTERRUPT.. => Wake::Interrupt(FIRST_VECTOR + (message - its::FIRST_INTERRUPT) as u8),
        TIMER => {
            end(acknowledged);
            Wake::Timer
        }
        DOORBELL => {
            end(acknowledged);
            Wake::Core
        }
        interrupt => match pins::vector_of(interrupt) {
            Some(vector) => Wake::Interrupt(vector),
            None => {
                end(acknowledged);
                Wake::Other
            }
        },
    }
}

/// Lets the timer interrupt when the counter is at `ticks`, or never.
fn set_timer(ticks: Option<u64>) {
    // SAFETY: registers of the virtual timer, which touch no memory. Bit 0 enables it.
    unsafe {
        match ticks {
            Some(ticks) => {
                asm!("msr cntv_cval_el0, {}", "msr cntv_ctl_el0, {}", "isb", in(reg) ticks, in(reg) 1_u64, options(nostack));
            }
            None => asm!("msr cntv_ctl_el0, xzr", "isb", options(nostack)),
        }
    }
}
