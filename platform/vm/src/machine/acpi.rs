//! The machine as ACPI's tables describe it (ACPI 6.5, sections 5.2.5 to 5.2.12; PCI Firmware Specification 3.3, section 4.1.2).
//!
//! Pure: memory comes through a function, so wrong tables are tested on the host. There is no interpreter of AML: what QEMU describes only in
//! AML on a machine without a PC's hardware, its PCI buses and its power button, is found by how QEMU writes it.

use super::PciSegment;
use alloc::vec::Vec;

/// An I/O APIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IoApic {
    /// Address of its registers.
    pub address: u64,
    /// Number of the first global system interrupt that it handles.
    pub first_interrupt: u32,
}

/// An interrupt of the old PC that arrives elsewhere, or otherwise than usual.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Override {
    /// Its number on the old PC.
    pub source: u8,
    /// Its global system interrupt.
    pub interrupt: u32,
    /// Level triggered: it stays until its cause is taken away.
    pub is_level: bool,
    /// Active when low.
    pub is_active_low: bool,
}

impl PciSegment {
    /// The buses are in order, and their spaces where there can be memory.
    fn is_sound(&self) -> bool {
        let is_placed = self.address.is_multiple_of(1 << 20) && self.address.checked_add(256 << 20).is_some();
        self.first_bus <= self.last_bus && is_placed
    }
}

/// How a press of the power button is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PowerButton {
    /// A PC's fixed hardware (section 4.8.3.1): bit 8 of the status register at `events`, switched on by bit 8 two ports on.
    Fixed {
        /// Port of the status register.
        events: u16,
        /// The old PC's number of the interrupt.
        source: u8,
        /// What hands power management over to us: this value to this port, if there is one.
        enable: Option<(u16, u8)>,
    },
    /// QEMU's event device: a 32-bit register whose bit 1 is set by a press, and that reading clears.
    Events {
        /// Address of the register.
        address: u64,
        /// Global system interrupt.
        interrupt: u32,
    },
}

/// The contents of the tables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tables {
    /// Identifiers of the local APICs of processors that can be used.
    pub processors: Vec<u32>,
    /// I/O APICs.
    pub io_apics: Vec<IoApic>,
    /// Interrupts of the old PC that are special.
    pub overrides: Vec<Override>,
    /// PCI buses.
    pub segments: Vec<PciSegment>,
    /// There is no PC's power management, as on machines that are virtual only.
    pub is_hardware_reduced: bool,
    /// The power button.
    pub power_button: Option<PowerButton>,
    /// PCI buses that count if there is no table of them.
    pub described_in_aml: Option<PciSegment>,
}

/// I/O APICs, overrides and segments beyond this many are ignored, and processors beyond the other.
const ITEMS_MAX: usize = 16;
const PROCESSORS_MAX: usize = 512;
/// Tables and entries beyond this many are ignored, so that wrong tables end.
const ENTRIES_MAX: u64 = 1024;
/// A description in AML that is longer is not searched.
const AML_BYTES_MAX: u64 = 64 << 10;

const MADT: u32 = u32::from_le_bytes(*b"APIC");
const MCFG: u32 = u32::from_le_bytes(*b"MCFG");
const FADT: u32 = u32::from_le_bytes(*b"FACP");
const HEADER_BYTES: u64 = 36;
/// Offset of the first entry of a MADT and of an MCFG.
const FIRST_ENTRY: u64 = 44;
/// Flags of the FADT: the power button is a device in AML; there is no fixed hardware.
const FLAG_BUTTON_IN_AML: u64 = 1 << 4;
const FLAG_HARDWARE_REDUCED: u64 = 1 << 20;

impl Tables {
    /// Reads the tables from the root pointer at `rsdp`, 0 if there is none. `read` gives the byte at an address, `None`
    /// where there is no memory. What cannot be read is left out.
    pub fn read(rsdp: u64, read: impl Fn(u64) -> Option<u8>) -> Tables {
        let mut tables = Tables::default();
        if rsdp != 0 {
            // `None`: the tables ended early; what was found until there is good.
            let _ = tables.search(&Memory { read }, rsdp);
        }
        tables
    }

