//! Switches the tracing of the image's functions.
//!
//! Code stays mapped for reading and running only. An image that was built for it has its code a second time in its
//! address space, at [`SECOND_ADDRESS`] above the first, where it can be written and not run.

use crate::arch::discard_fetched_instructions;
use crate::cores;
use crate::paging::{AddressSpace, OutOfTables, Protection, TableMemory};
use core::ptr;
use core::sync::atomic::{Ordering, fence};
use glass_lib_trace::Group;
use glass_lib_trace::functions::{self, Text};

/// Far above all memory and devices of a VM.
const SECOND_ADDRESS: u64 = 1 << 40;

unsafe extern "C" {
    static glass_text_start: u8;
    static glass_text_end: u8;
}

/// Maps the code a second time, in an image that was built for it.
pub fn map<M: TableMemory>(space: &mut AddressSpace<M>) -> Result<(), OutOfTables> {
    if functions::count() == 0 {
        return Ok(());
    }
    let (start, end) = (&raw const glass_text_start as u64, &raw const glass_text_end as u64);
    space.map_at(start + SECOND_ADDRESS, start, end, Protection::ReadWrite)
}

/// Traces all functions if their group is on: none was chosen yet. Comes after [`map`], when the tables are in use.
pub fn start() {
    if glass_lib_trace::is_on(Group::Functions) {
        functions::choose_all();
        switch(Group::Functions as u32);
    }
}

/// Traces the functions that the host has chosen, if `groups` has functions.
pub fn switch(groups: u32) {
    if functions::count() > 0 {
        functions::switch(groups, &mut SecondMapping);
    }
}

/// Exists only where [`map`] was called before.
struct SecondMapping;

impl Text for SecondMapping {
    fn write(&mut self, address: usize, bytes: &[u8]) -> bool {
        let text = &raw const glass_text_start as usize..&raw const glass_text_end as usize;
        if !text.contains(&address) || bytes.len() > text.end - address {
            return false;
        }
        for (index, byte) in bytes.iter().enumerate() {
            let place = (address + index) as u64 + SECOND_ADDRESS;
            // SAFETY: `map` has mapped all of the text there for writing, and only sleds are written, which no
            // reference names and the CPU may fetch at any time.
            unsafe { ptr::write_volatile(place as *mut u8, *byte) };
        }
        true
    }

    fn synchronize(&mut self) -> bool {
        fence(Ordering::SeqCst);
        // Other cores would each have to do so too, so with several nothing is traced.
        discard_fetched_instructions();
        self.is_alone()
    }

    fn is_alone(&self) -> bool {
        cores::public(1).is_none()
    }
}
