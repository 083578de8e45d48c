//! PCI functions of every kind: capabilities that are wrong, registers that remember.

use crate::error::TransportError;
use crate::pci::{PciConfig, PciLayout, PciRegion, PciTransport, pci_capabilities, pci_device_kind};
use crate::transport::{QueueAddresses, Transport};
use alloc::vec;
use alloc::vec::Vec;
use glass_drivers_device::{Registers, SetupError};
use proptest::prelude::*;
use std::sync::{Arc, Mutex};

struct Config([u8; 256]);

impl PciConfig for Config {
    fn read(&mut self, offset: u16) -> u32 {
        assert!(offset.is_multiple_of(4) && offset < 256);
        let at = usize::from(offset);
        u32::from_le_bytes(self.0[at..at + 4].try_into().unwrap())
    }
    fn write(&mut self, _: u16, _: u32) {
        panic!("reading changes nothing");
    }
}

impl Config {
    /// A function whose capabilities stand at 0x40, 0x50, ...: identifier, type, bar, offset, length, and a word more.
    fn new(capabilities: &[(u8, u8, u8, u32, u32, u32)]) -> Config {
        let mut bytes = [0; 256];
        bytes[0x34] = 0x40;
        for (index, (id, kind, bar, offset, length, more)) in capabilities.iter().enumerate() {
            let at = 0x40 + 0x18 * index;
            let next = if index + 1 < capabilities.len() { at as u8 + 0x18 } else { 0 };
            bytes[at..at + 4].copy_from_slice(&[*id, next, 20, *kind]);
            bytes[at + 4] = *bar;
            for (place, value) in [(8, offset), (12, length), (16, more)] {
                bytes[at + place..at + place + 4].copy_from_slice(&value.to_le_bytes());
            }
        }
        Config(bytes)
    }
}

/// As QEMU has them.
const HONEST: [(u8, u8, u8, u32, u32, u32); 5] = [
    (0x11, 0, 1, 0, 0, 0),
    (9, 1, 4, 0, 0x1000, 0),
    (9, 3, 4, 0x1000, 0x1000, 0),
    (9, 4, 4, 0x2000, 0x1000, 0),
    (9, 2, 4, 0x3000, 0x1000, 4),
];

#[test]
fn a_layout_is_read_from_its_capabilities() {
    let layout = PciLayout::read(&mut Config::new(&HONEST)).unwrap();
    let region = |offset| PciRegion { bar: 4, offset, bytes: 0x1000 };
    let expected =
        PciLayout { common: region(0), notify: region(0x3000), notify_multiplier: 4, device: region(0x2000) };
    assert_eq!(layout, expected);
    assert_eq!(pci_capabilities(&mut Config::new(&HONEST), 0x11), [0x40]);
    // Of several of one type the first counts.
    let others = [(9, 1, 5, 0x10, 0x2000, 0), (9, 4, 5, 0x20, 0x2000, 0), (9, 2, 5, 0x30, 0x2000, 8)];
    assert_eq!(PciLayout::read(&mut Config::new(&[&HONEST[..], &others].concat())), Ok(expected));
    // A device without a configuration of its own.
    let without = [HONEST[1], HONEST[4]];
    assert_eq!(PciLayout::read(&mut Config::new(&without)).unwrap().device.bytes, 0);
}

#[test]
fn capabilities_that_lie_are_no_layout() {
    let kinds = |capabilities: &[_]| PciLayout::read(&mut Config::new(capabilities)).err();
    assert_eq!(kinds(&[HONEST[1]]), Some(TransportError::NoCapability { kind: 2 }));
    assert_eq!(kinds(&[HONEST[4]]), Some(TransportError::NoCapability { kind: 1 }));
    let short = (9, 1, 4, 0, 0x37, 0);
    let reserved_bar = (9, 1, 6, 0, 0x1000, 0);
    let unaligned = (9, 1, 4, 2, 0x1000, 0);
    for device in [short, reserved_bar, unaligned] {
        assert_eq!(kinds(&[device, HONEST[4]]), Some(TransportError::NoCapability { kind: 1 }));
    }
    // A list that is a ring ends.
    let mut ring = Config::new(&HONEST);
    ring.0[0x41] = 0x40;
    assert!(pci_capabilities(&mut ring, 0x11).len() < 100);
}

