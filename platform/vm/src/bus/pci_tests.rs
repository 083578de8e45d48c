//! PCI buses with and without firmware, and functions that are wrong.

use super::pci::{FreeAddresses, Function, OpenError, Spaces, open, virtio_functions};
use crate::machine::PciSegment;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use glass_drivers_virtio::TransportError;

const ECAM: u64 = 0xe000_0000;

/// A function: its words, and how long the memory behind each base address register is (0: none).
#[derive(Clone)]
struct Card {
    words: [u32; 64],
    bar_bytes: [u32; 6],
}

impl Card {
    fn new(vendor: u16, device: u16) -> Card {
        let mut words = [0; 64];
        words[0] = u32::from(vendor) | u32::from(device) << 16;
        Card { words, bar_bytes: [0; 6] }
    }

    fn bridge(bus: u8) -> Card {
        let mut card = Card::new(0x8086, 1);
        card.words[3] = 1 << 16;
        card.words[6] = u32::from(bus) << 8;
        card
    }

    /// A virtio device as QEMU makes it: messages in bar 1, registers in bar 4, which is 64 bits wide.
    fn virtio(device: u16) -> Card {
        let mut card = Card::new(0x1af4, device);
        card.bar_bytes = [0, 4096, 0, 0, 0x4000, 0];
        card.words[4 + 4] = 4 | 8;
        card.words[0x34 / 4] = 0x98;
        // Messages: three, at offset 0 of bar 1.
        card.words[0x98 / 4] = 0x11 | 0x84 << 8 | 2 << 16;
        card.words[0x9c / 4] = 1;
        for (at, next, kind, offset) in
            [(0x84, 0x70, 1, 0), (0x70, 0x60, 3, 0x1000), (0x60, 0x50, 4, 0x2000), (0x50, 0, 2, 0x3000)]
        {
            let words = [9 | next << 8 | 20 << 16 | kind << 24, 4, offset, 0x1000];
            card.words[at / 4..at / 4 + 4].copy_from_slice(&words);
        }
        card.words[0x60 / 4] = 9 | 0x40 << 8 | 16 << 16 | 4 << 24;
        let notify = [9 | 20 << 16 | 2 << 24, 4, 0x3000, 0x1000, 4];
        card.words[0x40 / 4..0x40 / 4 + 5].copy_from_slice(&notify);
        card
    }

    fn write(&mut self, offset: u16, value: u32) {
        let word = usize::from(offset / 4);
        match word {
            4..=9 => {
                let bar = word - 4;
                let flags = self.words[word] & 15;
                let is_high = bar > 0 && self.words[word - 1] & 6 == 4 && self.bar_bytes[bar - 1] > 0;
                let kept = if is_high { value } else { value & !self.bar_bytes[bar].wrapping_sub(1) };
                self.words[word] = match self.bar_bytes[bar] {
                    0 if !is_high => 0,
                    _ if is_high => kept,
                    _ => kept & !15 | flags,
                };
            }
            _ => self.words[word] = value,
        }
    }
}

#[derive(Default)]
struct Bus(BTreeMap<Function, Card>);

impl Spaces for Bus {
    fn read(&mut self, function: Function, offset: u16) -> u32 {
        self.0.get(&function).map_or(u32::MAX, |card| card.words[usize::from(offset / 4)])
    }
    fn write(&mut self, function: Function, offset: u16, value: u32) {
        if let Some(card) = self.0.get_mut(&function) {
            card.write(offset, value);
        }
    }
}

fn at(bus: u8, device: u8, function: u8) -> Function {
    Function { bus, device, function }
}

/// The only function of a bus.
fn alone(card: Card) -> (Bus, Function) {
    (Bus([(at(0, 1, 0), card)].into()), at(0, 1, 0))
}

fn free() -> FreeAddresses {
    let segment = PciSegment { address: ECAM, first_bus: 0, last_bus: 255, window: None };
    FreeAddresses::of(&segment, &[(0, 0xa_0000), (0x10_0000, 0x400_0000), (1 << 32, 6 << 30)])
}

#[test]
fn functions_are_found_on_all_buses() {
    let mut second = Card::virtio(0x1041);
    second.words[3] = 0x80 << 16;
    let mut old = Card::virtio(0x1000);
    old.words[0x2c / 4] = 1 << 16;
    let mut bus = Bus::default();
    bus.0.insert(at(0, 0, 0), Card::new(0x8086, 0x29c0));
    bus.0.insert(at(0, 1, 0), Card::virtio(0x1042));
    bus.0.insert(at(0, 1, 1), Card::virtio(0x1042));
    bus.0.insert(at(0, 2, 0), second);
    bus.0.insert(at(0, 2, 5), Card::virtio(0x1044));
    bus.0.insert(at(0, 3, 0), Card::bridge(2));
    // A bridge that leads back, and one to a bus that does not belong to the segment.
    bus.0.insert(at(0, 4, 0), Card::bridge(0));
    bus.0.insert(at(0, 5, 0), Card::bridge(9));
    bus.0.insert(at(2, 0, 0), Card::bridge(2));
    bus.0.insert(at(2, 31, 0), old);
    bus.0.insert(at(9, 0, 0), Card::virtio(0x1042));
    let found = virtio_functions(&mut bus, 0, 4);
    // The second function of a device that has only one is a mirror.
    let expected = [(at(0, 1, 0), 2), (at(0, 2, 0), 1), (at(0, 2, 5), 4), (at(2, 31, 0), 1)];
    assert_eq!(found, expected);
    assert!(virtio_functions(&mut Bus::default(), 0, 255).is_empty());
}

