//! Switches the tracing of this process's functions.
//!
//! Code stays mapped as readable and executable: it is written through `/proc/self/mem`, as a debugger does.
//! Other threads keep running; `membarrier` makes their cores discard fetched instructions.

use crate::sys::discard_fetched_instructions;
use glass_formats::trace::Group;
use glass_lib_trace::functions::{self, Text};
use rustix::thread::{MembarrierCommand, membarrier};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

const PAGE_BYTES: usize = 4096;

/// Traces all functions if `groups` has functions: no host has chosen any yet.
pub(crate) fn start(groups: u32) {
    if groups & Group::Functions as u32 != 0 {
        functions::choose_all();
        switch(groups);
    }
}

/// Traces the functions that the host has chosen, if `groups` has functions.
pub(crate) fn switch(groups: u32) {
    if functions::count() == 0 {
        return;
    }
    match Memory::open() {
        Ok(mut memory) => {
            functions::switch(groups, &mut memory);
            if let Some(error) = memory.error {
                complain(&error);
            }
        }
        Err(error) => complain(&error),
    }
}

fn complain(error: &io::Error) {
    // When standard error is closed, an error cannot be reported.
    let _ = writeln!(io::stderr(), "functions cannot be traced: /proc/self/mem or membarrier failed ({error})");
}

/// This process's memory, written a page at a time: only a few bytes of a page change, but a system call costs as
/// much for one byte as for all.
struct Memory {
    file: File,
    /// Address of the page that is being changed.
    address: usize,
    page: [u8; PAGE_BYTES],
    is_changed: bool,
    error: Option<io::Error>,
}

impl Memory {
    fn open() -> io::Result<Memory> {
        let file = OpenOptions::new().read(true).write(true).open("/proc/self/mem")?;
        membarrier(MembarrierCommand::RegisterPrivateExpeditedSyncCore)?;
        // No page is at address 1.
        Ok(Memory { file, address: 1, page: [0; PAGE_BYTES], is_changed: false, error: None })
    }

    fn flush(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.is_changed) {
            self.file.write_all_at(&self.page, self.address as u64)?;
        }
        Ok(())
    }

    fn write_byte(&mut self, address: usize, byte: u8) -> io::Result<()> {
        let page = address & !(PAGE_BYTES - 1);
        if page != self.address {
            self.flush()?;
            // Invalidated first, in case the read fails.
            self.address = 1;
            self.file.read_exact_at(&mut self.page, page as u64)?;
            self.address = page;
        }
        self.page[address - page] = byte;
        self.is_changed = true;
        Ok(())
    }

    fn keep<T>(&mut self, result: io::Result<T>) -> bool {
        let is_fine = result.is_ok();
        self.error = result.err().or(self.error.take());
        is_fine
    }
}

impl Text for Memory {
    fn write(&mut self, address: usize, bytes: &[u8]) -> bool {
        let result = (address..).zip(bytes).try_for_each(|(address, byte)| self.write_byte(address, *byte));
        self.keep(result)
    }

    fn synchronize(&mut self) -> bool {
        let result = self.flush().and_then(|()| Ok(membarrier(MembarrierCommand::PrivateExpeditedSyncCore)?));
        // membarrier does nothing in a process of one thread.
        discard_fetched_instructions();
        self.keep(result)
    }

    fn is_alone(&self) -> bool {
        // Disks and the console have threads, which may be within a sled.
        false
    }
}
