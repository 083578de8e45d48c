//! The page tables of AArch64: stage 1 of EL1 and EL0 (Arm Architecture Reference Manual, D8.2 and D8.3).

use crate::arch::paging::{Entry, Route, Tables};
use crate::memory::Physical;

const SCTLR_PAGING: u64 = 1;
/// Of TCR_EL1: the sizes of the two address spaces, which need no walk, which ignore the top byte, their granules, and tables with addresses of 52 bits.
const TCR_SIZE: [u32; 2] = [0, 16];
const TCR_NO_WALK: [u32; 2] = [7, 23];
const TCR_TOP_BYTE: [u32; 2] = [37, 38];
const TCR_GRANULE: [u32; 2] = [14, 30];
const TCR_52_BITS: u64 = 1 << 59;
/// What its two bits for a granule mean, in bits of an address: they are coded differently for each address space.
const GRANULES: [[Option<u32>; 4]; 2] = [[Some(12), Some(16), Some(14), None], [None, Some(14), Some(12), Some(16)]];
/// The bit of an address that selects the address space.
const SELECTING_BIT: u32 = 55;
/// Sizes of an address space, as the number of its upper bits that are the same: with fewer than 12 addresses have more than 52 bits.
const SIZES: std::ops::RangeInclusive<u64> = 12..=48;
/// Physical addresses in registers and entries.
const ADDRESS: u64 = 0x0000_ffff_ffff_fffe;
const ENTRY_VALID: u64 = 1;
/// Above the lowest level: another table, and no page. At the lowest level: a page.
const ENTRY_TABLE: u64 = 1 << 1;
/// The number of the highest level, from below, whose entries may be pages.
const LARGE_LEVEL_MAX: u32 = 2;
/// The most tables that a search reads, each of at most 64 KiB: an address space may have many that lead to each other.
const TABLES_MAX: u32 = 4096;

/// The registers that control address translation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Paging {
    /// SCTLR_EL1.
    pub sctlr: u64,
    /// TCR_EL1.
    pub tcr: u64,
    /// TTBR0_EL1 and TTBR1_EL1.
    pub tables: [u64; 2],
}

impl Paging {
    /// How many bits of an address in the space of `address` select a byte.
    #[must_use]
    pub fn address_bits(&self, address: u64) -> u8 {
        let space = usize::from(address >> SELECTING_BIT & 1 == 1);
        (64 - (self.tcr >> TCR_SIZE[space] & 63)) as u8
    }

    /// Bytes of the pages of the kernel's address space; those of 4 KiB if the register has another number.
    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        1 << GRANULES[1][(self.tcr >> TCR_GRANULE[1] & 3) as usize].unwrap_or(12)
    }

    /// How an address is translated.
    pub(in crate::arch) fn route(&self, page: u64) -> Route {
        if self.sctlr & SCTLR_PAGING == 0 {
            return Route::Physical;
        }
        let space = usize::from(page >> SELECTING_BIT & 1 == 1);
        let (size, is_set) = (self.tcr >> TCR_SIZE[space] & 63, |bit: u32| self.tcr >> bit & 1 == 1);
        let granule = GRANULES[space][(self.tcr >> TCR_GRANULE[space] & 3) as usize];
        let Some(page_shift) = granule.filter(|_| SIZES.contains(&size) && self.tcr & TCR_52_BITS == 0) else {
            return Route::None;
        };
        // The bits above the address space's are all the same, except in the top byte where that is ignored.
        let bits = 64 - size as u32;
        let ignored = if is_set(TCR_TOP_BYTE[space]) { 8 } else { 0 };
        let above = (page << ignored) as i64 >> (ignored + bits);
        if is_set(TCR_NO_WALK[space]) || above != -(space as i64) {
            return Route::None;
        }
        let index_bits = page_shift - 3;
        let levels = (bits - page_shift).div_ceil(index_bits);
        let root = self.tables[space] & ADDRESS;
        Route::Tables(Tables { root, levels, page_shift, index_bits, address: page & ((1 << bits) - 1) })
    }

    /// Searches the kernel's address space for a page, from its lowest address on. `found` is called with the address and the physical address of
    /// each, and those of large pages; what it returns first is the result. It is `None`, too, if there are too many tables.
    pub(crate) fn find_page<T>(
        &self,
        memory: &dyn Physical,
        mut found: impl FnMut(u64, u64) -> Option<T>,
    ) -> Option<T> {
        let lowest = u64::MAX << self.address_bits(u64::MAX);
        let Route::Tables(tables) = self.route(lowest) else { return None };
        let mut left = TABLES_MAX;
        pages(memory, &tables, (tables.root, tables.levels.checked_sub(1)?), lowest, &mut left, &mut found)
    }

    /// What an entry of a table leads to; level 0 is the lowest.
    pub(in crate::arch) fn entry(entry: u64, level: u32) -> Entry {
        // The bits in front of an address are attributes, which are never in front of that of a page of 4 KiB.
        let address = entry & ADDRESS & !0xfff;
        match (entry & ENTRY_VALID != 0, entry & ENTRY_TABLE != 0) {
            (true, true) if level == 0 => Entry::Page(address),
            (true, true) => Entry::Table(address),
            (true, false) if (1..=LARGE_LEVEL_MAX).contains(&level) => Entry::Page(address),
            _ => Entry::None,
        }
    }
}