    fn search<R: Fn(u64) -> Option<u8>>(&mut self, memory: &Memory<R>, rsdp: u64) -> Option<()> {
        let revision = memory.number(rsdp, 15, 1)?;
        let extended = if revision >= 2 { memory.number(rsdp, 24, 8)? } else { 0 };
        let (root, pointer_bytes) = if extended != 0 { (extended, 8) } else { (memory.number(rsdp, 16, 4)?, 4) };
        let tables = memory.number(root, 4, 4)?.saturating_sub(HEADER_BYTES) / pointer_bytes;
        let mut seen = Vec::new();
        for index in 0..tables.min(ENTRIES_MAX) {
            let table = memory.number(root, HEADER_BYTES + index * pointer_bytes, pointer_bytes)?;
            let signature = memory.number(table, 0, 4)? as u32;
            // There is one of each.
            if seen.contains(&signature) {
                continue;
            }
            push(&mut seen, signature, ITEMS_MAX);
            // The next table may be whole although this one ends early.
            let _ = match signature {
                MADT => self.read_madt(memory, table),
                MCFG => self.read_mcfg(memory, table),
                FADT => self.read_fadt(memory, table),
                _ => None,
            };
        }
        if self.segments.is_empty() {
            self.segments.extend(self.described_in_aml);
        }
        Some(())
    }

    fn read_madt<R: Fn(u64) -> Option<u8>>(&mut self, memory: &Memory<R>, table: u64) -> Option<()> {
        let end = table.checked_add(memory.number(table, 4, 4)?)?;
        let mut entry = table.checked_add(FIRST_ENTRY)?;
        for _ in 0..ENTRIES_MAX {
            if entry >= end {
                break;
            }
            let number = |offset, bytes| memory.number(entry, offset, bytes);
            match number(0, 1)? {
                // A local APIC, and one with a wide identifier. Bit 0: the processor can be used.
                0 if number(4, 4)? & 1 != 0 => push(&mut self.processors, number(3, 1)? as u32, PROCESSORS_MAX),
                9 if number(8, 4)? & 1 != 0 => push(&mut self.processors, number(4, 4)? as u32, PROCESSORS_MAX),
                1 => {
                    let io_apic = IoApic { address: number(4, 4)?, first_interrupt: number(8, 4)? as u32 };
                    push(&mut self.io_apics, io_apic, ITEMS_MAX);
                }
                2 => {
                    let (source, interrupt, flags) = (number(3, 1)? as u8, number(4, 4)? as u32, number(8, 2)?);
                    let (is_level, is_active_low) = (flags >> 2 & 3 == 3, flags & 3 == 3);
                    push(&mut self.overrides, Override { source, interrupt, is_level, is_active_low }, ITEMS_MAX);
                }
                _ => {}
            }
            entry = entry.checked_add(number(1, 1)?.max(2))?;
        }
        Some(())
    }

    fn read_mcfg<R: Fn(u64) -> Option<u8>>(&mut self, memory: &Memory<R>, table: u64) -> Option<()> {
        let entries = memory.number(table, 4, 4)?.saturating_sub(FIRST_ENTRY) / 16;
        for index in 0..entries.min(ENTRIES_MAX) {
            let number = |offset, bytes| memory.number(table, FIRST_ENTRY + 16 * index + offset, bytes);
            let (address, first_bus, last_bus) = (number(0, 8)?, number(10, 1)? as u8, number(11, 1)? as u8);
            // Only the first segment can be reached by old software; VMMs have no other.
            let segment = PciSegment { address, first_bus, last_bus, window: None };
            if number(8, 2)? == 0 && segment.is_sound() {
                push(&mut self.segments, segment, ITEMS_MAX);
            }
        }
        Some(())
    }

    fn read_fadt<R: Fn(u64) -> Option<u8>>(&mut self, memory: &Memory<R>, table: u64) -> Option<()> {
        let bytes = memory.number(table, 4, 4)?;
        let number = |offset, bytes| memory.number(table, offset, bytes);
        let flags = number(112, 4)?;
        self.is_hardware_reduced = flags & FLAG_HARDWARE_REDUCED != 0;
        if self.is_hardware_reduced {
            let extended = if bytes >= 148 { number(140, 8)? } else { 0 };
            let aml = memory.aml(if extended != 0 { extended } else { number(40, 4)? })?;
            self.power_button = event_device(&aml);
            self.described_in_aml = pci_host(&aml);
        } else if flags & FLAG_BUTTON_IN_AML == 0 {
            let (events, command) = (number(56, 4)? as u16, number(48, 4)? as u16);
            let enable = (command != 0).then_some((command, number(52, 1)? as u8));
            let source = number(46, 2)? as u8;
            self.power_button = (events != 0).then_some(PowerButton::Fixed { events, source, enable });
        }
        Some(())
    }
}

fn push<T>(list: &mut Vec<T>, item: T, most: usize) {
    if list.len() < most {
        list.push(item);
    }
}

struct Memory<R> {
    read: R,
}

impl<R: Fn(u64) -> Option<u8>> Memory<R> {
    /// The number of so many bytes at `offset` of the table at `address`. A table may claim to be at the end of all
    /// addresses.
    fn number(&self, address: u64, offset: u64, bytes: u64) -> Option<u64> {
        let first = address.checked_add(offset)?;
        (0..bytes)
            .rev()
            .try_fold(0, |value, index| Some(value << 8 | u64::from((self.read)(first.checked_add(index)?)?)))
    }

