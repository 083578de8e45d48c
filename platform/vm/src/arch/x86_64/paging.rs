//! The bits of page-table entries (Intel SDM volume 3, section 4.5).
//!
//! Every page is ring 3's (the reason is in boot.s), so write protection and NX are what separates code from data.
//!
//! Pages are accessed from the start, and dirty if they can be: a KVM that shadows these tables maps the neighbours of a page with it, up to eight, only if
//! they are (2 ms less of a boot here).

use crate::paging::{Entry, Protection};

const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const WRITE_THROUGH: u64 = 1 << 3;
const CACHE_DISABLE: u64 = 1 << 4;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;
const NO_EXECUTE: u64 = 1 << 63;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

impl From<u64> for Entry {
    fn from(entry: u64) -> Entry {
        match (entry & PRESENT != 0, entry & LARGE != 0) {
            (false, _) => Entry::Absent,
            (true, false) => Entry::Table(entry & ADDRESS),
            (true, true) => Entry::LargePage,
        }
    }
}

/// The entry of a page at `physical`.
pub fn leaf(physical: u64, protection: Protection, is_large: bool) -> u64 {
    let bits = match protection {
        Protection::ReadExecute => 0,
        Protection::Read => NO_EXECUTE,
        Protection::ReadWrite => NO_EXECUTE | WRITABLE | DIRTY,
        Protection::Device => NO_EXECUTE | WRITABLE | WRITE_THROUGH | CACHE_DISABLE,
    };
    physical | PRESENT | USER | ACCESSED | bits | if is_large { LARGE } else { 0 }
}

/// The entry of a table at `physical`.
pub fn link(physical: u64) -> u64 {
    physical | PRESENT | WRITABLE | USER
}

/// The entry of the small page so many bytes into a large one, with the same protection.
pub fn small_page(large: u64, offset: u64) -> u64 {
    (large & !LARGE) + offset
}

/// The address of an entry's page.
#[cfg(test)]
pub fn address_of(entry: u64) -> u64 {
    entry & ADDRESS
}

/// The protection of an entry's page.
///
/// # Panics
/// If it has none that is used.
#[cfg(test)]
pub fn protection_of(entry: u64) -> Protection {
    let all = [Protection::ReadExecute, Protection::Read, Protection::ReadWrite, Protection::Device];
    let is_same = |of: &Protection| leaf(0, *of, false) == entry & !ADDRESS & !LARGE;
    all.into_iter().find(is_same).expect("an entry has the bits of a protection")
}
