//! A guest's own page tables, walked from outside: virtual to physical addresses. What the registers and entries of a processor mean is in the
//! module for it.

use super::{Paging, aarch64, x86_64};
use crate::memory::Physical;

/// What is translated at once; the pages of some processors have several of these.
const PAGE_BYTES: u64 = 4096;

/// How an address is translated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    /// It is a physical one.
    Physical,
    /// It is not, or by tables that are not known.
    None,
    /// By these.
    Tables(Tables),
}

/// The tables that translate an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tables {
    /// The physical address of the first.
    pub(super) root: u64,
    /// How many there are on the way to a page.
    pub(super) levels: u32,
    /// The bits of an address in a page.
    pub(super) page_shift: u32,
    /// The bits of an address that select an entry of a table.
    pub(super) index_bits: u32,
    /// The address, as far as it selects entries.
    pub(super) address: u64,
}

/// What an entry of a table leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    /// Nothing.
    None,
    /// Another table, at a physical address.
    Table(u64),
    /// A page; the bits of the address within the page may be set.
    Page(u64),
}

impl Paging {
    fn route(&self, page: u64) -> Route {
        match self {
            Paging::X86_64(paging) => paging.route(page),
            Paging::Aarch64(paging) => paging.route(page),
        }
    }

    fn entry(&self, entry: u64, level: u32) -> Entry {
        match self {
            Paging::X86_64(_) => x86_64::paging::Paging::entry(entry, level),
            Paging::Aarch64(_) => aarch64::paging::Paging::entry(entry, level),
        }
    }
}

/// Translates and reads virtual addresses while a guest is stopped. The cache is valid for one stop of one
/// address space only: the guest may change its page tables whenever it runs, and older entries
/// would have to be read again at every level to be trusted. With RAM that is mapped here, keeping
/// translations without this check would save 0.05 us of a sample, 1.7 us with a file that is read
/// and 5 us with the memory of the VMM (2026-11-21, examples/memory_cost.rs): not worth a wrong byte.
#[derive(Debug)]
pub struct Translator {
    paging: Paging,
    /// Virtual and physical page, by the virtual page's low bits.
    cache: [Option<(u64, u64)>; Translator::CACHE_PAGES],
    /// The same of 2 MiB in a large page, by the bits above: a kernel maps all RAM by such pages, and its structures are anywhere.
    large: [Option<(u64, u64)>; Translator::LARGE_PAGES],
    /// The address bits above a table of the lowest level, and the table: a stack's pages have one in common.
    table: Option<(u64, u64)>,
    /// The address of some entries of a table of the lowest level, and these: pages that follow each other have their entries there.
    entries: Option<(u64, [u8; Translator::ENTRIES_BYTES])>,
}

/// The address bits in the smallest of large pages.
const LARGE_SHIFT: u32 = 21;

impl Translator {
    const CACHE_PAGES: usize = 16;
    const LARGE_PAGES: usize = 64;
    /// A line of the processor's cache.
    const ENTRIES_BYTES: usize = 64;
    /// The most pages that are read at a time.
    const PAGES_MAX: usize = 16;

    /// A translator for the address space that these registers select.
    pub fn new(paging: impl Into<Paging>) -> Translator {
        let (cache, large) = ([None; Translator::CACHE_PAGES], [None; Translator::LARGE_PAGES]);
        Translator { paging: paging.into(), cache, large, table: None, entries: None }
    }

    /// The physical page of a virtual one, both by their addresses; `None` if it is not mapped.
    pub fn translate_page(&mut self, memory: &impl Physical, page: u64) -> Option<u64> {
        let slot = (page / PAGE_BYTES) as usize % Translator::CACHE_PAGES;
        if let Some((known, physical)) = self.cache[slot]
            && known == page
        {
            return Some(physical);
        }
        let above = page >> LARGE_SHIFT;
        if let Some((known, physical)) = self.large[above as usize % Translator::LARGE_PAGES]
            && known == above
        {
            return Some(physical | page & ((1 << LARGE_SHIFT) - 1));
        }
        let physical = self.walk(memory, page)?;
        self.cache[slot] = Some((page, physical));
        Some(physical)
    }

