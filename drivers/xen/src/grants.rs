//! Grants of version 1 (`xen/include/public/grant_table.h`): pages that another domain may map.
//!
//! The table is a page that Xen reads. Another domain's use of a page shows in its entry, and the end of a grant fails while it lasts: such
//! a page is kept, out of use, until it is over. So no page returns to the allocator that another domain can write.
//!
//! A front end keeps its pages granted from start to end and copies data into and out of them (persistent grants), so a
//! back end may keep its mapping; one that does not is correct too.

use crate::page::{PAGE_BYTES, SharedPages};
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::mem;
use core::sync::atomic::Ordering;

/// Entries below are Xen's own: console and xenstore.
const RESERVED: u32 = 8;
const ENTRY_BYTES: usize = 8;
const PERMIT_ACCESS: u16 = 1;
const READ_ONLY: u16 = 1 << 2;
const READING: u16 = 1 << 3;
const WRITING: u16 = 1 << 4;
/// How often an entry may change while a grant is ended, before the grant is kept.
const ATTEMPTS_MAX: usize = 8;
/// How many of the kept grants are looked at for each new one.
const RETRIES: usize = 4;

/// The number of a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Domain(pub u16);

/// What the other domain may do with a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read it.
    Read,
    /// Read and write it.
    Write,
}

/// The grant table. Clones are handles to the same one.
#[derive(Debug, Clone)]
pub struct Grants {
    table: Rc<RefCell<Table>>,
}

#[derive(Debug)]
struct Table {
    entries: SharedPages,
    free: Vec<u32>,
    /// Ended by us, in use by the other domain.
    kept: VecDeque<(u32, SharedPages)>,
}

/// A page that another domain may reach. Dropping it ends that, or keeps the page until the domain does not use it any more.
#[derive(Debug)]
pub struct Grant {
    table: Rc<RefCell<Table>>,
    reference: u32,
    pages: SharedPages,
}

impl Grants {
    /// Manages the table in `entries`, which the platform has made Xen's (`XENMAPSPACE_grant_table`).
    pub fn new(entries: SharedPages) -> Grants {
        let count = (entries.bytes() / ENTRY_BYTES) as u32;
        let free = (RESERVED..count).rev().collect();
        Grants { table: Rc::new(RefCell::new(Table { entries, free, kept: VecDeque::new() })) }
    }

    /// Lends page `index` of `pages` to `domain`. `None` when the table is full, or the frame's number has more than 32 bits.
    pub fn grant(&self, pages: &SharedPages, index: usize, domain: Domain, access: Access) -> Option<Grant> {
        let frame = u32::try_from(pages.frame(index)).ok()?;
        let mut table = self.table.borrow_mut();
        table.retry();
        let reference = table.free.pop()?;
        let entry = reference as usize * ENTRY_BYTES;
        table.entries.word_u32(entry + 4).store(frame.to_le(), Ordering::Relaxed);
        table.entries.word_u16(entry + 2).store(domain.0.to_le(), Ordering::Relaxed);
        let flags = if access == Access::Read { PERMIT_ACCESS | READ_ONLY } else { PERMIT_ACCESS };
        // Last: from here on Xen uses the entry.
        table.entries.word_u16(entry).store(flags.to_le(), Ordering::Release);
        Some(Grant { table: self.table.clone(), reference, pages: pages.clone() })
    }

    /// Lends all of `pages`, in order. `None` when the table has no room for them; none is lent then.
    pub fn grant_all(&self, pages: &SharedPages, domain: Domain, access: Access) -> Option<Vec<Grant>> {
        (0..pages.bytes() / PAGE_BYTES).map(|index| self.grant(pages, index, domain, access)).collect()
    }

    /// Pages whose grant has ended here, but which the other domain still uses.
    pub fn kept(&self) -> usize {
        self.table.borrow().kept.len()
    }
}

