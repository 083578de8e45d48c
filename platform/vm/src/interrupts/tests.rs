//! What sources write to their registers.

use super::messages::MESSAGE_BYTES;
use super::{Messages, Pin, Source, Target, Trigger};
use alloc::vec::Vec;
use glass_drivers_device::Registers;

#[derive(Default)]
struct Window {
    bytes: usize,
    writes: Vec<(usize, u32)>,
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

const TARGET: Target = Target { apic: 3, vector: 0x51 };

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

#[test]
fn a_message_is_a_write_to_the_local_apic() {
    let mut window = Window { bytes: 3 * MESSAGE_BYTES, ..Window::default() };
    let mut messages = Messages::new(&mut window, 3);
    assert_eq!(messages.count(), 3);
    messages.route(2, TARGET);
    messages.mask(1);
    let expected = [(32, 0xfee0_3000), (36, 0), (40, 0x51), (44, 0), (28, 1)];
    assert_eq!(window.writes, expected);
}