    fn walk(&mut self, memory: &impl Physical, page: u64) -> Option<u64> {
        let tables = match self.paging.route(page) {
            Route::Physical => return Some(page),
            Route::None => return None,
            Route::Tables(tables) => tables,
        };
        // What a table of the lowest level translates has these bits in common.
        let above = page >> (tables.page_shift + tables.index_bits);
        let (mut table, levels) = match self.table {
            Some((known, table)) if known == above => (table, 1),
            _ => (tables.root, tables.levels),
        };
        for level in (0..levels).rev() {
            let shift = tables.page_shift + tables.index_bits * level;
            let index = (tables.address >> shift) & ((1 << tables.index_bits) - 1);
            let at = table + index * 8;
            let entry = if level == 0 { self.last_entry(memory, at)? } else { word(memory, at)? };
            match self.paging.entry(entry, level) {
                Entry::None => return None,
                Entry::Table(next) => table = next,
                Entry::Page(start) => {
                    let inside = (1u64 << shift) - 1;
                    let physical = (start & !inside) | (page & inside);
                    if level == 0 {
                        self.table = Some((above, table));
                    } else {
                        self.keep_large(page, physical);
                    }
                    return Some(physical);
                }
            }
        }
        None
    }

    /// Keeps the part of a large page that one of these addresses is in.
    fn keep_large(&mut self, page: u64, physical: u64) {
        let (above, start) = (page >> LARGE_SHIFT, physical & !((1 << LARGE_SHIFT) - 1));
        self.large[above as usize % Translator::LARGE_PAGES] = Some((above, start));
    }

