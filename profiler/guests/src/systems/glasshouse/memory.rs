//! The memory of control pages and rings: the RAM of a VM, the memory file of a process, a file.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use glass_formats::trace::CONTROL_BYTES;

use crate::memory::{Physical, Ram};
use crate::sys::{Map, cannot_shrink};

/// The memory of a guest's trace. All of it may change at any time.
pub trait TraceMemory: Send {
    /// Copies from the control pages; returns false if they are not complete.
    fn read_control(&self, offset: usize, into: &mut [u8]) -> bool;

    /// Writes a word into the control pages, at a multiple of 8; the guest sees all of it or nothing.
    fn write_control(&self, offset: usize, value: u64) -> io::Result<()>;

    /// Copies from an address of the guest within its area of rings, which starts at `area_address`.
    fn read_area(&self, area_address: u64, address: u64, into: &mut [u8]) -> bool;

    /// Whether the guest counts the same ticks as this machine.
    fn has_host_ticks(&self) -> bool {
        false
    }
}

impl TraceMemory for Box<dyn TraceMemory> {
    fn read_control(&self, offset: usize, into: &mut [u8]) -> bool {
        self.as_ref().read_control(offset, into)
    }

    fn write_control(&self, offset: usize, value: u64) -> io::Result<()> {
        self.as_ref().write_control(offset, value)
    }

    fn read_area(&self, area_address: u64, address: u64, into: &mut [u8]) -> bool {
        self.as_ref().read_area(area_address, address, into)
    }

    fn has_host_ticks(&self) -> bool {
        self.as_ref().has_host_ticks()
    }
}

/// A VM of ours: its images run at the physical addresses that they were linked for.
pub(super) struct VmMemory {
    pub(super) ram: Ram,
    /// Address of the control pages.
    pub(super) control: u64,
}

impl TraceMemory for VmMemory {
    fn read_control(&self, offset: usize, into: &mut [u8]) -> bool {
        self.control.checked_add(offset as u64).is_some_and(|address| self.ram.read(address, into))
    }

    fn write_control(&self, offset: usize, value: u64) -> io::Result<()> {
        let address = self.control.checked_add(offset as u64).ok_or_else(|| io::Error::other("no such address"))?;
        self.ram.write_word(address, value)
    }

    fn read_area(&self, _area_address: u64, address: u64, into: &mut [u8]) -> bool {
        self.ram.read(address, into)
    }
}

/// A process: control pages and area follow each other in a memory file.
pub(super) struct FileMemory {
    file: File,
    map: Option<Map>,
}

/// The largest file that is mapped; a guest may claim any size.
const MAP_BYTES_MAX: u64 = 16 << 30;

impl FileMemory {
    /// The file, open for reading and writing; only for reading if it is a copy that no longer changes.
    pub(super) fn new(file: File, is_writable: bool) -> io::Result<FileMemory> {
        let bytes = file.metadata()?.len();
        // Reading a mapping beyond the end of a file that has shrunk would end us.
        let map = match usize::try_from(bytes) {
            Ok(length) if bytes <= MAP_BYTES_MAX && length >= CONTROL_BYTES && cannot_shrink(file.as_fd()) => {
                Map::new(file.as_fd(), length, is_writable).ok()
            }
            _ => None,
        };
        Ok(FileMemory { file, map })
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> bool {
        match &self.map {
            Some(map) => map.read(offset, into),
            None => self.file.read_exact_at(into, offset).is_ok(),
        }
    }
}

impl TraceMemory for FileMemory {
    fn read_control(&self, offset: usize, into: &mut [u8]) -> bool {
        self.read(offset as u64, into)
    }

    fn write_control(&self, offset: usize, value: u64) -> io::Result<()> {
        match &self.map {
            Some(map) if offset.is_multiple_of(8) && offset + 8 <= map.bytes() => map.store(offset, value),
            _ => self.file.write_all_at(&value.to_le_bytes(), offset as u64)?,
        }
        Ok(())
    }

    fn read_area(&self, area_address: u64, address: u64, into: &mut [u8]) -> bool {
        let offset = address.checked_sub(area_address).and_then(|inside| inside.checked_add(CONTROL_BYTES as u64));
        offset.is_some_and(|offset| self.read(offset, into))
    }

    fn has_host_ticks(&self) -> bool {
        true
    }
}
