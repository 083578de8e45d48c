//! MSI-X: interrupts that are writes of a device to the local APIC's memory (PCI 3.0, section 6.8.2; Intel SDM volume 3, section
//! 11.11).

use super::{Source, Target};
use glass_drivers_device::Registers;

/// Length of an entry of a device's table of messages.
pub const MESSAGE_BYTES: usize = 16;
const ADDRESS_LOW: usize = 0;
const ADDRESS_HIGH: usize = 4;
const DATA: usize = 8;
const CONTROL: usize = 12;
const CONTROL_MASKED: u32 = 1;
/// Where local APICs take messages: bits 12 to 19 choose one.
const LOCAL_APICS: u32 = 0xfee0_0000;

/// A device's messages, which must be enabled in its configuration space.
#[derive(Debug)]
pub struct Messages<R> {
    table: R,
    count: u16,
}

impl<R: Registers> Messages<R> {
    /// The first `count` messages of a device with this table.
    ///
    /// # Panics
    /// If the table has fewer.
    pub fn new(table: R, count: u16) -> Messages<R> {
        assert!(count > 0 && usize::from(count) * MESSAGE_BYTES <= table.bytes());
        Messages { table, count }
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
        self.write(index, ADDRESS_LOW, LOCAL_APICS | u32::from(target.apic) << 12);
        self.write(index, ADDRESS_HIGH, 0);
        self.write(index, DATA, target.vector.into());
        self.write(index, CONTROL, 0);
    }

    fn mask(&mut self, index: u16) {
        self.write(index, CONTROL, CONTROL_MASKED);
    }
}