    /// An entry of a table of the lowest level.
    fn last_entry(&mut self, memory: &impl Physical, address: u64) -> Option<u64> {
        let start = address & !(Translator::ENTRIES_BYTES as u64 - 1);
        if self.entries.is_none_or(|(known, _)| known != start) {
            let mut bytes = [0; Translator::ENTRIES_BYTES];
            if !memory.read(start, &mut bytes) {
                return None;
            }
            self.entries = Some((start, bytes));
        }
        let (_, bytes) = self.entries.as_ref()?;
        bytes.get((address - start) as usize..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
    }

    /// Copies from a virtual address; returns how many bytes there were up to the first page that is
    /// not mapped or not RAM.
    pub fn read(&mut self, memory: &impl Physical, address: u64, into: &mut [u8]) -> usize {
        let bytes = into.len();
        let in_first = (PAGE_BYTES - address % PAGE_BYTES).min(bytes as u64) as usize;
        if in_first == bytes {
            let page = self.translate_page(memory, address & !(PAGE_BYTES - 1));
            let is_read = page.is_some_and(|page| memory.read(page + address % PAGE_BYTES, into));
            return if is_read { bytes } else { 0 };
        }
        let (mut rest, mut next, mut done) = (into, Some(address), 0);
        while !rest.is_empty() {
            let mut pieces = Vec::with_capacity(Translator::PAGES_MAX);
            while !rest.is_empty() && pieces.len() < Translator::PAGES_MAX {
                let Some(at) = next else { break };
                let Some(page) = self.translate_page(memory, at & !(PAGE_BYTES - 1)) else { break };
                let in_page = (PAGE_BYTES - at % PAGE_BYTES).min(rest.len() as u64);
                let (piece, behind) = rest.split_at_mut(in_page as usize);
                pieces.push((page + at % PAGE_BYTES, piece));
                (rest, next) = (behind, at.checked_add(in_page));
            }
            let read = memory.read_each(&mut pieces);
            done += pieces.iter().take(read).map(|(_, piece)| piece.len()).sum::<usize>();
            if pieces.is_empty() || read < pieces.len() {
                break;
            }
        }
        done
    }
}

/// A word of physical memory.
fn word(memory: &impl Physical, address: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    memory.read(address, &mut bytes).then(|| u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::x86_64::paging::Paging;
    use std::cell::Cell;

    const CR0_PAGING: u64 = 1 << 31;
    const CR4_PHYSICAL_EXTENSION: u64 = 1 << 5;
    const CR4_FIVE_LEVELS: u64 = 1 << 12;
    const ENTRY_LARGE: u64 = 1 << 7;

    struct Fake {
        bytes: Vec<u8>,
        reads: Cell<usize>,
    }

    impl Fake {
        fn new() -> Fake {
            Fake { bytes: vec![0; 64 << 10], reads: Cell::new(0) }
        }

        fn set(&mut self, address: u64, value: u64) {
            self.bytes[address as usize..address as usize + 8].copy_from_slice(&value.to_le_bytes());
        }
    }

    impl Physical for Fake {
        fn read(&self, address: u64, into: &mut [u8]) -> bool {
            self.reads.set(self.reads.get() + 1);
            let Some(bytes) = self.bytes.get(address as usize..).and_then(|rest| rest.get(..into.len())) else {
                return false;
            };
            into.copy_from_slice(bytes);
            true
        }
    }

    const PAGING: Paging = Paging { cr0: CR0_PAGING, cr3: 0x1000, cr4: CR4_PHYSICAL_EXTENSION, efer: None };

    /// 0xffff_8000_0040_0000 and the page after it, mapped to 0x8000 and 0x6000.
    fn upper_half() -> Fake {
        let mut fake = Fake::new();
        fake.set(0x1000 + 256 * 8, 0x2003);
        fake.set(0x2000, 0x3003);
        fake.set(0x3000 + 2 * 8, 0x4003);
        fake.set(0x4000, 0x8003);
        fake.set(0x4008, 0x6003);
        fake.set(0x8ff8, 11);
        fake.set(0x6000, 22);
        fake
    }

    #[test]
    fn four_levels_and_a_page_boundary() {
        let fake = upper_half();
        let mut translator = Translator::new(PAGING);
        let mut bytes = [0; 16];
        assert_eq!(translator.read(&fake, 0xffff_8000_0040_0ff8, &mut bytes), 16);
        assert_eq!((bytes[0], bytes[8]), (11, 22));
        let walked = fake.reads.replace(0);
        assert_eq!(translator.read(&fake, 0xffff_8000_0040_0ff8, &mut bytes), 16);
        assert_eq!(
            (walked, fake.reads.get()),
            (6, 2),
            "the second page's entry is beside the first one's, the second read uses the cache"
        );
        assert_eq!(translator.read(&fake, 0xffff_8000_0060_0000, &mut bytes), 0, "another table, which there is not");
    }

    #[test]
    fn five_levels() {
        let mut fake = upper_half();
        fake.set(0x9000 + 0x1ff * 8, 0x1003);
        let paging = Paging { cr3: 0x9000, cr4: CR4_FIVE_LEVELS | CR4_PHYSICAL_EXTENSION, ..PAGING };
        let mut bytes = [0; 8];
        assert_eq!(Translator::new(paging).read(&fake, 0xffff_8000_0040_0ff8, &mut bytes), 8);
        assert_eq!(bytes[0], 11);
    }

    #[test]
    fn large_pages() {
        let mut fake = Fake::new();
        fake.set(0x1000, 0x2003);
        fake.set(0x2000, ENTRY_LARGE | 3);
        fake.set(0x5008, 33);
        let mut bytes = [0; 8];
        let mut translator = Translator::new(PAGING);
        assert_eq!(translator.read(&fake, 0x5008, &mut bytes), 8);
        assert_eq!(bytes[0], 33);
        // Another page of the same 2 MiB needs no entry; in the next ones the first does.
        fake.reads.set(0);
        assert_eq!((translator.translate_page(&fake, 0x7000), fake.reads.get()), (Some(0x7000), 0));
        assert_eq!((translator.translate_page(&fake, 0x20_7000), fake.reads.get()), (Some(0x20_7000), 2));
        assert_eq!((translator.translate_page(&fake, 0x20_8000), fake.reads.get()), (Some(0x20_8000), 2));
    }

    #[test]
    fn pages_of_a_gibibyte() {
        let mut fake = Fake::new();
        fake.set(0x1000 + 256 * 8, 0x2003);
        fake.set(0x2000 + 511 * 8, ENTRY_LARGE | 3);
        // Bit 12 of the entry is not part of the address, but a memory type.
        fake.set(0x2000, ENTRY_LARGE | 0x1003);
        fake.set(0x5008, 44);
        for address in [0xffff_807f_c000_5008, 0xffff_8000_0000_5008] {
            let mut bytes = [0; 8];
            assert_eq!(Translator::new(PAGING).read(&fake, address, &mut bytes), 8);
            assert_eq!(bytes[0], 44, "{address:x}");
        }
    }

    #[test]
    fn tables_of_other_modes_are_not_walked() {
        let fake = upper_half();
        let mut bytes = [0; 8];
        for paging in [Paging { cr4: 0, ..PAGING }, Paging { efer: Some(0x100), ..PAGING }] {
            assert_eq!(Translator::new(paging).read(&fake, 0xffff_8000_0040_0ff8, &mut bytes), 0);
        }
        let paging = Paging { efer: Some(0x500), ..PAGING };
        assert_eq!(Translator::new(paging).read(&fake, 0xffff_8000_0040_0ff8, &mut bytes), 8);
        // Without paging, addresses are physical.
        assert_eq!(Translator::new(Paging::default()).read(&fake, 0x8ff8, &mut bytes), 8);
        assert_eq!(bytes[0], 11);
    }

    #[test]
    fn what_is_not_mapped_or_not_ram_ends_the_copy() {
        let mut fake = upper_half();
        let mut bytes = [0; 0x3000];
        assert_eq!(Translator::new(PAGING).read(&fake, 0xffff_8000_0040_0000, &mut bytes), 0x2000);
        assert_eq!(Translator::new(PAGING).read(&fake, 0x1000, &mut bytes), 0);
        assert_eq!(Translator::new(PAGING).read(&fake, u64::MAX - 3, &mut bytes), 0);
        // A table far outside of RAM.
        fake.set(0x1000, 0x7fff_ffff_f003);
        assert_eq!(Translator::new(PAGING).read(&fake, 0, &mut bytes), 0);
        assert_eq!(Translator::new(Paging { cr3: u64::MAX, ..PAGING }).read(&fake, 0, &mut bytes), 0);
    }

    #[test]
    fn addresses_that_no_processor_accepts() {
        let mut fake = Fake::new();
        fake.set(0x1000, 0x2003);
        fake.set(0x2000, ENTRY_LARGE | 3);
        let read = |paging, address| Translator::new(paging).read(&fake, address, &mut [0; 8]);
        assert_eq!(read(PAGING, 0x5008), 8);
        for address in [1 << 47, 1 << 48, 1 << 63, (u64::MAX << 47) ^ (1 << 60), u64::MAX - 7] {
            assert_eq!(read(PAGING, address), 0, "{address:x}");
        }
        // With five levels, bit 48 selects.
        let mut fake = upper_half();
        fake.set(0x9000, 0x1003);
        let paging = Paging { cr3: 0x9000, cr4: CR4_FIVE_LEVELS | CR4_PHYSICAL_EXTENSION, ..PAGING };
        assert_eq!(Translator::new(paging).read(&fake, 0x8000_0040_0ff8, &mut [0; 8]), 8);
        assert_eq!(Translator::new(paging).read(&fake, 1 << 57, &mut [0; 8]), 0);
    }

    /// For any tables, a copy takes a bounded number of reads.
    #[test]
    fn tables_that_lie_cost_no_more_than_honest_ones() {
        const STACK_BYTES: usize = 16 << 10;
        let mut fake = Fake::new();
        let mut random = 88_172_645_463_325_252u64;
        for address in (0..60 << 10).step_by(8) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            // Present, and mostly within memory: any page may be a table of any other.
            fake.set(address, (random % (70 << 10)) | 1 | (random & ENTRY_LARGE));
        }
        for page in 0..1000u64 {
            fake.reads.set(0);
            let address = ((page << 40) | (page << 20) | 0xff8).wrapping_mul(if page & 1 == 0 { 1 } else { 0x1ff });
            let mut stack = vec![0; STACK_BYTES];
            let copied = Translator::new(PAGING).read(&fake, address, &mut stack);
            assert!(copied <= stack.len());
            let pages = STACK_BYTES / PAGE_BYTES as usize + 1;
            assert!(fake.reads.get() <= pages * 5, "{} reads", fake.reads.get());
        }
    }

    #[test]
    fn a_table_that_points_to_itself_is_walked_once_a_level() {
        let mut fake = Fake::new();
        for index in 0..512 {
            fake.set(0x1000 + index * 8, 0x1003);
        }
        let mut bytes = [0; 8];
        assert_eq!(Translator::new(PAGING).read(&fake, 0, &mut bytes), 8);
        assert_eq!(fake.reads.get(), 5);
    }
}