/// The pages of a table of a level, whose first entry is for an address.
fn pages<T>(
    memory: &dyn Physical,
    tables: &Tables,
    (table, level): (u64, u32),
    start: u64,
    left: &mut u32,
    found: &mut impl FnMut(u64, u64) -> Option<T>,
) -> Option<T> {
    *left = left.checked_sub(1)?;
    let shift = tables.page_shift + tables.index_bits * level;
    // The first table may be smaller.
    let in_space = start.wrapping_neg().checked_shr(shift).unwrap_or(0);
    let count = in_space.clamp(1, 1 << tables.index_bits);
    let mut bytes = vec![0; count as usize * 8];
    if !memory.read(table, &mut bytes) {
        return None;
    }
    let entries = bytes.as_chunks::<8>().0.iter().map(|entry| u64::from_le_bytes(*entry));
    for (entry, address) in entries.zip((0..).map(|index: u64| start.wrapping_add(index << shift))) {
        let result = match Paging::entry(entry, level) {
            Entry::None => None,
            Entry::Page(physical) => found(address, physical & !((1 << shift) - 1)),
            Entry::Table(below) => pages(memory, tables, (below, level - 1), address, left, found),
        };
        if result.is_some() || *left == 0 {
            return result;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::paging::Translator;
    use crate::memory::Physical;

    struct Fake(Vec<u8>);

    impl Fake {
        fn set(&mut self, address: u64, value: u64) {
            self.0[address as usize..address as usize + 8].copy_from_slice(&value.to_le_bytes());
        }
    }

    impl Physical for Fake {
        fn read(&self, address: u64, into: &mut [u8]) -> bool {
            let bytes = self.0.get(address as usize..).and_then(|rest| rest.get(..into.len()));
            bytes.map(|bytes| into.copy_from_slice(bytes)).is_some()
        }
    }

    /// Two address spaces of 48 bits and 39 bits with granules of 4 KiB; their tables are at 0x1000 and 0x2000.
    const PAGING: Paging = Paging {
        sctlr: SCTLR_PAGING,
        tcr: 16 | 25 << 16 | 2 << 30,
        // With a number of the address space, and the bit of tables that are shared.
        tables: [0x0005_0000_0000_1000, 0x0005_0000_0000_2001],
    };

    fn read(fake: &Fake, paging: Paging, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        let read = Translator::new(paging).read(fake, address, &mut bytes);
        (read == 8).then(|| u64::from_le_bytes(bytes))
    }

    fn spaces() -> Fake {
        let mut fake = Fake(vec![0; 64 << 10]);
        // Four levels: 0x4000_1008 to a page at 0x6000.
        fake.set(0x1000, 0x3003);
        fake.set(0x3008, 0x4003);
        fake.set(0x4000, 0x5003);
        // Attributes, the lower ones and the upper ones.
        fake.set(0x5008, 0x0060_0000_0000_6f03);
        fake.set(0x6008, 11);
        // Three levels: 0xffff_ffc0_0020_7008 to a page of 2 MiB at 0.
        fake.set(0x2000, 0x7003);
        fake.set(0x7008, 0x0040_0000_0000_0701);
        fake.set(0x7010, 0x0040_0000_0000_0700);
        fake
    }

    #[test]
    fn two_address_spaces() {
        let fake = spaces();
        assert_eq!(read(&fake, PAGING, 0x4000_1008), Some(11));
        assert_eq!(read(&fake, PAGING, 0xffff_ff80_0020_6008), Some(11));
        assert_eq!(read(&fake, PAGING, 0xffff_ff80_0040_6008), None, "an entry that is not valid");
        // No bit of an address may differ from those above it.
        for address in [0xff00_0000_4000_1008, 0x0001_0000_4000_1008, 0xffff_fe80_0020_6008] {
            assert_eq!(read(&fake, PAGING, address), None, "{address:x}");
        }
        let ignoring = Paging { tcr: PAGING.tcr | 1 << 37 | 1 << 38, ..PAGING };
        for address in [0xff00_0000_4000_1008, 0x00ff_ff80_0020_6008] {
            assert_eq!(read(&fake, ignoring, address), Some(11), "{address:x}");
        }
        assert_eq!(read(&fake, ignoring, 0x0001_0000_4000_1008), None);
        assert_eq!((PAGING.address_bits(0x4000_1008), PAGING.address_bits(u64::MAX)), (48, 39));
    }

    #[test]
    fn pages_of_the_kernel_from_the_lowest_on() {
        let mut fake = spaces();
        let pages = |fake: &Fake| {
            let mut all = Vec::new();
            let _ = PAGING.find_page(fake, |address, physical| -> Option<()> {
                all.push((address, physical));
                None
            });
            all
        };
        assert_eq!(pages(&fake), [(0xffff_ff80_0020_0000, 0)]);
        assert_eq!(PAGING.find_page(&fake, |address, _| Some(address)), Some(0xffff_ff80_0020_0000));
        // A table of the lowest level, and a table that leads to itself: the search ends.
        fake.set(0x7018, 0x9003);
        fake.set(0x9ff8, 0x6703);
        assert_eq!(pages(&fake)[1..], [(0xffff_ff80_007f_f000, 0x6000)]);
        fake.set(0x2008, 0x2003);
        assert!(pages(&fake).len() > 2);
    }

    #[test]
    fn walks_that_are_off() {
        let fake = spaces();
        assert_eq!(read(&fake, Paging { sctlr: 0, ..PAGING }, 0x6008), Some(11), "physical addresses");
        assert_eq!(read(&fake, Paging { tcr: PAGING.tcr | 1 << 7, ..PAGING }, 0x4000_1008), None);
        assert_eq!(read(&fake, Paging { tcr: PAGING.tcr | 1 << 23, ..PAGING }, 0xffff_ff80_0020_6008), None);
        for tcr in [PAGING.tcr | TCR_52_BITS, PAGING.tcr | 3 << 14, PAGING.tcr & !63, PAGING.tcr | 63] {
            assert_eq!(read(&fake, Paging { tcr, ..PAGING }, 0x4000_1008), None, "{tcr:x}");
        }
    }

    /// Of 16 KiB: a table has 2048 entries, and one of the highest of the four levels two.
    #[test]
    fn other_granules() {
        let mut fake = Fake(vec![0; 256 << 10]);
        let paging = Paging { tcr: 16 | 2 << 14 | 16 << 16 | 1 << 30, tables: [0x4000, 0x4000], ..PAGING };
        fake.set(0x4008, 0x8003);
        fake.set(0x8000 + 2047 * 8, 0xc003);
        fake.set(0xc000 + 2046 * 8, 0x1_0003);
        fake.set(0x1_0000 + 2047 * 8, 0x1_4f03);
        // A page of 32 MiB.
        fake.set(0xc000, 0x0701);
        fake.set(0x1_7ff8, 22);
        assert_eq!(read(&fake, paging, 0xffff_ffff_fdff_fff8), Some(22));
        assert_eq!(read(&fake, paging, 0xffff_fff0_0001_7ff8), Some(22));
        assert_eq!(read(&fake, paging, 0xffff_ffff_fdff_bff8), None);
        // Of 64 KiB: 64 entries, then 8192.
        let paging = Paging { tcr: 16 | 1 << 14 | 16 << 16 | 3 << 30, tables: [0x1_0000, 0x1_0000], ..PAGING };
        let mut fake = Fake(vec![0; 320 << 10]);
        fake.set(0x1_0000 + 63 * 8, 0x2_0003);
        fake.set(0x2_0000 + 8191 * 8, 0x3_0003);
        fake.set(0x3_0000 + 8191 * 8, 0x4_0003);
        fake.set(0x4_fff8, 33);
        assert_eq!(read(&fake, paging, u64::MAX - 7), Some(33));
    }
}