impl Table {
    /// Ends the use of an entry. Returns false while the other domain uses its page.
    fn end(&self, reference: u32) -> bool {
        let flags = self.entries.word_u16(reference as usize * ENTRY_BYTES);
        let mut seen = flags.load(Ordering::Relaxed);
        for _ in 0..ATTEMPTS_MAX {
            if u16::from_le(seen) & (READING | WRITING) != 0 {
                return false;
            }
            match flags.compare_exchange(seen, 0, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Looks at some of the kept grants, in turn.
    fn retry(&mut self) {
        for _ in 0..self.kept.len().min(RETRIES) {
            let Some((reference, pages)) = self.kept.pop_front() else { return };
            match self.end(reference) {
                true => self.free.push(reference),
                false => self.kept.push_back((reference, pages)),
            }
        }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // The other domain can still write these: they are never freed.
        self.kept.drain(..).for_each(mem::forget);
    }
}

impl Grant {
    /// The number by which the other domain maps the page.
    pub fn reference(&self) -> u32 {
        self.reference
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let mut table = self.table.borrow_mut();
        match table.end(self.reference) {
            true => table.free.push(self.reference),
            false => table.kept.push_back((self.reference, self.pages.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{Frames, IdentityFrames, numbered};

    fn entry(entries: &SharedPages, reference: u32) -> [u8; 8] {
        let mut bytes = [0; 8];
        entries.read(reference as usize * 8, &mut bytes);
        bytes
    }

    #[test]
    fn entries_are_those_of_version_1() {
        let entries = IdentityFrames.allocate(1).unwrap();
        let (grants, pages) = (Grants::new(entries.clone()), numbered(2, 0x1000));
        let grant = grants.grant(&pages, 1, Domain(0x102), Access::Read).unwrap();
        let bytes = entry(&entries, grant.reference());
        assert!(grant.reference() >= RESERVED);
        assert_eq!(bytes[..4], [5, 0, 2, 1]);
        assert_eq!(u64::from(u32::from_le_bytes(bytes[4..].try_into().unwrap())), pages.frame(1));
        let reference = grant.reference();
        drop(grant);
        assert_eq!(entry(&entries, reference)[..2], [0, 0]);
    }

    #[test]
    fn a_page_in_use_is_kept_until_it_is_not() {
        let entries = IdentityFrames.allocate(1).unwrap();
        let (grants, pages) = (Grants::new(entries.clone()), numbered(1, 0x1000));
        let grant = grants.grant(&pages, 0, Domain(0), Access::Write).unwrap();
        let reference = grant.reference();
        let flags = entries.word_u16(reference as usize * 8);
        flags.store(PERMIT_ACCESS | READING | WRITING, Ordering::Relaxed);
        drop(grant);
        assert_eq!(grants.kept(), 1);
        // Its entry is not given away meanwhile, and is afterwards.
        let others = (0..3).map(|_| grants.grant(&pages, 0, Domain(0), Access::Read).unwrap()).collect::<Vec<_>>();
        assert!(others.iter().all(|other| other.reference() != reference));
        flags.store(PERMIT_ACCESS, Ordering::Relaxed);
        assert_eq!(grants.grant(&pages, 0, Domain(0), Access::Read).unwrap().reference(), reference);
        assert_eq!(grants.kept(), 0);
    }

    #[test]
    fn a_full_table_lends_nothing() {
        let grants = Grants::new(IdentityFrames.allocate(1).unwrap());
        let pages = numbered(504, 0x1000);
        let all = grants.grant_all(&pages, Domain(0), Access::Read).unwrap();
        assert!(grants.grant(&pages, 0, Domain(0), Access::Read).is_none());
        drop(all);
        assert!(grants.grant_all(&numbered(505, 0x1000), Domain(0), Access::Read).is_none());
        assert!(grants.grant(&numbered(1, 1 << 32), 0, Domain(0), Access::Read).is_none());
        // What was lent before the table was full has been taken back.
        assert!(grants.grant_all(&pages, Domain(0), Access::Read).is_some());
    }
}
