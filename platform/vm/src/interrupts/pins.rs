//! Pins of I/O APICs: one interrupt a device, by a line that it raises and lowers.

use super::{Source, Target};
use glass_drivers_device::Registers;

/// When a pin interrupts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// When its line rises.
    ///
    /// Right for a device that has its line to itself, although virtio-mmio drives a level: the line falls when its interrupt is
    /// acknowledged and rises anew with the next, and the queue is looked at after the acknowledgement. A level pin costs one more exit
    /// and, on some hosts, a second wake-up.
    Edge,
    /// As long as its line is up, or down if it is active when low: several devices may share it.
    Level {
        /// The line is active when low.
        is_active_low: bool,
    },
}

const REGISTER_SELECT: usize = 0x00;
const REGISTER_DATA: usize = 0x10;
/// Length of an I/O APIC's registers.
pub const IO_APIC_BYTES: usize = 0x20;
/// Number of the first pin's redirection entry; each has two registers.
const FIRST_ENTRY: u32 = 0x10;
const ACTIVE_LOW: u32 = 1 << 13;
const LEVEL: u32 = 1 << 15;
const MASKED: u32 = 1 << 16;
/// Register numbers are bytes.
const PINS_MAX: u32 = 120;

/// A pin of an I/O APIC, which is an interrupt source of one interrupt.
#[derive(Debug)]
pub struct Pin<R> {
    io_apic: R,
    pin: u32,
    trigger: Trigger,
}

impl<R: Registers> Pin<R> {
    /// Pin number `pin` of the I/O APIC with these registers; `None` if there can be no such pin.
    pub fn new(io_apic: R, pin: u32, trigger: Trigger) -> Option<Pin<R>> {
        (pin < PINS_MAX && io_apic.bytes() >= IO_APIC_BYTES).then_some(Pin { io_apic, pin, trigger })
    }

    fn write(&mut self, register: u32, value: u32) {
        self.io_apic.write_u32(REGISTER_SELECT, FIRST_ENTRY + 2 * self.pin + register);
        self.io_apic.write_u32(REGISTER_DATA, value);
    }
}

impl<R: Registers> Source for Pin<R> {
    fn count(&self) -> u16 {
        1
    }

    fn route(&mut self, _index: u16, target: Target) {
        let trigger = match self.trigger {
            Trigger::Edge => 0,
            Trigger::Level { is_active_low } => LEVEL | if is_active_low { ACTIVE_LOW } else { 0 },
        };
        self.write(1, u32::from(target.apic) << 24);
        self.write(0, u32::from(target.vector) | trigger);
    }

    fn mask(&mut self, _index: u16) {
        self.write(0, MASKED);
    }
}
