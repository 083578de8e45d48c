//! What sources write to their registers.

use super::messages::MESSAGE_BYTES;
use super::{Messages, Source, Target};
use crate::arch::controller;
use alloc::vec::Vec;
use glass_drivers_device::Registers;

/// Registers that are written only.
#[derive(Default)]
pub struct Window {
    pub bytes: usize,
    pub writes: Vec<(usize, u32)>,
}

impl Registers for &mut Window {
    fn read_u8(&mut self, _: usize) -> u8 {
        panic!("interrupts are written only")
    }
    fn read_u16(&mut self, _: usize) -> u16 {
        panic!("interrupts are written only")
    }
    fn read_u32(&mut self, _: usize) -> u32 {
        panic!("interrupts are written only")
    }
    fn write_u8(&mut self, _: usize, _: u8) {
        panic!("registers are 32 bits wide")
    }
    fn write_u16(&mut self, _: usize, _: u16) {
        panic!("registers are 32 bits wide")
    }
    fn write_u32(&mut self, offset: usize, value: u32) {
        assert!(offset + 4 <= self.bytes);
        self.writes.push((offset, value));
    }
    fn bytes(&self) -> usize {
        self.bytes
    }
}

const TARGET: Target = Target { processor: 3, vector: 0x51 };

#[test]
fn a_message_is_a_write_to_the_interrupt_controller() {
    let mut window = Window { bytes: 3 * MESSAGE_BYTES, ..Window::default() };
    let mut messages = Messages::new(&mut window, 3, 8);
    assert_eq!(messages.count(), 3);
    messages.route(2, TARGET);
    messages.mask(1);
    // Of AArch64 the device tree names what takes messages.
    let Some((address, data)) = controller::message(8, TARGET) else { return };
    let expected = [(32, address as u32), (36, (address >> 32) as u32), (40, data), (44, 0), (28, 1)];
    assert_eq!(window.writes, expected);
}
