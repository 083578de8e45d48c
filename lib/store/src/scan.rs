//! Reading a state of the store: single keys, and entries in order.

use crate::error::StoreError;
use crate::format::{Name, Pointer, Tree};
use crate::page::Page;
use crate::store::{Inner, Snapshot, VALUE_BYTES_MAX};
use crate::value;
use alloc::vec::Vec;
use core::ops::Bound;
use glass_api::Block;

/// The value of an entry of a leaf, whose number is `leaf`.
async fn value_at<B: Block>(inner: &Inner<B>, page: &Page, leaf: u32, index: usize) -> Result<Vec<u8>, StoreError> {
    match page.is_large(index) {
        true => value::read(&inner.pages, page.payload(index), leaf, VALUE_BYTES_MAX).await,
        false => Ok(page.payload(index).to_vec()),
    }
}

/// The value of `key` in `tree`.
pub(crate) async fn get<B: Block>(inner: &Inner<B>, tree: &Tree, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
    let (mut pointer, mut level) = (tree.root, tree.level);
    if pointer.page == 0 {
        return Ok(None);
    }
    while level > 0 {
        let page = inner.pages.read(pointer, level).await?;
        if page.count() == 0 {
            return Err(StoreError::Damaged { page: pointer.page });
        }
        pointer = page.child(page.search_child(key));
        level -= 1;
    }
    let leaf = inner.pages.read(pointer, 0).await?;
    match leaf.search(key) {
        (index, true) => Ok(Some(value_at(inner, &leaf, pointer.page, index).await?)),
        _ => Ok(None),
    }
}

/// Entries in the order of their keys, of the state at the start of the scan. It keeps one page of each level in memory.
///
/// After [`StoreError::Damaged`] the scan continues behind what is damaged; after an error of the disk it repeats what failed.
pub struct Scan<B: Block> {
    snapshot: Snapshot<B>,
    /// The tree's root until the first entry.
    root: Option<(Pointer, u8)>,
    /// From the root to a leaf: the page, its number, and the entry that is next.
    stack: Vec<(Page, u32, usize)>,
    start: Bound<Vec<u8>>,
    end: Bound<Vec<u8>>,
    /// Pages that it may still enter. On a damaged disk, entries of several pages can lead to the same page.
    pages_left: u32,
}

impl<B: Block> Scan<B> {
    pub(crate) fn new(snapshot: Snapshot<B>, name: &Name, start: Bound<Vec<u8>>, end: Bound<Vec<u8>>) -> Scan<B> {
        let root = snapshot.roots.tree(name).filter(|tree| tree.root.page != 0).map(|tree| (tree.root, tree.level));
        let pages_left = snapshot.roots.pages;
        Scan { snapshot, root, stack: Vec::new(), start, end, pages_left }
    }

    /// The next entry; `None` after the last one. Cancel safe.
    pub async fn next(&mut self) -> Result<Option<(Vec<u8>, Vec<u8>)>, StoreError> {
        let inner = self.snapshot.inner.clone();
        if let Some((pointer, level)) = self.root {
            let result = inner.pages.read(pointer, level).await;
            self.enter(result, pointer, |scan| scan.root = None)?;
        }
        loop {
            let Some((page, number, index)) = self.stack.last() else { return Ok(None) };
            let (page, number, index) = (page.clone(), *number, *index);
            if index >= page.count() {
                self.stack.pop();
            } else if page.level() > 0 {
                let pointer = page.child(index);
                let result = inner.pages.read(pointer, page.level() - 1).await;
                self.enter(result, pointer, Scan::advance)?;
            } else if self.is_behind(page.key(index)) {
                self.stack.clear();
            } else {
                let value = value_at(&inner, &page, number, index).await;
                if matches!(value, Ok(_) | Err(StoreError::Damaged { .. })) {
                    self.advance();
                }
                return Ok(Some((page.key(index).to_vec(), value?)));
            }
        }
    }

    /// Continues in a page that was read; `done` notes that it need not be read again.
    fn enter(
        &mut self,
        result: Result<Page, StoreError>,
        pointer: Pointer,
        done: impl FnOnce(&mut Scan<B>),
    ) -> Result<(), StoreError> {
        if matches!(result, Ok(_) | Err(StoreError::Damaged { .. })) {
            done(self);
        }
        let page = result?;
        if self.pages_left == 0 {
            self.stack.clear();
            return Err(StoreError::Damaged { page: pointer.page });
        }
        self.pages_left -= 1;
        let index = match (&self.start, page.level()) {
            (Bound::Unbounded, _) => 0,
            (Bound::Included(key) | Bound::Excluded(key), 1..) => page.search_child(key),
            (Bound::Included(key), 0) => page.search(key).0,
            (Bound::Excluded(key), 0) => {
                let (index, is_equal) = page.search(key);
                index + usize::from(is_equal)
            }
        };
        self.stack.push((page, pointer.page, index));
        Ok(())
    }

    fn advance(&mut self) {
        if let Some((_, _, index)) = self.stack.last_mut() {
            *index += 1;
        }
    }

    fn is_behind(&self, key: &[u8]) -> bool {
        match &self.end {
            Bound::Unbounded => false,
            Bound::Included(end) => key > &end[..],
            Bound::Excluded(end) => key >= &end[..],
        }
    }
}

/// The records of a log in order, as [`Scan`] reads them.
pub struct LogScan<B: Block> {
    pub(crate) scan: Scan<B>,
}

impl<B: Block> LogScan<B> {
    /// The next record and its index; `None` after the last one. Cancel safe.
    pub async fn next(&mut self) -> Result<Option<(u64, Vec<u8>)>, StoreError> {
        let Some((key, record)) = self.scan.next().await? else { return Ok(None) };
        let index = key.first_chunk().copied().map_or(0, u64::from_be_bytes);
        Ok(Some((index, record)))
    }
}
