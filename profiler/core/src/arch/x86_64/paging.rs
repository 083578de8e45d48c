//! The page tables of x86-64: Intel SDM volume 3, 5.5.

use crate::arch::paging::{Entry, Route, Tables};

const CR0_PAGING: u64 = 1 << 31;
const CR4_PHYSICAL_EXTENSION: u64 = 1 << 5;
const CR4_FIVE_LEVELS: u64 = 1 << 12;
const EFER_LONG_MODE_ACTIVE: u64 = 1 << 10;
const ENTRY_PRESENT: u64 = 1;
const ENTRY_LARGE: u64 = 1 << 7;
const ENTRY_ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// The bits of an address in a page, and those that select an entry of a table.
const PAGE_SHIFT: u32 = 12;
const INDEX_BITS: u32 = 9;
/// What distinguishes the CR3 of a process from that of its kernel in a Linux with page table isolation
/// (`PTI_USER_PGTABLE_AND_PCID_MASK` of `arch/x86/entry/calling.h`): its tables are in the page behind the kernel's, and its
/// number of an address space (PCID) has bit 11.
const CR3_ISOLATED: u64 = 1 << 12 | 1 << 11;

/// The registers that control address translation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Paging {
    /// CR0.
    pub cr0: u64,
    /// CR3.
    pub cr3: u64,
    /// CR4.
    pub cr4: u64,
    /// EFER, if it is known.
    pub efer: Option<u64>,
}

impl Paging {
    /// Whether the core is in long mode, as far as the registers show.
    pub(super) fn is_long(&self) -> bool {
        self.cr0 & CR0_PAGING != 0 && !self.is_legacy()
    }

    /// The page tables of the kernel, if these may be the ones that a Linux with page table isolation (KPTI) gives to the same process
    /// while it runs. Whether they are is for their contents to show: in other guests the page in front of these is any page.
    #[must_use]
    pub fn of_isolating_kernel(&self) -> Option<Paging> {
        const TABLES: u64 = CR3_ISOLATED & ENTRY_ADDRESS;
        (self.is_long() && self.cr3 & TABLES != 0).then_some(Paging { cr3: self.cr3 & !CR3_ISOLATED, ..*self })
    }

    /// Paging of another mode than the 64-bit one: a guest that still boots, or a 32-bit one. Its
    /// tables have another format, so they are not walked.
    fn is_legacy(&self) -> bool {
        self.cr4 & CR4_PHYSICAL_EXTENSION == 0 || self.efer.is_some_and(|efer| efer & EFER_LONG_MODE_ACTIVE == 0)
    }

    /// How an address is translated.
    pub(in crate::arch) fn route(&self, page: u64) -> Route {
        if self.cr0 & CR0_PAGING == 0 {
            return Route::Physical;
        }
        if self.is_legacy() {
            return Route::None;
        }
        let levels = if self.cr4 & CR4_FIVE_LEVELS != 0 { 5 } else { 4 };
        // The bits above those that select entries are copies of the highest of these; others fault.
        let unused = 64 - (PAGE_SHIFT + INDEX_BITS * levels);
        if ((page << unused) as i64 >> unused) as u64 != page {
            return Route::None;
        }
        let root = self.cr3 & ENTRY_ADDRESS;
        Route::Tables(Tables { root, levels, page_shift: PAGE_SHIFT, index_bits: INDEX_BITS, address: page })
    }

    /// What an entry of a table leads to; level 0 is the lowest.
    pub(in crate::arch) fn entry(entry: u64, level: u32) -> Entry {
        if entry & ENTRY_PRESENT == 0 {
            return Entry::None;
        }
        // A page of 1 GiB or 2 MiB ends the walk early; larger ones do not exist.
        let is_page = level == 0 || (level <= 2 && entry & ENTRY_LARGE != 0);
        if is_page { Entry::Page(entry & ENTRY_ADDRESS) } else { Entry::Table(entry & ENTRY_ADDRESS) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGING: Paging = Paging { cr0: CR0_PAGING, cr3: 0x1000, cr4: CR4_PHYSICAL_EXTENSION, efer: None };

    #[test]
    fn the_tables_of_a_kernel_that_isolates_them() {
        let of = |cr3| Paging { cr3, ..PAGING }.of_isolating_kernel().map(|paging| paging.cr3);
        // With numbers of address spaces and without.
        assert_eq!((of(0x3806), of(0x3000)), (Some(0x2006), Some(0x2000)));
        assert_eq!((of(0x2006), of(0x2806)), (None, None), "those of the kernel itself");
        assert_eq!(Paging { cr3: 0x3000, cr4: 0, ..PAGING }.of_isolating_kernel(), None, "a 32-bit guest");
    }
}
