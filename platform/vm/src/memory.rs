//! What is mapped where: everything that the image and its RAM are, from the start on, and windows of devices as they are found.

use crate::arch::publish_tables;
use crate::paging::{AddressSpace, OutOfTables, PAGE_BYTES, Protection, TableMemory};
use alloc::alloc::{Layout, alloc_zeroed};
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use glass_drivers_device::MmioRegisters;

/// Physical address of the highest page table, 0 while those of boot.s are in use. It is written once, before there is a second core.
pub static PAGE_TABLES: AtomicU64 = AtomicU64::new(0);

/// Page tables on the heap, whose memory is mapped one to one.
pub struct HeapTables(());

impl HeapTables {
    /// # Safety
    /// An [`AddressSpace`] of this memory must be opened only with the root of one that was made of it.
    pub unsafe fn new() -> HeapTables {
        HeapTables(())
    }
}

impl TableMemory for HeapTables {
    fn allocate(&mut self) -> Option<u64> {
        let layout = Layout::from_size_align(PAGE_BYTES as usize, PAGE_BYTES as usize).ok()?;
        // SAFETY: the layout's size is not zero. Tables are never freed.
        let table = unsafe { alloc_zeroed(layout) };
        (!table.is_null()).then(|| table.expose_provenance() as u64)
    }

    fn read(&self, table: u64, index: usize) -> u64 {
        // SAFETY: address spaces use only tables that `allocate` has made (`new`), which have 512 entries; the CPU
        // may set bits in one at any time, so the access is volatile.
        unsafe { entry(table, index).read_volatile() }
    }

    fn write(&mut self, table: u64, index: usize, value: u64) {
        // SAFETY: as for `read`.
        unsafe { entry(table, index).write_volatile(value) }
    }
}

fn entry(table: u64, index: usize) -> *mut u64 {
    assert!(index < 512);
    core::ptr::with_exposed_provenance_mut::<u64>(table as usize).wrapping_add(index)
}

/// Maps the registers at physical addresses from `start` to `end` at the same addresses. What is mapped already stays as it is.
///
/// A page that was not mapped is in no TLB, so nothing has to be flushed.
pub fn map_device(start: u64, end: u64) -> Result<(), OutOfTables> {
    // SAFETY: start.rs has made the root with such memory.
    let memory = unsafe { HeapTables::new() };
    let mapped = AddressSpace::open(memory, PAGE_TABLES.load(Ordering::Relaxed)).map(start, end, Protection::Device);
    publish_tables();
    mapped
}

/// The registers at these physical addresses; `None` if there is no memory to map them.
///
/// # Safety
/// They must be registers and be used by one driver only.
pub unsafe fn registers(addresses: Range<u64>) -> Option<MmioRegisters> {
    map_device(addresses.start, addresses.end).ok()?;
    // SAFETY: they were just mapped one to one as a device; the caller vouches for the rest.
    Some(unsafe { MmioRegisters::new(addresses.start as usize, (addresses.end - addresses.start) as usize) })
}