    /// The AML of the table at `address`, its header included.
    fn aml(&self, address: u64) -> Option<Vec<u8>> {
        let bytes = self.number(address, 4, 4)?.min(AML_BYTES_MAX);
        (0..bytes).map(|offset| (self.read)(address.checked_add(offset)?)).collect()
    }
}

/// QEMU's event device: behind its identifier an interrupt (an extended descriptor of one number) and an operation region named EREG with the
/// address of its register.
fn event_device(aml: &[u8]) -> Option<PowerButton> {
    let device = after(aml, b"ACPI0013")?;
    // 0x89: the descriptor, 6 bytes, edge triggered, one interrupt.
    let interrupt = first_u32(after(device, &[0x89, 6, 0, 3, 1])?)?;
    // 0x5b 0x80: an operation region, in memory (0), whose address is a 32-bit number (0x0c).
    let address = first_u32(after(device, &[0x5b, 0x80, b'E', b'R', b'E', b'G', 0, 0x0c])?)?;
    Some(PowerButton::Events { address: address.into(), interrupt })
}

/// QEMU's PCI host bridge: a method _CBA that returns (0xa4) the address of the configuration spaces, a number of 32 (0x0c) or 64 bits (0x0e).
fn pci_host(aml: &[u8]) -> Option<PciSegment> {
    let [_flags, 0xa4, width, number @ ..] = after(aml, b"_CBA")? else { return None };
    let high = if *width == 0x0e { first_u32(number.get(4..)?)? } else { 0 };
    let address = u64::from(first_u32(number)?) | u64::from(high) << 32;
    let segment = PciSegment { address, first_bus: 0, last_bus: 255, window: None };
    (matches!(width, 0x0c | 0x0e) && segment.is_sound()).then_some(segment)
}

fn first_u32(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.first_chunk()?))
}

