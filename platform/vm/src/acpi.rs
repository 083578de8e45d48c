//! The one thing we need from ACPI: where the I/O APICs are (ACPI 6.5, sections 5.2.5 to 5.2.12).
//!
//! Pure: memory comes through a function, so tables that lie are tested on the host.

/// An I/O APIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IoApic {
    /// Address of its registers.
    pub address: u64,
    /// Number of the first global system interrupt that it handles.
    pub first_interrupt: u32,
}

/// I/O APICs beyond this many are ignored.
pub const IO_APICS_MAX: usize = 8;
/// Tables and MADT entries beyond this many are ignored, so that tables that lie end.
const ENTRIES_MAX: u64 = 1024;

const MADT: u32 = u32::from_le_bytes(*b"APIC");
const HEADER_BYTES: u64 = 36;
/// Offset of the first entry of a MADT.
const MADT_ENTRIES: u64 = 44;
const TYPE_IO_APIC: u8 = 1;

/// Finds the I/O APICs from the root pointer at `rsdp`. `read` gives the byte at an address, `None`
/// where there is no memory. An empty answer means that there is no usable MADT.
pub fn io_apics(rsdp: u64, read: impl Fn(u64) -> Option<u8>) -> ([IoApic; IO_APICS_MAX], usize) {
    let mut found = ([IoApic { address: 0, first_interrupt: 0 }; IO_APICS_MAX], 0);
    if rsdp != 0 {
        let memory = Memory { read };
        // `None` says that the tables ended early; what was found until there is good.
        let _ = memory.search(rsdp, &mut found);
    }
    found
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

    fn search(&self, rsdp: u64, found: &mut ([IoApic; IO_APICS_MAX], usize)) -> Option<()> {
        let revision = self.number(rsdp, 15, 1)?;
        let extended = if revision >= 2 { self.number(rsdp, 24, 8)? } else { 0 };
        let (root, pointer_bytes) = if extended != 0 { (extended, 8) } else { (self.number(rsdp, 16, 4)?, 4) };
        let tables = self.number(root, 4, 4)?.saturating_sub(HEADER_BYTES) / pointer_bytes;
        for index in 0..tables.min(ENTRIES_MAX) {
            let table = self.number(root, HEADER_BYTES + index * pointer_bytes, pointer_bytes)?;
            if self.number(table, 0, 4)? == u64::from(MADT) {
                return self.read_madt(table, found);
            }
        }
        None
    }

    fn read_madt(&self, table: u64, (list, count): &mut ([IoApic; IO_APICS_MAX], usize)) -> Option<()> {
        let end = table.checked_add(self.number(table, 4, 4)?)?;
        let mut entry = table.checked_add(MADT_ENTRIES)?;
        for _ in 0..ENTRIES_MAX {
            if entry >= end || *count == IO_APICS_MAX {
                break;
            }
            if self.number(entry, 0, 1)? as u8 == TYPE_IO_APIC {
                let address = self.number(entry, 4, 4)?;
                let first_interrupt = self.number(entry, 8, 4)? as u32;
                list[*count] = IoApic { address, first_interrupt };
                *count += 1;
            }
            entry = entry.checked_add(self.number(entry, 1, 1)?.max(2))?;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn put(memory: &mut Vec<u8>, address: usize, bytes: &[u8]) {
        memory.resize(memory.len().max(address + bytes.len()), 0);
        memory[address..address + bytes.len()].copy_from_slice(bytes);
    }

    fn tables() -> Vec<u8> {
        let mut memory = Vec::new();
        put(&mut memory, 0x10 + 16, &0x100u32.to_le_bytes());
        put(&mut memory, 0x100, b"RSDT");
        put(&mut memory, 0x104, &44u32.to_le_bytes());
        put(&mut memory, 0x124, &0x200u32.to_le_bytes());
        put(&mut memory, 0x128, &0x300u32.to_le_bytes());
        put(&mut memory, 0x200, b"FACP");
        put(&mut memory, 0x300, b"APIC");
        put(&mut memory, 0x304, &(44u32 + 8 + 12 + 12).to_le_bytes());
        put(&mut memory, 0x32c, &[0, 8, 0, 0, 1, 0, 0, 0]);
        put(&mut memory, 0x334, &[1, 12, 0, 0, 0, 0, 0xc0, 0xfe, 0, 0, 0, 0]);
        put(&mut memory, 0x340, &[1, 12, 1, 0, 0, 0, 0xc1, 0xfe, 24, 0, 0, 0]);
        memory
    }

    #[test]
    fn finds_both_io_apics() {
        let memory = tables();
        let (list, count) = io_apics(0x10, |address| memory.get(address as usize).copied());
        assert_eq!(count, 2);
        assert_eq!(list[1], IoApic { address: 0xfec1_0000, first_interrupt: 24 });
    }

    #[test]
    fn no_byte_of_the_tables_can_harm() {
        for position in 0..tables().len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut memory = tables();
                memory[position] = value;
                let (_, count) = io_apics(0x10, |address| memory.get(address as usize).copied());
                assert!(count <= IO_APICS_MAX);
            }
        }
        assert_eq!(io_apics(0, |_| None).1, 0);
    }

    #[test]
    fn tables_at_the_end_of_all_addresses_are_not_followed() {
        // Memory everywhere, so that it is up to the addresses.
        for byte in [0, 1, 2, 0x50, 0xff] {
            for distance in 0..64 {
                assert!(io_apics(u64::MAX - distance, |_| Some(byte)).1 <= IO_APICS_MAX);
            }
        }
        let mut memory = tables();
        put(&mut memory, 0x10 + 15, &[2]);
        for distance in 0..64u64 {
            put(&mut memory, 0x10 + 24, &(u64::MAX - distance).to_le_bytes());
            let read = |address| Some(memory.get(address as usize).copied().unwrap_or(0x41));
            assert!(io_apics(0x10, read).1 <= IO_APICS_MAX);
        }
    }
}
