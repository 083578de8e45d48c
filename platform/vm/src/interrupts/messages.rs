//! MSI-X: interrupts that are writes of a device to the memory of an interrupt controller (PCI 3.0, section 6.8.2).

use super::{Source, Target};
use crate::arch::controller;
use crate::serial::print_line;
use glass_drivers_device::Registers;

/// Length of an entry of a device's table of messages.
pub const MESSAGE_BYTES: usize = 16;
const ADDRESS_LOW: usize = 0;
const ADDRESS_HIGH: usize = 4;
const DATA: usize = 8;
const CONTROL: usize = 12;
const CONTROL_MASKED: u32 = 1;

/// A device's messages, which must be enabled in its configuration space.
#[derive(Debug)]
pub struct Messages<R> {
    table: R,
    count: u16,
    /// The device's place on its bus.
    device: u16,
}

impl<R: Registers> Messages<R> {
    /// The first `count` messages of the device at this place, with this table.
    ///
    /// # Panics
    /// If the table has fewer.
    pub fn new(table: R, count: u16, device: u16) -> Messages<R> {
        assert!(count > 0 && usize::from(count) * MESSAGE_BYTES <= table.bytes());
        Messages { table, count, device }
    }

    fn write(&mut self, index: u16, field: usize, value: u32) {
        self.table.write_u32(usize::from(index) * MESSAGE_BYTES + field, value);
    }
}

impl<R: Registers> Source for Messages<R> {
    fn count(&self) -> u16 {
        self.count
    }

    fn route(&mut self, index: u16, target: Target) {
        // A message whose fields change must be masked, as all are at first.
        let Some((address, data)) = controller::message(self.device, target) else {
            return print_line(format_args!("a device does not work: nothing takes its message {index}"));
        };
        self.write(index, ADDRESS_LOW, address as u32);
        self.write(index, ADDRESS_HIGH, (address >> 32) as u32);
        self.write(index, DATA, data);
        self.write(index, CONTROL, 0);
    }

    fn mask(&mut self, index: u16) {
        self.write(index, CONTROL, CONTROL_MASKED);
    }
}
