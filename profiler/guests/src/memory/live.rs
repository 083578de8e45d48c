//! Address spaces that are read while what runs in them runs: no core is stopped for it.
//!
//! What is changed meanwhile may be read half old and half new, and page tables may be removed or reused. So each read
//! walks the tables anew, and code that parses what was read expects any bytes.

use glass_profiler_core::arch::Paging;
use glass_profiler_core::arch::paging::Translator;
use glass_profiler_core::memory::Physical;

use super::AddressSpace;
use crate::error::GuestError;
use crate::sys::read_process;

/// An address space of a guest, over its physical memory.
#[derive(Debug, Clone, Copy)]
pub struct LiveSpace<'a, M> {
    memory: &'a M,
    paging: Paging,
}

impl<M: Physical> LiveSpace<'_, M> {
    /// The one that these registers select: those of a core, or with the page tables of any process of the guest.
    pub fn new(memory: &M, paging: impl Into<Paging>) -> LiveSpace<'_, M> {
        LiveSpace { memory, paging: paging.into() }
    }
}

impl<M: Physical> AddressSpace for LiveSpace<'_, M> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<usize, GuestError> {
        Ok(Translator::new(self.paging).read(self.memory, address, into))
    }
}

/// The address space of a process of this machine, which takes the rights of a debugger over it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessSpace {
    /// Its process ID.
    pub pid: u32,
}

impl AddressSpace for ProcessSpace {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<usize, GuestError> {
        Ok(read_process(self.pid, address, into))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_profiler_core::arch::x86_64::paging::Paging;

    /// Physical memory of 16 pages; a table at each of the pages 1 to 4.
    struct Memory(Vec<u8>);

    impl Physical for Memory {
        fn read(&self, address: u64, into: &mut [u8]) -> bool {
            let bytes = usize::try_from(address).ok().and_then(|at| self.0.get(at..)?.get(..into.len()));
            bytes.map(|bytes| into.copy_from_slice(bytes)).is_some()
        }
    }

    /// The first page of the address space is at a physical page.
    fn map(memory: &mut Memory, page: u64) {
        for (table, entry) in [(1, 2), (2, 3), (3, 4), (4, page)] {
            memory.0[table * 4096..][..8].copy_from_slice(&(entry << 12 | 3).to_le_bytes());
        }
    }

    #[test]
    fn a_read_sees_the_tables_of_its_moment() {
        let mut memory = Memory(vec![0; 16 * 4096]);
        memory.0[8 * 4096] = 8;
        memory.0[9 * 4096] = 9;
        let paging = Paging { cr0: 1 << 31 | 1, cr3: 0x1000, cr4: 1 << 5, efer: Some(1 << 10) };
        for page in [8, 9] {
            map(&mut memory, page);
            let (mut space, mut found) = (LiveSpace::new(&memory, paging), [0]);
            assert_eq!((space.read(0, &mut found).unwrap(), u64::from(found[0])), (1, page));
            assert_eq!(space.read(4096, &mut found).unwrap(), 0, "not mapped");
        }
    }

    #[test]
    fn a_process_is_read_up_to_what_it_has_not_mapped() {
        let own = [7u8; 32];
        let (mut space, mut found) = (ProcessSpace { pid: std::process::id() }, [0; 32]);
        assert_eq!(space.read(own.as_ptr() as u64, &mut found).unwrap(), own.len());
        assert_eq!(found, own);
        assert_eq!(space.read(8, &mut found).unwrap(), 0);
    }
}