/// What follows on the first place where `pattern` stands.
fn after<'a>(bytes: &'a [u8], pattern: &[u8]) -> Option<&'a [u8]> {
    let start = bytes.windows(pattern.len()).position(|window| window == pattern)?;
    Some(&bytes[start + pattern.len()..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(memory: &mut Vec<u8>, address: usize, bytes: &[u8]) {
        memory.resize(memory.len().max(address + bytes.len()), 0);
        memory[address..address + bytes.len()].copy_from_slice(bytes);
    }

    /// FADT at 0x200, MADT at 0x300, MCFG at 0x400, and of a machine without a PC's hardware the AML at 0x500.
    fn tables(is_hardware_reduced: bool) -> Vec<u8> {
        let mut memory = Vec::new();
        put(&mut memory, 0x10 + 16, &0x100u32.to_le_bytes());
        put(&mut memory, 0x100, b"RSDT");
        put(&mut memory, 0x104, &48u32.to_le_bytes());
        for (index, table) in [0x200u32, 0x300, 0x400].into_iter().enumerate() {
            put(&mut memory, 0x124 + 4 * index, &table.to_le_bytes());
        }
        put(&mut memory, 0x200, b"FACP");
        put(&mut memory, 0x204, &244u32.to_le_bytes());
        put(&mut memory, 0x200 + 40, &0x500u32.to_le_bytes());
        put(&mut memory, 0x200 + 46, &9u16.to_le_bytes());
        put(&mut memory, 0x200 + 48, &0xb2u32.to_le_bytes());
        put(&mut memory, 0x200 + 52, &[2, 3]);
        put(&mut memory, 0x200 + 56, &0x600u32.to_le_bytes());
        put(&mut memory, 0x200 + 112, &(u32::from(is_hardware_reduced) << 20).to_le_bytes());
        put(&mut memory, 0x300, b"APIC");
        put(&mut memory, 0x304, &(44u32 + 3 * 8 + 16 + 2 * 12 + 10).to_le_bytes());
        put(&mut memory, 0x32c, &[0, 8, 0, 0, 1, 0, 0, 0]);
        put(&mut memory, 0x334, &[0, 8, 1, 1, 1, 0, 0, 0]);
        put(&mut memory, 0x33c, &[0, 8, 2, 2, 0, 0, 0, 0]);
        put(&mut memory, 0x344, &[9, 16, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        put(&mut memory, 0x354, &[1, 12, 0, 0, 0, 0, 0xc0, 0xfe, 0, 0, 0, 0]);
        put(&mut memory, 0x360, &[1, 12, 1, 0, 0, 0, 0xc1, 0xfe, 24, 0, 0, 0]);
        put(&mut memory, 0x36c, &[2, 10, 0, 9, 9, 0, 0, 0, 13, 0]);
        put(&mut memory, 0x400, b"MCFG");
        put(&mut memory, 0x404, &60u32.to_le_bytes());
        put(&mut memory, 0x42c, &0xe000_0000u64.to_le_bytes());
        put(&mut memory, 0x434, &[0, 0, 0, 255, 0, 0, 0, 0]);
        put(&mut memory, 0x500, b"DSDT");
        put(&mut memory, 0x504, &0x80u32.to_le_bytes());
        put(&mut memory, 0x524, b"..ACPI0013\0..\x89\x06\x00\x03\x01\x09\0\0\0..");
        put(&mut memory, 0x548, b"[\x80EREG\0\x0c\0\0\xa0\xfe\x0a\x04");
        put(&mut memory, 0x560, b"\x14\x0c_CBA\0\xa4\x0c\0\0\0\xd0\x08");
        put(&mut memory, 0x5ff, &[0]);
        memory
    }

    fn read(memory: &[u8]) -> Tables {
        Tables::read(0x10, |address| memory.get(address as usize).copied())
    }

    #[test]
    fn a_pc_is_described() {
        let found = read(&tables(false));
        assert_eq!(found.processors, [0, 1, 256], "one cannot be used");
        assert_eq!(found.io_apics[1], IoApic { address: 0xfec1_0000, first_interrupt: 24 });
        let sci = Override { source: 9, interrupt: 9, is_level: true, is_active_low: false };
        assert_eq!((found.io_apics.len(), found.overrides), (2, alloc::vec![sci]));
        assert_eq!(found.segments, [PciSegment { address: 0xe000_0000, first_bus: 0, last_bus: 255, window: None }]);
        let button = PowerButton::Fixed { events: 0x600, source: 9, enable: Some((0xb2, 2)) };
        assert_eq!((found.is_hardware_reduced, found.power_button), (false, Some(button)));
    }

    #[test]
    fn a_machine_without_a_pcs_hardware_has_an_event_device() {
        let found = read(&tables(true));
        let button = PowerButton::Events { address: 0xfea0_0000, interrupt: 9 };
        assert_eq!((found.is_hardware_reduced, found.power_button), (true, Some(button)));
        let mut other = tables(true);
        put(&mut other, 0x526, b"ACPI0014");
        assert_eq!(read(&other).power_button, None);
        // Its PCI buses are in AML, if no table has them.
        assert_eq!(found.segments[0].address, 0xe000_0000);
        let without_table = |method: &[u8]| {
            let mut memory = tables(true);
            put(&mut memory, 0x400, b"NONE");
            put(&mut memory, 0x566, method);
            read(&memory).segments.first().map(|segment| segment.address)
        };
        assert_eq!(without_table(b"\0\xa4\x0c\0\0\0\xd0"), Some(0xd000_0000));
        assert_eq!(without_table(b"\0\xa4\x0e\0\0\0\xd0\x01\0\0\0"), Some(0x1_d000_0000));
        // A number that is no multiple of a bus's spaces; a byte; no return.
        assert_eq!(without_table(b"\0\xa4\x0c\0\0\x08\xd0"), None);
        assert_eq!(without_table(b"\0\xa4\x0a\xd0\0\0\0"), None);
        assert_eq!(without_table(b"\0\xa3\x0c\0\0\0\xd0"), None);
    }

    #[test]
    fn no_byte_of_the_tables_can_harm() {
        for is_hardware_reduced in [false, true] {
            let whole = tables(is_hardware_reduced);
            for position in 0..whole.len() {
                for value in [0, 1, 0x7f, 0xff] {
                    let mut memory = whole.clone();
                    memory[position] = value;
                    let found = read(&memory);
                    assert!(found.io_apics.len() <= ITEMS_MAX && found.segments.len() <= ITEMS_MAX);
                }
            }
        }
        assert_eq!(Tables::read(0, |_| None), Tables::default());
    }

    #[test]
    fn tables_at_the_end_of_all_addresses_are_not_followed() {
        // Memory everywhere, so that it is up to the addresses.
        for byte in [0, 1, 2, 0x50, 0xff] {
            for distance in 0..64 {
                assert!(Tables::read(u64::MAX - distance, |_| Some(byte)).io_apics.len() <= ITEMS_MAX);
            }
        }
        let mut memory = tables(false);
        put(&mut memory, 0x10 + 15, &[2]);
        for distance in 0..64u64 {
            put(&mut memory, 0x10 + 24, &(u64::MAX - distance).to_le_bytes());
            let read = |address| Some(memory.get(address as usize).copied().unwrap_or(0x41));
            assert!(Tables::read(0x10, read).io_apics.len() <= ITEMS_MAX);
        }
    }
}