#[test]
fn registers_get_places_where_there_is_no_firmware() {
    let (mut bus, function) = alone(Card::virtio(0x1042));
    let mut free = free();
    let opened = open(&mut bus, function, &mut free).unwrap();
    let registers = ECAM - 0x4000;
    assert_eq!(opened.windows[0], registers..registers + 0x1000);
    assert_eq!(opened.windows[1], registers + 0x3000..registers + 0x4000);
    assert_eq!(opened.windows[2], registers + 0x2000..registers + 0x3000);
    assert_eq!((opened.messages.clone(), opened.message_count), (registers - 0x1000..registers - 0x1000 + 48, 3));
    let words = &bus.0[&function].words;
    assert_eq!((words[8], words[9], words[5]), (registers as u32 | 12, 0, registers as u32 - 0x1000));
    // It may access memory and has no line; its messages are enabled, none of all are masked together.
    assert_eq!((words[1] & 0x406, words[0x98 / 4] >> 30), (0x406, 2));
    // The next device lies below, at a multiple of its length.
    let (mut other, function) = alone(Card::virtio(0x1041));
    assert_eq!(open(&mut other, function, &mut free).unwrap().windows[0].end, registers - 0x8000 + 0x1000);
}

/// Counts the reads of each word since it was last written.
struct Counted(Bus, BTreeMap<u16, u32>);

impl Spaces for Counted {
    fn read(&mut self, function: Function, offset: u16) -> u32 {
        *self.1.entry(offset).or_default() += 1;
        self.0.read(function, offset)
    }
    fn write(&mut self, function: Function, offset: u16, value: u32) {
        self.1.remove(&offset);
        self.0.write(function, offset, value);
    }
}

#[test]
fn no_word_costs_two_exits() {
    let (bus, function) = alone(Card::virtio(0x1042));
    let mut counted = Counted(bus, BTreeMap::new());
    open(&mut counted, function, &mut free()).unwrap();
    assert!(counted.1.len() > 15 && counted.1.values().all(|reads| *reads == 1), "{:?}", counted.1);
}

#[test]
fn registers_stay_where_the_firmware_has_put_them() {
    let mut card = Card::virtio(0x1042);
    card.words[8] |= 0x4000_0000;
    card.words[9] = 0x38;
    card.words[5] = 0xfebd_1000;
    let (mut bus, function) = alone(card);
    let opened = open(&mut bus, function, &mut free()).unwrap();
    assert_eq!(opened.windows[0].start, 0x38_4000_0000);
    assert_eq!(opened.messages.start, 0xfebd_1000);
    assert_eq!((bus.0[&function].words[9], bus.0[&function].words[5]), (0x38, 0xfebd_1000));
}

#[test]
fn functions_that_lie_are_left_out() {
    let failed = |change: fn(&mut Card)| {
        let mut card = Card::virtio(0x1042);
        change(&mut card);
        let (mut bus, function) = alone(card);
        open(&mut bus, function, &mut free()).unwrap_err()
    };
    assert_eq!(failed(|card| card.words[0x34 / 4] = 0x84), OpenError::NoMessages);
    assert_eq!(failed(|card| card.words[0x98 / 4] = 0x11), OpenError::Layout(TransportError::NoCapability { kind: 1 }));
    // Registers behind a port, behind no memory, past its end, at the end of all addresses.
    assert_eq!(failed(|card| card.words[8] = 0xc001), OpenError::BadRegister(4));
    assert_eq!(failed(|card| card.bar_bytes[4] = 0), OpenError::BadRegister(4));
    assert_eq!(failed(|card| card.bar_bytes[4] = 0x2000), OpenError::BadRegister(4));
    let at_the_end: fn(&mut Card) = |card| {
        card.words[8] |= 0xffff_f000;
        card.words[9] = u32::MAX;
    };
    assert_eq!(failed(at_the_end), OpenError::BadRegister(4));
    assert_eq!(failed(|card| card.words[0x9c / 4] = 6), OpenError::BadRegister(6));
    // In RAM, or longer than all that is free.
    assert_eq!(failed(|card| card.words[8] |= 0x20_0000), OpenError::InRam(0x20_0000));
    assert_eq!(failed(|card| card.words[9] = 1), OpenError::InRam(1 << 32));
    assert_eq!(failed(|card| card.bar_bytes[4] = 0x8000_0000), OpenError::NoAddresses(0x8000_0000));
    assert!(!alloc::format!("{}", OpenError::NoAddresses(1)).is_empty());
}

#[test]
fn no_word_of_a_configuration_space_makes_it_panic() {
    let mut words: Vec<(usize, u32)> = Vec::new();
    for word in 0..64 {
        words.extend([0, 1, 0xff, 0x4040_4040, 0x8000_0000, u32::MAX].map(|value| (word, value)));
    }
    for (word, value) in words {
        let mut card = Card::virtio(0x1042);
        card.words[word] = value;
        let (mut bus, function) = alone(card);
        let _ = virtio_functions(&mut bus, 0, 255);
        let _ = open(&mut bus, function, &mut free());
    }
}
