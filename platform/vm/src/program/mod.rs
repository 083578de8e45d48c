//! A C program as the ranks of a job: one on each core but the first, which has the devices.
//!
//! Each rank has page tables of its own, which differ from the kernel's in one place: there the program's code and constants are mapped,
//! out of the image, and one piece of memory with the rank's data, heap and stack. All ranks' memory is also mapped for all at its own
//! address, as the rest of memory is; so a rank copies out of another one's without a system call.

mod calls;
mod elf;
mod output;
mod pages;
#[cfg(not(test))]
mod rank;
mod shared;
mod stack;

pub use calls::Process;
#[cfg(not(test))]
pub use rank::run;

use core::ops::Range;
use elf::Program;

/// The memory of ranks starts and ends at a large page, so that few entries map it.
const LARGE_PAGE_BYTES: u64 = glass_formats::C_PROGRAM_PAGE_BYTES;
const STACK_BYTES_MAX: u64 = 8 << 20;
/// One part of a rank's memory in so many is its stack.
const STACK_SHARE: u64 = 8;

/// Where a rank's program is, the same for all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    /// What is added to the addresses in the file.
    start: u64,
    /// Data, heap, a page that is not mapped, and the stack.
    memory: Range<u64>,
    heap: Range<u64>,
    guard: u64,
}

impl Place {
    /// For ranks with `bytes` bytes of memory each, a multiple of a large page; `None` if that is too little.
    fn of(program: &Program, bytes: u64) -> Option<Place> {
        let start = glass_formats::c_program_start(program.writable.start);
        let memory = start + program.writable.start..start + program.writable.start + bytes;
        let stack = (bytes / STACK_SHARE).min(STACK_BYTES_MAX) / crate::paging::PAGE_BYTES * crate::paging::PAGE_BYTES;
        let guard = memory.end - stack - crate::paging::PAGE_BYTES;
        let heap = start + program.writable.end..guard;
        (heap.start < heap.end).then_some(Place { start, memory, heap, guard })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn a_ranks_memory_follows_the_constants_at_a_large_page() {
        let program = |writable| Program {
            entry: 0,
            constants: Vec::new(),
            data: Vec::new(),
            writable,
            headers: 64,
            headers_count: 1,
        };
        for first in [0x6000, 0x20_0000, 0x2f_f000] {
            let place = Place::of(&program(first..first + 0x2000), 4 << 20).unwrap();
            assert!(place.memory.start.is_multiple_of(LARGE_PAGE_BYTES) && place.start >= 1 << 44);
            assert_eq!((place.memory.start - place.start, place.memory.end - place.memory.start), (first, 4 << 20));
            assert_eq!(place.heap, place.memory.start + 0x2000..place.guard);
            assert_eq!(place.memory.end - place.guard, (512 << 10) + 4096);
        }
        assert_eq!(Place::of(&program(0x6000..0x40_0000), 4 << 20), None);
    }
}
