//! Page tables: one to one, nothing both writable and executable.
//!
//! Pure: tables come from a [`TableMemory`] and are written through it. They have four levels of 512 entries on each architecture; the bits of
//! an entry are in its `paging.rs`. Unmapped pages catch null pointers and stacks that grow too far.

use crate::arch::paging::{leaf, link, small_page};

/// Bytes of a small page.
pub const PAGE_BYTES: u64 = 4096;
const LARGE_PAGE_BYTES: u64 = 2 << 20;
const ENTRIES: usize = 512;

/// Where tables are.
pub trait TableMemory {
    /// A new table without entries: its physical address, at a page boundary. `None` when there is no memory.
    fn allocate(&mut self) -> Option<u64>;
    /// Entry `index`, below 512, of the table at physical address `table`.
    fn read(&self, table: u64, index: usize) -> u64;
    /// Writes that entry.
    fn write(&mut self, table: u64, index: usize, entry: u64);
}

/// What an entry above the lowest level is, by its bits (`arch/*/paging.rs`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// Nothing is mapped.
    Absent,
    /// The address of the next table.
    Table(u64),
    /// A page of 2 MiB.
    LargePage,
}

/// What a range of memory may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protection {
    /// Code.
    ReadExecute,
    /// Constants.
    Read,
    /// Data, stacks, heap.
    ReadWrite,
    /// Registers of devices: data that is not cached.
    Device,
}

/// There is no memory for another table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfTables;

/// The mappings of a core.
pub struct AddressSpace<M> {
    memory: M,
    /// Physical address of the highest table.
    root: u64,
}

impl<M: TableMemory> AddressSpace<M> {
    /// One without mappings.
    pub fn new(mut memory: M) -> Result<AddressSpace<M>, OutOfTables> {
        let root = memory.allocate().ok_or(OutOfTables)?;
        Ok(AddressSpace { memory, root })
    }

    /// The one whose highest table is at `root`, which [`AddressSpace::root`] has returned.
    pub fn open(memory: M, root: u64) -> AddressSpace<M> {
        AddressSpace { memory, root }
    }

    /// What the CPU must load to use it.
    pub fn root(&self) -> u64 {
        self.root
    }

    /// Maps the pages from `start` to `end` (both rounded outwards) at their own addresses, with
    /// large pages where they fit. A page that is mapped already keeps its mapping.
    pub fn map(&mut self, start: u64, end: u64, protection: Protection) -> Result<(), OutOfTables> {
        self.map_at(start, start, end, protection)
    }

    /// As [`AddressSpace::map`], at `address`, which must be as far into a page as `start` is.
    pub fn map_at(&mut self, address: u64, start: u64, end: u64, protection: Protection) -> Result<(), OutOfTables> {
        let distance = address.wrapping_sub(start);
        assert!(distance.is_multiple_of(PAGE_BYTES), "pages are mapped to pages");
        let mut physical = start & !(PAGE_BYTES - 1);
        let end = end.next_multiple_of(PAGE_BYTES);
        while physical < end {
            let address = physical.wrapping_add(distance);
            let is_large_place = (address | physical).is_multiple_of(LARGE_PAGE_BYTES);
            let directory = self.table_for(address, 2)?;
            let entry = Entry::from(self.memory.read(directory, index_at(address, 2)));
            if is_large_place && end - physical >= LARGE_PAGE_BYTES && entry == Entry::Absent {
                self.memory.write(directory, index_at(address, 2), leaf(physical, protection, true));
                physical += LARGE_PAGE_BYTES;
                continue;
            }
            if entry != Entry::LargePage {
                let table = self.table_for(address, 1)?;
                if self.memory.read(table, index_at(address, 1)) == 0 {
                    self.memory.write(table, index_at(address, 1), leaf(physical, protection, false));
                }
            }
            physical += PAGE_BYTES;
        }
        Ok(())
    }

    /// Takes the page at `address` away, before the CPU uses the tables.
    pub fn unmap(&mut self, address: u64) -> Result<(), OutOfTables> {
        let table = self.table_for(address, 1)?;
        self.memory.write(table, index_at(address, 1), 0);
        Ok(())
    }

