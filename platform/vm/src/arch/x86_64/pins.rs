//! Pins of I/O APICs: one interrupt a device, by a line that it raises and lowers.

use crate::interrupts::{Source, Target, Trigger};
use crate::machine::Machine;
use crate::memory::registers;
use alloc::boxed::Box;
use glass_drivers_device::Registers;

const REGISTER_SELECT: usize = 0x00;
const REGISTER_DATA: usize = 0x10;
/// Length of an I/O APIC's registers.
const IO_APIC_BYTES: usize = 0x20;
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
        self.write(1, u32::from(target.processor) << 24);
        self.write(0, u32::from(target.vector) | trigger);
    }

    fn mask(&mut self, _index: u16) {
        self.write(0, MASKED);
    }
}

/// The pin that global system interrupt `interrupt` is on; `None` if no I/O APIC has it.
pub fn pin_of(machine: &Machine, interrupt: u32, trigger: Trigger) -> Option<Box<dyn Source>> {
    let candidates = machine.io_apics.iter().filter(|apic| apic.first_interrupt <= interrupt);
    let io_apic = candidates.max_by_key(|apic| apic.first_interrupt)?;
    // SAFETY: a table or an architectural address places an I/O APIC there; each pin's source touches its own pin only, and all
    // of them run on one core.
    let io_apic_registers = unsafe { registers(io_apic.address..io_apic.address + IO_APIC_BYTES as u64) }?;
    Some(Box::new(Pin::new(io_apic_registers, interrupt - io_apic.first_interrupt, trigger)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interrupts::Window;

    const TARGET: Target = Target { processor: 3, vector: 0x51 };

    #[test]
    fn a_pin_has_its_own_entry() {
        for (trigger, bits) in [
            (Trigger::Edge, 0),
            (Trigger::Level { is_active_low: false }, 1 << 15),
            (Trigger::Level { is_active_low: true }, 1 << 15 | 1 << 13),
        ] {
            let mut window = Window { bytes: 32, ..Window::default() };
            let mut pin = Pin::new(&mut window, 12, trigger).unwrap();
            assert_eq!(pin.count(), 1);
            pin.route(0, TARGET);
            pin.mask(0);
            // The target first: the low half unmasks.
            let expected = [(0, 0x29), (16, 3 << 24), (0, 0x28), (16, 0x51 | bits), (0, 0x28), (16, 1 << 16)];
            assert_eq!(window.writes, expected);
        }
        assert!(Pin::new(&mut Window { bytes: 32, ..Window::default() }, 120, Trigger::Edge).is_none());
        assert!(Pin::new(&mut Window { bytes: 16, ..Window::default() }, 1, Trigger::Edge).is_none());
    }
}
