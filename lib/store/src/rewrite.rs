//! Changing a tree: each page on the way from the root to a change is written anew, to a free place.

use crate::error::StoreError;
use crate::format::{LEVELS_MAX, LargeValue, PAGE_BYTES, Pointer, Run, Tree};
use crate::page::{CAPACITY, Entry, Page};
use crate::store::Inner;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::pin::Pin;
use embassy_futures::join::join_array;
use glass_api::{Block, Buf};

/// A page with fewer bytes is joined with its neighbour.
const SMALL_BYTES: usize = CAPACITY / 4;
/// Entries that wait for a page are written when they have so many bytes.
const POOL_BYTES: usize = CAPACITY * 16;
/// Requests of a commit that are in flight at the same time.
const IN_FLIGHT: usize = 16;
/// Pages that wait until they are written together.
const WRITE_PAGES_MAX: usize = 64;

/// What happens to a key.
#[derive(Debug, Clone)]
pub enum Change {
    Remove,
    Put { payload: Vec<u8>, is_large: bool },
}

/// Keys in order, each with its change.
pub type Changes = [(Vec<u8>, Change)];

/// The pages of one commit.
pub struct Writer<'a, B: Block> {
    inner: &'a Inner<B>,
    sequence: u64,
    /// Whether the reserve may be used.
    reserve: bool,
    pending: Vec<(u32, Page)>,
    /// Pages that only this commit has.
    pub taken: Vec<Run>,
    /// Pages that this commit no longer has.
    pub freed: Vec<Run>,
    /// How many entries there are more, or fewer.
    added: i64,
}

/// The entries of a page after its changes.
struct Rewritten {
    entries: Vec<Entry>,
    /// The last of them is new: it was added at the end.
    appended: bool,
}