    /// Maps also what the tables at `root` map, except where both have something under one entry of the highest table. What is
    /// mapped later below an entry of both is mapped in both.
    pub fn join(&mut self, root: u64) {
        for index in 0..ENTRIES {
            let entry = self.memory.read(root, index);
            if entry != 0 && self.memory.read(self.root, index) == 0 {
                self.memory.write(self.root, index, entry);
            }
        }
    }

    /// The table of `level` (1 = lowest) that covers `address`; made if missing, also of a large page.
    fn table_for(&mut self, address: u64, level: u32) -> Result<u64, OutOfTables> {
        let mut table = self.root;
        for above in (level + 1..=4).rev() {
            let index = index_at(address, above);
            let entry = self.memory.read(table, index);
            if let Entry::Table(address) = Entry::from(entry) {
                table = address;
                continue;
            }
            let next = self.memory.allocate().ok_or(OutOfTables)?;
            if entry != 0 {
                // The same mapping in small pages.
                (0..ENTRIES)
                    .for_each(|page| self.memory.write(next, page, small_page(entry, page as u64 * PAGE_BYTES)));
            }
            self.memory.write(table, index, link(next));
            table = next;
        }
        Ok(table)
    }
}

fn index_at(address: u64, level: u32) -> usize {
    (address >> (12 + 9 * (level - 1))) as usize % ENTRIES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::paging::{address_of, protection_of};
    use alloc::vec::Vec;

    const BASE: u64 = 0x40_0000;

    /// Tables behind one another from `BASE` on, at most so many.
    struct Tables {
        tables: Vec<[u64; ENTRIES]>,
        most: usize,
    }

    impl TableMemory for Tables {
        fn allocate(&mut self) -> Option<u64> {
            if self.tables.len() == self.most {
                return None;
            }
            self.tables.push([0; ENTRIES]);
            Some(BASE + (self.tables.len() - 1) as u64 * PAGE_BYTES)
        }
        fn read(&self, table: u64, index: usize) -> u64 {
            self.tables[(table - BASE) as usize / 4096][index]
        }
        fn write(&mut self, table: u64, index: usize, entry: u64) {
            self.tables[(table - BASE) as usize / 4096][index] = entry;
        }
    }

    fn space(most: usize) -> AddressSpace<Tables> {
        AddressSpace::new(Tables { tables: Vec::new(), most }).unwrap()
    }

    /// What the CPU would find.
    #[derive(Debug, PartialEq, Eq)]
    struct Found {
        protection: Protection,
        is_large: bool,
    }

    /// The leaf entry for `address`.
    fn walk(space: &AddressSpace<Tables>, address: u64) -> Option<Found> {
        walk_to(space, address, address)
    }

    /// The same for an address at which another place is mapped.
    fn walk_to(space: &AddressSpace<Tables>, address: u64, physical: u64) -> Option<Found> {
        let mut table = space.root();
        for level in (1..=4).rev() {
            let entry = space.memory.read(table, index_at(address, level));
            match Entry::from(entry) {
                Entry::Absent => return None,
                Entry::Table(next) if level > 1 => table = next,
                kind => {
                    let size = if level == 1 { PAGE_BYTES } else { LARGE_PAGE_BYTES };
                    assert_eq!(address_of(entry) & !(size - 1), physical & !(size - 1));
                    return Some(Found { protection: protection_of(entry), is_large: kind == Entry::LargePage });
                }
            }
        }
        unreachable!()
    }

    #[test]
    fn nothing_is_both_writable_and_executable() {
        let mut space = space(16);
        space.map(0x20_0000, 0x24_3000, Protection::ReadExecute).unwrap();
        space.map(0x24_3000, 0x25_0000, Protection::Read).unwrap();
        space.map(0x25_0000, 0x1000_0000, Protection::ReadWrite).unwrap();
        space.map(0xfee0_0000, 0xfee0_1000, Protection::Device).unwrap();
        space.unmap(0x26_0000).unwrap();
        assert_eq!(walk(&space, 0x24_2fff).unwrap().protection, Protection::ReadExecute);
        assert_eq!(walk(&space, 0x24_3000).unwrap().protection, Protection::Read);
        for address in [0x25_0000, 0x3f_f000, 0x40_0000, 0xfff_ffff] {
            assert_eq!(walk(&space, address).unwrap().protection, Protection::ReadWrite);
        }
        assert_eq!(walk(&space, 0xfee0_0000).unwrap().protection, Protection::Device);
        assert!(walk(&space, 0x40_0000).unwrap().is_large);
        assert_eq!(walk(&space, 0x26_0000), None);
        assert_eq!(walk(&space, 0), None);
        assert_eq!(walk(&space, 0x1000_0000), None);
    }

    #[test]
    fn the_first_mapping_stays() {
        let mut space = space(16);
        space.map(0x20_0000, 0x20_1000, Protection::ReadExecute).unwrap();
        space.map(0, 0x80_0000, Protection::ReadWrite).unwrap();
        assert_eq!(walk(&space, 0x20_0000).unwrap().protection, Protection::ReadExecute);
        assert_eq!(walk(&space, 0x20_1000).unwrap().protection, Protection::ReadWrite);
    }

    #[test]
    fn code_is_writable_only_where_it_cannot_be_run() {
        const SECOND: u64 = 1 << 40;
        let mut space = space(16);
        space.map(0x20_0000, 0x40_3000, Protection::ReadExecute).unwrap();
        space.map_at(0x20_0000 + SECOND, 0x20_0000, 0x40_3000, Protection::ReadWrite).unwrap();
        for physical in [0x20_0000, 0x3f_ffff, 0x40_2fff] {
            assert_eq!(walk(&space, physical).unwrap().protection, Protection::ReadExecute);
            assert_eq!(walk_to(&space, physical + SECOND, physical).unwrap().protection, Protection::ReadWrite);
        }
        assert_eq!(walk(&space, 0x40_3000 + SECOND), None);
        assert_eq!(walk(&space, 0x1f_ffff + SECOND), None);
    }

    #[test]
    fn a_page_inside_of_a_large_one_can_be_taken_away() {
        let mut space = space(16);
        space.map(0x20_0000, 0x80_0000, Protection::ReadWrite).unwrap();
        space.unmap(0x46_7000).unwrap();
        for (address, is_mapped) in [(0x40_0000, true), (0x46_6fff, true), (0x46_7000, false), (0x46_8000, true)] {
            let entry = walk(&space, address);
            assert_eq!(entry.is_some(), is_mapped);
            assert!(entry.is_none_or(|entry| entry.protection == Protection::ReadWrite));
        }
        assert!(walk(&space, 0x60_0000).unwrap().is_large);
    }

    #[test]
    fn memory_above_4_gib_and_windows_of_devices_are_mapped_later() {
        let mut space = space(16);
        space.map(1 << 32, 6 << 30, Protection::ReadWrite).unwrap();
        let root = space.root();
        let mut again = AddressSpace::open(space.memory, root);
        again.map(0x38_0000_1000, 0x38_0000_1010, Protection::Device).unwrap();
        assert!(walk(&again, (6 << 30) - 1).unwrap().is_large);
        assert_eq!(walk(&again, 6 << 30), None);
        assert_eq!(walk(&again, 0x38_0000_1fff).unwrap().protection, Protection::Device);
        assert_eq!(walk(&again, 0x38_0000_2000), None);
    }

    #[test]
    fn an_address_space_differs_from_another_in_one_place() {
        const OWN: u64 = 1 << 44;
        let mut kernel = space(16);
        kernel.map(0x20_0000, 0x40_3000, Protection::Read).unwrap();
        let root = kernel.root();
        let mut own = AddressSpace::new(kernel.memory).unwrap();
        own.map_at(OWN, 0x60_0000, 0x80_0000, Protection::ReadWrite).unwrap();
        own.join(root);
        assert!(walk(&own, 0x20_0000).is_some() && walk_to(&own, OWN, 0x60_0000).is_some());
        own.map(0x50_0000, 0x50_1000, Protection::Read).unwrap();
        let kernel = AddressSpace::open(own.memory, root);
        assert!(walk(&kernel, 0x40_2000).is_some() && walk(&kernel, 0x50_0000).is_some());
        assert_eq!(walk_to(&kernel, OWN, 0x60_0000), None);
    }

    #[test]
    fn running_out_of_tables_is_an_error() {
        let mut space = space(4);
        space.map(0x1000, 0x2000, Protection::Read).unwrap();
        assert_eq!(space.map(1 << 40, (1 << 40) + 1, Protection::Read), Err(OutOfTables));
    }
}
