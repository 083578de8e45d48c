//! Page tables, written once at boot: one to one, nothing both writable and executable.
//!
//! Pure: the builder fills tables that nobody uses yet. Every page is ring 3's (boot.s says why),
//! so write protection and NX are what separates code from data, and unmapped pages catch null
//! pointers and stacks that grow too far.

/// Bytes of a small page.
pub const PAGE_BYTES: u64 = 4096;
const LARGE_PAGE_BYTES: u64 = 2 << 20;
const ENTRIES: usize = 512;

const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const WRITE_THROUGH: u64 = 1 << 3;
const CACHE_DISABLE: u64 = 1 << 4;
const LARGE: u64 = 1 << 7;
const NO_EXECUTE: u64 = 1 << 63;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// One table of any level.
#[repr(C, align(4096))]
#[derive(Clone, Copy)]
pub struct Table([u64; ENTRIES]);

impl Table {
    /// A table that maps nothing.
    pub const EMPTY: Table = Table([0; ENTRIES]);
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

impl Protection {
    fn bits(self) -> u64 {
        PRESENT
            | USER
            | match self {
                Protection::ReadExecute => 0,
                Protection::Read => NO_EXECUTE,
                Protection::ReadWrite => NO_EXECUTE | WRITABLE,
                Protection::Device => NO_EXECUTE | WRITABLE | WRITE_THROUGH | CACHE_DISABLE,
            }
    }
}

/// The tables handed to the builder are used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfTables;

/// Fills tables. The first one is the root.
pub struct Builder<'a> {
    tables: &'a mut [Table],
    /// Physical address of `tables[0]`.
    base: u64,
    used: usize,
}