impl<'a, B: Block> Writer<'a, B> {
    pub fn new(inner: &'a Inner<B>, sequence: u64, reserve: bool) -> Writer<'a, B> {
        Writer { inner, sequence, reserve, pending: Vec::new(), taken: Vec::new(), freed: Vec::new(), added: 0 }
    }

    /// Writes `tree` with these changes and names its new root in it.
    pub async fn change(&mut self, tree: &mut Tree, changes: &Changes) -> Result<(), StoreError> {
        self.added = 0;
        let Rewritten { mut entries, appended } = if tree.root.page == 0 {
            merge_leaf(self, None, changes)?
        } else {
            let page = self.replace(tree.root, tree.level).await?;
            self.rewrite(page, tree.root.page, changes).await?
        };
        let mut level = tree.level;
        tree.root = loop {
            if entries.is_empty() {
                level = 0;
                break Pointer::default();
            }
            if let ([child], 1..) = (&entries[..], level) {
                level -= 1;
                break Pointer::decode(child.payload()).unwrap_or_default();
            }
            let mut parents = Vec::new();
            self.emit(level, &mut entries, appended, &mut parents).await?;
            if let [root] = &parents[..] {
                break Pointer::decode(root.payload()).unwrap_or_default();
            }
            entries = parents;
            level += 1;
            // Two entries in each page are enough for all pages of a disk: only an invented tree has more levels.
            if level == LEVELS_MAX {
                return Err(StoreError::Damaged { page: tree.root.page });
            }
        };
        tree.level = level;
        tree.entries = tree.entries.saturating_add_signed(self.added);
        Ok(())
    }

    /// Reads a page that this commit replaces.
    async fn replace(&mut self, pointer: Pointer, level: u8) -> Result<Page, StoreError> {
        let page = self.inner.pages.read(pointer, level).await?;
        self.freed.push(Run::one(pointer.page));
        Ok(page)
    }

    /// The entries of `page` with these changes. The depth of the recursion is the level of the page.
    fn rewrite<'b>(
        &'b mut self,
        page: Page,
        number: u32,
        changes: &'b Changes,
    ) -> Pin<Box<dyn Future<Output = Result<Rewritten, StoreError>> + 'b>> {
        Box::pin(async move {
            if page.level() == 0 {
                merge_leaf(self, Some((&page, number)), changes)
            } else {
                self.rewrite_children(page, changes).await
            }
        })
    }

    /// The first children of a page at these places, read at the same time: as many as may be in flight.
    async fn read_children(&self, page: &Page, places: &[usize]) -> VecDeque<Result<Page, StoreError>> {
        let read = async |place: Option<&usize>| match place {
            Some(place) => Some(self.inner.pages.read(page.child(*place), page.level() - 1).await),
            None => None,
        };
        let reads = core::array::from_fn::<_, IN_FLIGHT, _>(|number| read(places.get(number)));
        join_array(reads).await.into_iter().flatten().collect()
    }

    async fn rewrite_children(&mut self, page: Page, changes: &Changes) -> Result<Rewritten, StoreError> {
        let below = page.level() - 1;
        let parts = parts(&page, changes);
        let changed: Vec<usize> = (0..parts.len()).filter(|index| !parts[*index].is_empty()).collect();
        let (mut requested, mut ahead) = (0, VecDeque::new());
        let mut entries = Vec::new();
        // Entries of the level below, which wait for their page.
        let (mut pool, mut pool_bytes, mut appended) = (Vec::new(), 0, false);
        for (index, part) in parts.into_iter().enumerate() {
            if part.is_empty() && (pool.is_empty() || pool_bytes >= SMALL_BYTES) {
                self.emit(below, &mut pool, false, &mut entries).await?;
                pool_bytes = 0;
                entries.push(page.entry(index));
                appended = false;
                continue;
            }
            let number = page.child(index).page;
            let child = if part.is_empty() {
                self.replace(page.child(index), below).await?
            } else {
                if ahead.is_empty() {
                    ahead = self.read_children(&page, &changed[requested..]).await;
                    requested += ahead.len();
                }
                self.freed.push(Run::one(number));
                ahead.pop_front().expect("each child with changes is read once")?
            };
            // Values that the entry does not announce were not found when the store was opened: their pages may be others' too.
            if !page.is_large(index) && (0..child.count()).any(|index| child.is_large(index)) {
                return Err(StoreError::Damaged { page: number });
            }
            let rewritten = self.rewrite(child, number, part).await?;
            pool_bytes += bytes_of(&rewritten.entries);
            pool.extend(rewritten.entries);
            appended = rewritten.appended;
            if pool_bytes >= POOL_BYTES {
                self.emit(below, &mut pool, false, &mut entries).await?;
                pool_bytes = 0;
            }
        }
        // The last one has no neighbour to the right.
        if !pool.is_empty()
            && pool_bytes < SMALL_BYTES
            && !appended
            && let Some(Entry::Kept(..)) = entries.last()
        {
            let neighbour = entries.pop().map(|entry| entry.payload().to_vec()).unwrap_or_default();
            let child = self.replace(Pointer::decode(&neighbour).unwrap_or_default(), below).await?;
            pool.splice(0..0, (0..child.count()).map(|index| child.entry(index)));
        }
        self.emit(below, &mut pool, appended, &mut entries).await?;
        Ok(Rewritten { entries, appended })
    }

    /// Makes pages of `pool`, which is empty then, and adds an entry for each to `parents`. They are equally full; if the last
    /// entry is an `appended` one, all but the last are full, because more will follow there.
    async fn emit(
        &mut self,
        level: u8,
        pool: &mut Vec<Entry>,
        appended: bool,
        parents: &mut Vec<Entry>,
    ) -> Result<(), StoreError> {
        let total = bytes_of(pool);
        let target = if appended { CAPACITY } else { total.div_ceil(total.div_ceil(CAPACITY).max(1)) };
        let mut start = 0;
        while start < pool.len() {
            let (mut end, mut bytes) = (start, 0);
            while end < pool.len() && (bytes < target) && bytes + pool[end].bytes() <= CAPACITY {
                bytes += pool[end].bytes();
                end += 1;
            }
            parents.push(self.add(level, &pool[start..end]).await?);
            start = end;
        }
        pool.clear();
        Ok(())
    }

    /// Makes one page; returns the entry that names it.
    async fn add(&mut self, level: u8, entries: &[Entry]) -> Result<Entry, StoreError> {
        let number = self.inner.take(self.reserve)?;
        self.taken.push(Run::one(number));
        let page = Page::encode(level, self.sequence, entries);
        let pointer = self.inner.pages.insert(number, &page);
        self.pending.push((number, page));
        if self.pending.len() >= WRITE_PAGES_MAX {
            self.send().await?;
        }
        let is_large = entries.iter().any(Entry::is_large);
        Ok(Entry::New { key: entries[0].key().to_vec(), payload: pointer.encode().to_vec(), is_large })
    }

    /// Writes the pages that wait: those that follow each other on the disk in one request.
    pub async fn send(&mut self) -> Result<(), StoreError> {
        let mut pages = core::mem::take(&mut self.pending);
        pages.sort_unstable_by_key(|(number, _)| *number);
        let runs: Vec<_> = pages.chunk_by(|(before, _), (after, _)| before + 1 == *after).collect();
        for some in runs.chunks(IN_FLIGHT) {
            let write = |place: usize| write_run(&self.inner.pages.block, some.get(place).copied());
            let ended = join_array(core::array::from_fn::<_, IN_FLIGHT, _>(write)).await;
            ended.into_iter().collect::<Result<(), StoreError>>()?;
        }
        Ok(())
    }

    /// The pages of a value that is replaced or removed are free.
    fn free_value(&mut self, page: &Page, number: u32, index: usize) -> Result<(), StoreError> {
        if page.is_large(index) {
            let value = LargeValue::decode(page.payload(index)).ok_or(StoreError::Damaged { page: number })?;
            self.freed.extend(value.runs);
        }
        Ok(())
    }
}