/// Its list may name places at the very end, where only a short capability fits.
#[test]
fn a_capability_that_does_not_fit_into_the_space_is_left_out() {
    let with = |kind: u8, at: usize| {
        let mut config = Config::new(&HONEST[1..]);
        // The last one of the list, which is the one for notifications, and another one before all.
        let moved = if kind == 2 { 0x40 + 0x18 * 3 } else { 0x40 };
        let capability: [u8; 20] = config.0[moved..moved + 20].try_into().unwrap();
        let bytes = if kind == 2 { 20 } else { 16 }.min(256 - at);
        config.0[at..at + bytes].copy_from_slice(&capability[..bytes]);
        config.0[moved] = 0x11;
        config.0[at + 1] = 0x40;
        config.0[0x34] = at as u8;
        config.0[0x40 + 0x18 * 3 + 1] = 0;
        PciLayout::read(&mut config).err()
    };
    assert_eq!((with(2, 0xec), with(1, 0xf0)), (None, None));
    assert_eq!(with(2, 0xf0), Some(TransportError::NoCapability { kind: 2 }));
    assert_eq!(with(1, 0xf4), Some(TransportError::NoCapability { kind: 1 }));
}

#[test]
fn kinds_are_known_by_their_numbers() {
    assert_eq!(pci_device_kind(0x1af4, 0x1042, 7), Some(2));
    assert_eq!(pci_device_kind(0x1af4, 0x1000, 1), Some(1));
    assert_eq!(pci_device_kind(0x1af4, 0x1110, 1), None);
    assert_eq!(pci_device_kind(0x8086, 0x1042, 2), None);
}

/// Registers that remember each write, with its width.
#[derive(Clone)]
struct Window {
    bytes: Vec<u8>,
    writes: Arc<Mutex<Vec<(usize, usize, u64)>>>,
    /// The device has room for so many interrupts.
    vectors: u16,
}

impl Window {
    fn new(length: usize) -> Window {
        Window { bytes: vec![0; length], writes: Arc::default(), vectors: 9 }
    }

    fn write(&mut self, offset: usize, width: usize, value: u64) {
        self.writes.lock().unwrap().push((offset, width, value));
        let is_vector = offset == 0x10 || offset == 0x1a;
        let value = if is_vector && value >= u64::from(self.vectors) { 0xffff } else { value };
        self.bytes[offset..offset + width].copy_from_slice(&value.to_le_bytes()[..width]);
    }

    fn read(&self, offset: usize, width: usize) -> u64 {
        assert!(offset.is_multiple_of(width));
        self.bytes[offset..offset + width].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
    }
}

impl Registers for Window {
    fn read_u8(&mut self, offset: usize) -> u8 {
        self.read(offset, 1) as u8
    }
    fn read_u16(&mut self, offset: usize) -> u16 {
        self.read(offset, 2) as u16
    }
    fn read_u32(&mut self, offset: usize) -> u32 {
        self.read(offset, 4) as u32
    }
    fn write_u8(&mut self, offset: usize, value: u8) {
        self.write(offset, 1, value.into());
    }
    fn write_u16(&mut self, offset: usize, value: u16) {
        self.write(offset, 2, value.into());
    }
    fn write_u32(&mut self, offset: usize, value: u32) {
        self.write(offset, 4, value.into());
    }
    fn bytes(&self) -> usize {
        self.bytes.len()
    }
}

const ADDRESSES: QueueAddresses = QueueAddresses { size: 16, descriptors: 1 << 32 | 2, available: 3, used: 4 };

struct Device {
    transport: PciTransport<Window>,
    common: Window,
    notify: Window,
}

fn device(messages: u16, change: impl FnOnce(&mut Window)) -> Device {
    let layout = PciLayout::read(&mut Config::new(&HONEST)).unwrap();
    let (mut common, notify, mut own) = (Window::new(0x38), Window::new(64), Window::new(6));
    own.bytes.copy_from_slice(&[1, 2, 3, 4, 5, 6]);
    change(&mut common);
    let windows = [common.clone(), notify.clone(), own];
    Device { transport: PciTransport::new(2, &layout, windows, messages), common, notify }
}

