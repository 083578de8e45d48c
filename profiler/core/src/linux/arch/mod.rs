//! Where a kernel in RAM has its image and its page tables, and what its code shows of where its data is: a module for each processor.

pub(super) mod aarch64;
pub(super) mod x86_64;

use super::kallsyms::Kallsyms;
use super::kernel::{BANNER, banner_at};
use super::space::Space;
use crate::arch::{Architecture, Paging};
use crate::memory::Physical;

/// Where a kernel is.
pub(super) struct Place {
    pub(super) paging: Paging,
    pub(super) text: u64,
    pub(super) text_physical: u64,
    /// Where its banner is in physical memory.
    pub(super) banner_at: u64,
}

/// The image around the tables of these symbols, by its own page tables: they are in it, and lead to it.
pub(super) fn find(memory: &dyn Physical, symbols: &Kallsyms) -> Option<Place> {
    match architecture(symbols) {
        Architecture::X86_64 if symbols.address("linux_banner").is_some() => x86_64::find_by_data(memory, symbols),
        Architecture::X86_64 => x86_64::find(memory, symbols),
        Architecture::Aarch64 => aarch64::find(memory, symbols),
    }
}

/// Where a kernel counts its ticks, without a symbol of that.
pub(super) fn ticks_at(space: &Space<'_>, symbols: &Kallsyms) -> Option<u64> {
    match architecture(symbols) {
        Architecture::X86_64 => x86_64::ticks_at(space, symbols),
        Architecture::Aarch64 => aarch64::ticks_at(space, symbols),
    }
}

/// The processor of a kernel, by the function that changes from one task to the next.
fn architecture(symbols: &Kallsyms) -> Architecture {
    if symbols.address(aarch64::SWITCH).is_some() { Architecture::Aarch64 } else { Architecture::X86_64 }
}

/// The first banner that is a text of its own with the number of its build, and not a line of a log.
fn banner_between(memory: &dyn Physical, start: u64, end: u64) -> Option<u64> {
    const CHUNK_BYTES: u64 = 1 << 20;
    let finder = memchr::memmem::Finder::new(BANNER);
    let mut chunk = vec![0; CHUNK_BYTES as usize + BANNER.len() - 1];
    let mut places = (start..end).step_by(CHUNK_BYTES as usize).flat_map(|start| {
        let is_read = memory.read(start, &mut chunk);
        let found = if is_read { finder.find_iter(&chunk).map(|at| start + at as u64).collect() } else { Vec::new() };
        found.into_iter()
    });
    places.find(|at| {
        let mut behind = [0; 2];
        let banner = banner_at(memory, *at).unwrap_or_default();
        let has_number =
            banner.split_once(" #").is_some_and(|(_, rest)| rest.starts_with(|c: char| c.is_ascii_digit()));
        has_number && memory.read(at + banner.len() as u64, &mut behind) && behind == *b"\n\0"
    })
}