/// Writes pages that follow each other.
async fn write_run<B: Block>(block: &B, run: Option<&[(u32, Page)]>) -> Result<(), StoreError> {
    let Some(run @ [(first, _), ..]) = run else { return Ok(()) };
    let mut buf = Buf::zeroed(run.len() * PAGE_BYTES)?;
    let bytes = buf.as_mut().expect("a new buffer has one owner");
    for ((_, page), place) in run.iter().zip(bytes.chunks_exact_mut(PAGE_BYTES)) {
        place.copy_from_slice(page.bytes());
    }
    Ok(block.write(Run::one(*first).offset(), buf).await.0?)
}

/// The changes of each child of a page.
fn parts<'c>(page: &Page, mut changes: &'c Changes) -> Vec<&'c Changes> {
    let part = |index| {
        let end = match index + 1 < page.count() {
            true => changes.partition_point(|(key, _)| &key[..] < page.key(index + 1)),
            false => changes.len(),
        };
        let (part, rest) = changes.split_at(end);
        changes = rest;
        part
    };
    (0..page.count()).map(part).collect()
}

fn bytes_of(entries: &[Entry]) -> usize {
    entries.iter().map(Entry::bytes).sum()
}

/// The entries of a leaf (its page and number) with these changes.
fn merge_leaf<B: Block>(
    writer: &mut Writer<B>,
    leaf: Option<(&Page, u32)>,
    changes: &Changes,
) -> Result<Rewritten, StoreError> {
    let count = leaf.map_or(0, |(page, _)| page.count());
    let mut entries = Vec::with_capacity(count + changes.len());
    let mut index = 0;
    for (key, change) in changes {
        let mut replaced = false;
        while let Some((page, number)) = leaf.filter(|(page, _)| index < page.count() && page.key(index) <= &key[..]) {
            if page.key(index) == &key[..] {
                writer.free_value(page, number, index)?;
                replaced = true;
            } else {
                entries.push(page.entry(index));
            }
            index += 1;
        }
        match change {
            Change::Put { payload, is_large } => {
                entries.push(Entry::New { key: key.clone(), payload: payload.clone(), is_large: *is_large });
                writer.added += i64::from(!replaced);
            }
            Change::Remove => writer.added -= i64::from(replaced),
        }
    }
    let appended = index == count && matches!(entries.last(), Some(Entry::New { .. }));
    entries.extend(leaf.into_iter().flat_map(|(page, _)| (index..count).map(|index| page.entry(index))));
    Ok(Rewritten { entries, appended })
}