impl<'a> Builder<'a> {
    /// An address space without mappings in `tables`, which lie at physical address `base`.
    pub fn new(tables: &'a mut [Table], base: u64) -> Builder<'a> {
        assert!(!tables.is_empty() && base.is_multiple_of(PAGE_BYTES));
        tables.fill(Table::EMPTY);
        Builder { tables, base, used: 1 }
    }

    /// Maps the pages from `start` to `end` (both rounded outwards) at their own addresses, with
    /// large pages where they fit. A page that is mapped already keeps its mapping.
    pub fn map(&mut self, start: u64, end: u64, protection: Protection) -> Result<(), OutOfTables> {
        self.map_at(start, start, end, protection)
    }

    /// As [`Builder::map`], at `address`, which must be as far into a page as `start` is.
    pub fn map_at(&mut self, address: u64, start: u64, end: u64, protection: Protection) -> Result<(), OutOfTables> {
        let distance = address.wrapping_sub(start);
        assert!(distance.is_multiple_of(PAGE_BYTES), "pages are mapped to pages");
        let mut physical = start & !(PAGE_BYTES - 1);
        let end = end.next_multiple_of(PAGE_BYTES);
        while physical < end {
            let address = physical.wrapping_add(distance);
            let is_large_place = (address | physical).is_multiple_of(LARGE_PAGE_BYTES);
            let large = is_large_place && end - physical >= LARGE_PAGE_BYTES;
            let directory = self.table_for(address, 2)?;
            let entry = &mut self.tables[directory].0[index_at(address, 2)];
            if large && *entry == 0 {
                *entry = physical | protection.bits() | LARGE;
                physical += LARGE_PAGE_BYTES;
                continue;
            }
            if *entry & LARGE == 0 {
                let table = self.table_for(address, 1)?;
                let entry = &mut self.tables[table].0[index_at(address, 1)];
                if *entry == 0 {
                    *entry = physical | protection.bits();
                }
            }
            physical += PAGE_BYTES;
        }
        Ok(())
    }

    /// Takes the small page at `address` away. The page must have been mapped as a small one.
    pub fn unmap(&mut self, address: u64) -> Result<(), OutOfTables> {
        let table = self.table_for(address, 1)?;
        self.tables[table].0[index_at(address, 1)] = 0;
        Ok(())
    }

    /// Index in `tables` of the table of `level` (1 = lowest) that covers `address`; made if missing.
    fn table_for(&mut self, address: u64, level: u32) -> Result<usize, OutOfTables> {
        let mut table = 0;
        for above in (level + 1..=4).rev() {
            let index = index_at(address, above);
            let entry = self.tables[table].0[index];
            assert!(entry & LARGE == 0, "a large page lies where a table is needed");
            table = if entry != 0 {
                ((entry & ADDRESS) - self.base) as usize / PAGE_BYTES as usize
            } else {
                let next = self.used;
                if next == self.tables.len() {
                    return Err(OutOfTables);
                }
                self.used += 1;
                self.tables[table].0[index] = (self.base + next as u64 * PAGE_BYTES) | PRESENT | WRITABLE | USER;
                next
            };
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

    const BASE: u64 = 0x40_0000;

    /// What the CPU would find: the leaf entry for `address`.
    fn walk(tables: &[Table], address: u64) -> Option<u64> {
        walk_to(tables, address, address)
    }

    /// The same for an address at which another place is mapped.
    fn walk_to(tables: &[Table], address: u64, physical: u64) -> Option<u64> {
        let mut table = 0;
        for level in (1..=4).rev() {
            let entry = tables[table].0[index_at(address, level)];
            if entry & PRESENT == 0 {
                return None;
            }
            if level == 1 || entry & LARGE != 0 {
                let size = if level == 1 { PAGE_BYTES } else { LARGE_PAGE_BYTES };
                assert_eq!(entry & ADDRESS & !(size - 1), physical & !(size - 1));
                return Some(entry);
            }
            table = ((entry & ADDRESS) - BASE) as usize / PAGE_BYTES as usize;
        }
        unreachable!()
    }

    #[test]
    fn nothing_is_both_writable_and_executable() {
        let mut tables = [Table::EMPTY; 16];
        let mut builder = Builder::new(&mut tables, BASE);
        builder.map(0x20_0000, 0x24_3000, Protection::ReadExecute).unwrap();
        builder.map(0x24_3000, 0x25_0000, Protection::Read).unwrap();
        builder.map(0x25_0000, 0x1000_0000, Protection::ReadWrite).unwrap();
        builder.map(0xfee0_0000, 0xfee0_1000, Protection::Device).unwrap();
        builder.unmap(0x26_0000).unwrap();
        let code = walk(&tables, 0x24_2fff).unwrap();
        assert_eq!(code & (WRITABLE | NO_EXECUTE), 0);
        let constants = walk(&tables, 0x24_3000).unwrap();
        assert_eq!(constants & (WRITABLE | NO_EXECUTE), NO_EXECUTE);
        for address in [0x25_0000, 0x3f_f000, 0x40_0000, 0xfff_ffff, 0xfee0_0000] {
            assert_eq!(walk(&tables, address).unwrap() & (WRITABLE | NO_EXECUTE), WRITABLE | NO_EXECUTE);
        }
        assert_ne!(walk(&tables, 0x40_0000).unwrap() & LARGE, 0);
        assert_eq!(walk(&tables, 0x26_0000), None);
        assert_eq!(walk(&tables, 0), None);
        assert_eq!(walk(&tables, 0x1000_0000), None);
    }

    #[test]
    fn the_first_mapping_stays() {
        let mut tables = [Table::EMPTY; 16];
        let mut builder = Builder::new(&mut tables, BASE);
        builder.map(0x20_0000, 0x20_1000, Protection::ReadExecute).unwrap();
        builder.map(0, 0x80_0000, Protection::ReadWrite).unwrap();
        assert_eq!(walk(&tables, 0x20_0000).unwrap() & WRITABLE, 0);
        assert_ne!(walk(&tables, 0x20_1000).unwrap() & WRITABLE, 0);
    }

    #[test]
    fn code_is_writable_only_where_it_cannot_be_run() {
        const SECOND: u64 = 1 << 40;
        let mut tables = [Table::EMPTY; 16];
        let mut builder = Builder::new(&mut tables, BASE);
        builder.map(0x20_0000, 0x40_3000, Protection::ReadExecute).unwrap();
        builder.map_at(0x20_0000 + SECOND, 0x20_0000, 0x40_3000, Protection::ReadWrite).unwrap();
        for physical in [0x20_0000, 0x3f_ffff, 0x40_2fff] {
            assert_eq!(walk(&tables, physical).unwrap() & (WRITABLE | NO_EXECUTE), 0);
            let second = walk_to(&tables, physical + SECOND, physical).unwrap();
            assert_eq!(second & (WRITABLE | NO_EXECUTE), WRITABLE | NO_EXECUTE);
        }
        assert_eq!(walk(&tables, 0x40_3000 + SECOND), None);
        assert_eq!(walk(&tables, 0x1f_ffff + SECOND), None);
    }

    #[test]
    fn running_out_of_tables_is_an_error() {
        let mut tables = [Table::EMPTY; 4];
        let mut builder = Builder::new(&mut tables, BASE);
        builder.map(0x1000, 0x2000, Protection::Read).unwrap();
        assert_eq!(builder.map(1 << 40, (1 << 40) + 1, Protection::Read), Err(OutOfTables));
    }
}
