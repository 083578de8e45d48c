//! The bits of page-table entries (Arm Architecture Reference Manual, D8.3). All pages are EL1's.

use crate::paging::{Entry, Protection};

const VALID: u64 = 1;
/// Of an entry above the lowest level: a table, not a large page. At the lowest level all entries have it.
const TABLE: u64 = 1 << 1;
/// The attributes with number 1 of boot.s.
const DEVICE: u64 = 1 << 2;
const READ_ONLY: u64 = 1 << 7;
const INNER_SHAREABLE: u64 = 3 << 8;
const ACCESSED: u64 = 1 << 10;
/// Of one address space: boot.s has the reason.
const NOT_GLOBAL: u64 = 1 << 11;
/// At EL1, and at EL0.
const NO_EXECUTE: u64 = 1 << 53;
const NO_EXECUTE_EL0: u64 = 1 << 54;
const ADDRESS: u64 = 0x0000_ffff_ffff_f000;

impl From<u64> for Entry {
    fn from(entry: u64) -> Entry {
        match (entry & VALID != 0, entry & TABLE != 0) {
            (false, _) => Entry::Absent,
            (true, true) => Entry::Table(entry & ADDRESS),
            (true, false) => Entry::LargePage,
        }
    }
}

/// The entry of a page at `physical`.
pub fn leaf(physical: u64, protection: Protection, is_large: bool) -> u64 {
    let bits = match protection {
        Protection::ReadExecute => READ_ONLY | INNER_SHAREABLE,
        Protection::Read => READ_ONLY | NO_EXECUTE | INNER_SHAREABLE,
        Protection::ReadWrite => NO_EXECUTE | INNER_SHAREABLE,
        Protection::Device => NO_EXECUTE | DEVICE,
    };
    physical | VALID | ACCESSED | NOT_GLOBAL | NO_EXECUTE_EL0 | bits | if is_large { 0 } else { TABLE }
}

/// The entry of a table at `physical`.
pub fn link(physical: u64) -> u64 {
    physical | VALID | TABLE
}

/// The entry of the small page so many bytes into a large one, with the same protection.
pub fn small_page(large: u64, offset: u64) -> u64 {
    (large | TABLE) + offset
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
    let is_same = |of: &Protection| leaf(0, *of, true) == entry & !ADDRESS & !TABLE;
    all.into_iter().find(is_same).expect("an entry has the bits of a protection")
}
