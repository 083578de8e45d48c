//! A file whose pages are kept once they were read: those of a guest may be gone when they are needed again.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::elf::ReadAt;

const PAGE_BYTES: u64 = 4096;
/// The most pages that are kept of one file: 64 MiB.
const PAGES_MAX: usize = 16 << 10;
/// The most pages that are kept of all files of the guest's disks: 256 MiB.
const OF_DISKS_MAX: usize = 64 << 10;

/// How many pages may still be kept of the files that share it.
#[derive(Debug, Clone)]
pub struct Allowance(Arc<AtomicUsize>);

impl Default for Allowance {
    fn default() -> Allowance {
        Allowance(Arc::new(AtomicUsize::new(OF_DISKS_MAX)))
    }
}

impl Allowance {
    fn take(&self) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }
}

/// A file, and of it what was read.
pub struct Kept<F> {
    file: F,
    pages: Mutex<HashMap<u64, Box<[u8]>>>,
    allowance: Option<Allowance>,
}

impl<F: ReadAt> Kept<F> {
    /// Nothing is read yet.
    pub fn new(file: F) -> Kept<F> {
        Kept { file, pages: Mutex::default(), allowance: None }
    }

    /// The same of a file that may turn into another one: no page of it is read twice, and what cannot be kept is not read.
    pub fn once(file: F, allowance: Allowance) -> Kept<F> {
        Kept { allowance: Some(allowance), ..Kept::new(file) }
    }

    fn page(&self, index: u64, inside: usize, into: &mut [u8]) -> Option<()> {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let count = pages.len();
        let page = match pages.entry(index) {
            Entry::Occupied(page) => page.into_mut(),
            Entry::Vacant(place) => {
                let start = index * PAGE_BYTES;
                let mut bytes = vec![0; PAGE_BYTES.min(self.file.bytes().saturating_sub(start)) as usize];
                if !self.file.read_at(start, &mut bytes) {
                    return None;
                }
                if let Some(allowance) = &self.allowance {
                    let may_be_kept = count < PAGES_MAX && allowance.take();
                    may_be_kept.then_some(())?;
                } else if count == PAGES_MAX {
                    into.copy_from_slice(bytes.get(inside..inside + into.len())?);
                    return Some(());
                }
                place.insert(bytes.into_boxed_slice())
            }
        };
        into.copy_from_slice(page.get(inside..inside + into.len())?);
        Some(())
    }
}

impl<F: ReadAt> ReadAt for Kept<F> {
    fn bytes(&self) -> u64 {
        self.file.bytes()
    }

    fn has_holes(&self) -> bool {
        self.file.has_holes()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> bool {
        if offset.checked_add(into.len() as u64).is_none_or(|end| end > self.bytes()) {
            return false;
        }
        let mut done = 0;
        while done < into.len() {
            let at = offset + done as u64;
            let inside = (at % PAGE_BYTES) as usize;
            let count = (PAGE_BYTES as usize - inside).min(into.len() - done);
            if self.page(at / PAGE_BYTES, inside, &mut into[done..done + count]).is_none() {
                return false;
            }
            done += count;
        }
        true
    }
}