#[test]
fn each_queue_has_a_message_and_a_place_to_be_notified() {
    for (messages, expected) in [(4, [0, 1, 2]), (2, [0, 1, 1]), (1, [0, 0, 0])] {
        let mut device = device(messages, |common| common.bytes[0x1e] = 5);
        for queue in [0, 7] {
            // SAFETY: there is no device.
            unsafe { device.transport.write_queue(queue, &ADDRESSES) }.unwrap();
        }
        let writes = device.common.writes.lock().unwrap().clone();
        let vectors: Vec<u64> = writes.iter().filter(|write| matches!(write.0, 0x10 | 0x1a)).map(|w| w.2).collect();
        assert_eq!(vectors, expected, "{messages} messages");
        let enabled = writes.iter().filter(|write| **write == (0x1c, 2, 1)).count();
        assert_eq!(enabled, 2);
        assert!(writes.contains(&(0x20, 4, 2)) && writes.contains(&(0x24, 4, 1)) && writes.contains(&(0x18, 2, 16)));
        device.transport.notify(7);
        device.transport.notify(3);
        assert_eq!(*device.notify.writes.lock().unwrap(), [(20, 2, 7)], "queue 3 does not exist");
        device.transport.acknowledge_interrupt();
        assert_eq!(device.common.writes.lock().unwrap().len(), writes.len(), "a message needs none");
        // After a reset the messages are given out anew.
        device.transport.write_status(0);
        // SAFETY: there is no device.
        unsafe { device.transport.write_queue(7, &ADDRESSES) }.unwrap();
        assert!(device.common.writes.lock().unwrap()[writes.len() + 1..].starts_with(&[(0x10, 2, 0)]));
    }
}

#[test]
fn a_queue_without_an_interrupt_or_a_place_is_an_error() {
    let queue = |mut device: Device, number| {
        // SAFETY: there is no device.
        unsafe { device.transport.write_queue(number, &ADDRESSES) }.err()
    };
    let refused = queue(device(4, |common| common.vectors = 1), 3);
    assert_eq!(refused, Some(SetupError::InterruptRefused { queue: 3 }));
    let none = queue(device(4, |common| common.vectors = 0), 3);
    assert_eq!(none, Some(SetupError::InterruptRefused { queue: 3 }));
    // 64 bytes of notifications, four for each queue.
    assert_eq!(queue(device(4, |common| common.bytes[0x1e] = 15), 0), None);
    assert!(matches!(queue(device(4, |common| common.bytes[0x1e] = 16), 0), Some(SetupError::BadConfig(_))));
}

#[test]
fn features_are_written_in_halves() {
    let mut device = device(4, |_| {});
    device.transport.write_features(5 << 32 | 3);
    let expected = [(0x08, 4, 0), (0x0c, 4, 3), (0x08, 4, 1), (0x0c, 4, 5)];
    assert_eq!(*device.common.writes.lock().unwrap(), expected);
}

#[test]
fn what_the_device_reports_is_read_from_its_registers() {
    let mut device = device(4, |common| {
        common.bytes[0x04..0x08].copy_from_slice(&[0x10, 0, 0, 0x80]);
        common.bytes[0x14..0x16].copy_from_slice(&[11, 7]);
        common.bytes[0x18..0x1a].copy_from_slice(&[0, 1]);
    });
    assert_eq!(device.transport.device_id(), 2);
    assert_eq!((device.transport.read_status(), device.transport.read_config_generation()), (11, 7));
    assert_eq!(device.transport.read_features(), 0x8000_0010_8000_0010);
    assert_eq!(device.transport.read_queue_size_max(5), 256);
    device.transport.write_status(3);
    // The halves of the features and the queue are chosen before they are read.
    assert_eq!(*device.common.writes.lock().unwrap(), [(0x00, 4, 0), (0x00, 4, 1), (0x16, 2, 5), (0x14, 1, 3)]);
}

#[test]
#[should_panic(expected = "assertion failed: messages > 0")]
fn a_device_has_a_message() {
    device(0, |_| {});
}

#[test]
#[should_panic(expected = "assertion failed: messages > 0")]
fn a_window_has_all_common_registers() {
    device(4, |common| _ = common.bytes.pop());
}

#[test]
fn the_configuration_is_read_in_its_width_and_ends() {
    let mut device = device(4, |_| {});
    assert_eq!((device.transport.read_config_u8(5), device.transport.read_config_u16(4)), (6, 0x0605));
    assert_eq!(device.transport.read_config_u32(0), 0x0403_0201);
    assert_eq!((device.transport.read_config_u32(4), device.transport.read_config_u8(6)), (0, 0));
}

proptest! {
    #[test]
    fn no_configuration_space_makes_it_panic(changes in prop::collection::vec((0usize..256, any::<u8>()), 0..20)) {
        let mut config = Config::new(&HONEST);
        changes.into_iter().for_each(|(at, byte)| config.0[at] = byte);
        if let Ok(layout) = PciLayout::read(&mut config) {
            prop_assert!(layout.common.bytes >= 0x38 && layout.common.bar <= 5 && layout.notify.bytes >= 2);
        }
    }
}
