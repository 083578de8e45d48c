//! Reading pages: from a cache of bounded size, or from the disk, always checked.

use crate::error::StoreError;
use crate::format::{PAGE_BYTES, Pointer, Run};
use crate::page::Page;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cell::RefCell;
use glass_api::{Block, Buf};
use xxhash_rust::xxh3::xxh3_64;

/// Pages that the cache has at least: those of a way from the root to a leaf, for some readers at once.
const CACHE_PAGES_MIN: usize = 32;

/// The pages of a disk.
pub struct Pages<B> {
    pub block: B,
    cache: RefCell<Cache>,
    /// Buffers of reads, for the next ones.
    buffers: RefCell<Vec<Buf>>,
}

/// Buffers that are kept: as many as a commit has in flight.
const BUFFERS_MAX: usize = 16;

impl<B: Block> Pages<B> {
    pub fn new(block: B, cache_bytes: usize) -> Pages<B> {
        let capacity = (cache_bytes / PAGE_BYTES).max(CACHE_PAGES_MIN);
        Pages { block, cache: RefCell::new(Cache::new(capacity)), buffers: RefCell::new(Vec::new()) }
    }

    /// The page at `pointer`, which has `level`. Fails with [`StoreError::Damaged`] unless it is exactly what was written.
    pub async fn read(&self, pointer: Pointer, level: u8) -> Result<Page, StoreError> {
        let cached = self.cache.borrow_mut().get(pointer);
        let page = match cached {
            Some(page) => page,
            None => {
                let page = self.read_from_disk(pointer).await?;
                self.cache.borrow_mut().insert(pointer, page.clone());
                page
            }
        };
        if page.level() == level { Ok(page) } else { Err(StoreError::Damaged { page: pointer.page }) }
    }

    async fn read_from_disk(&self, pointer: Pointer) -> Result<Page, StoreError> {
        let kept = self.buffers.borrow_mut().pop();
        let buf = match kept {
            Some(buf) => buf,
            None => Buf::zeroed(PAGE_BYTES)?,
        };
        let (result, buf) = self.block.read(Run::one(pointer.page).offset(), buf).await;
        result?;
        let damaged = StoreError::Damaged { page: pointer.page };
        let is_whole = xxh3_64(&buf) == pointer.checksum;
        let page = if is_whole { Page::parse((&*buf).into()) } else { None };
        if buf.len() == PAGE_BYTES && self.buffers.borrow().len() < BUFFERS_MAX {
            self.buffers.borrow_mut().push(buf);
        }
        page.filter(|page| page.sequence() as u32 == pointer.sequence).ok_or(damaged)
    }

    /// A new page, which is about to be written: returns its pointer.
    pub fn insert(&self, number: u32, page: &Page) -> Pointer {
        let pointer = Pointer { page: number, sequence: page.sequence() as u32, checksum: xxh3_64(page.bytes()) };
        self.cache.borrow_mut().insert(pointer, page.clone());
        pointer
    }
}

/// Pages by their number. The one to replace is found by a clock: a hand passes over those that were read since it came last.
struct Cache {
    capacity: usize,
    places: Vec<Place>,
    by_page: BTreeMap<u32, usize>,
    hand: usize,
}

struct Place {
    pointer: Pointer,
    page: Page,
    was_read: bool,
}

impl Cache {
    fn new(capacity: usize) -> Cache {
        Cache { capacity, places: Vec::new(), by_page: BTreeMap::new(), hand: 0 }
    }

    /// Only exactly the page of the pointer: after a page was freed and taken again, an older one of its number is no answer.
    fn get(&mut self, pointer: Pointer) -> Option<Page> {
        let place = &mut self.places[*self.by_page.get(&pointer.page)?];
        if place.pointer != pointer {
            return None;
        }
        place.was_read = true;
        Some(place.page.clone())
    }

    fn insert(&mut self, pointer: Pointer, page: Page) {
        let new = Place { pointer, page, was_read: false };
        if let Some(&index) = self.by_page.get(&pointer.page) {
            self.places[index] = new;
        } else if self.places.len() < self.capacity {
            self.by_page.insert(pointer.page, self.places.len());
            self.places.push(new);
        } else {
            // At most one round: it clears what it passes.
            while core::mem::take(&mut self.places[self.hand].was_read) {
                self.hand = (self.hand + 1) % self.capacity;
            }
            self.by_page.remove(&self.places[self.hand].pointer.page);
            self.by_page.insert(pointer.page, self.hand);
            self.places[self.hand] = new;
            self.hand = (self.hand + 1) % self.capacity;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_bounded_and_keeps_what_is_read() {
        let mut cache = Cache::new(4);
        let pointer = |page| Pointer { page, sequence: 1, checksum: 1 };
        let page = Page::encode(0, 1, &[]);
        cache.insert(pointer(0), page.clone());
        for number in 1..100 {
            assert!(cache.get(pointer(0)).is_some(), "{number}");
            cache.insert(pointer(number), page.clone());
            assert!(cache.places.len() <= 4 && cache.by_page.len() == cache.places.len());
        }
        assert!(cache.get(pointer(1)).is_none() && cache.get(pointer(99)).is_some());
        assert!(cache.get(Pointer { checksum: 2, ..pointer(99) }).is_none());
    }
}
