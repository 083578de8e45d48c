//! The scrub: while the queue runs, the data of all items that wait is read again, slowly, and compared with its checksum.
//!
//! Between two reads it holds nothing of an item, not even its space, so it delays no removal. Blocks of an item that is removed during a read
//! may have the data of another one by then: what was read counts only if the item is still in the queue.

use crate::allocator::Cursor;
use crate::download::verify;
use crate::error::{Health, StoreError};
use crate::format::{self, Entry};
use crate::limits::{CHUNK_BYTES, SCRUB_PAUSE, SCRUB_PAUSE_MAX, SCRUB_PAUSE_READS};
use crate::store::Store;
use alloc::rc::Rc;
use core::cell::Cell;
use core::time::Duration;
use glasshouse::tracing::{Instrument, info_span};
use glasshouse::{Block, Instant, Platform};

impl<B: Block> Store<B> {
    /// Reads an item and compares it with its checksum, with one read of [`CHUNK_BYTES`] in flight, and calls `pause` after each with the
    /// bytes of the item that it had, and with 0 before it tries again for want of memory. `None` if the item was removed meanwhile.
    pub async fn check_item(&self, entry: &Entry, mut pause: impl AsyncFnMut(u64)) -> Option<Result<(), StoreError>> {
        let (mut cursor, mut hasher) = (Cursor::new(entry.extents, entry.length), format::hasher());
        while let Some(piece) = cursor.next(CHUNK_BYTES) {
            let buf = loop {
                self.item(entry.id)?;
                match self.pool().take(piece.padded_bytes()) {
                    Ok(buf) => break buf,
                    Err(_) => pause(0).await,
                }
            };
            let (result, buf) = self.block().read(piece.offset, buf).await;
            self.item(entry.id)?;
            if let Err(error) = result {
                return Some(Err(error.into()));
            }
            hasher.update(&buf[..piece.bytes]);
            self.pool().give(buf);
            pause(piece.bytes as u64).await;
        }
        Some(verify(entry, hasher.digest()))
    }
}

/// What the scrub has done since the start.
pub(crate) struct Scrub {
    pub(crate) checked_bytes: Cell<u64>,
    /// Complete passes.
    pub(crate) passes: Cell<u64>,
    /// When the last one of these ended, or the service was started.
    pub(crate) ended: Cell<Instant>,
}

impl Scrub {
    pub(crate) fn new(now: Instant) -> Rc<Scrub> {
        Rc::new(Scrub { checked_bytes: Cell::new(0), passes: Cell::new(0), ended: Cell::new(now) })
    }

    /// Checks all items once in `period`, without end. Each pass starts at a random item: else a queue that is restarted more often would never
    /// check its newest ones.
    pub(crate) async fn run<B: Block>(self: Rc<Scrub>, p: impl Platform, store: Store<B>, period: Duration) {
        loop {
            let begun = p.now();
            self.pass(&p, &store, period).await;
            self.passes.set(self.passes.get() + 1);
            self.ended.set(p.now());
            p.sleep_until(begun + period).await;
        }
    }

    /// Checks the items that are in the queue now.
    async fn pass<B: Block>(&self, p: &impl Platform, store: &Store<B>, period: Duration) {
        let mut random = [0; 8];
        p.fill_random(&mut random);
        let ids = store.with_changes(|changes| {
            let (first, last) = (changes.index().items_after(None).next()?.id, changes.index().last()?);
            let random = first + u64::from_le_bytes(random) % (last + 1 - first);
            // The first item from there on.
            Some((changes.index().items_after(random.checked_sub(1)).next()?.id, last))
        });
        let Some((first, last)) = ids else { return };
        // At least as many as there are.
        let usage = store.usage();
        let reads = usage.items as u64 + (usage.data_bytes - usage.free_bytes).div_ceil(CHUNK_BYTES as u64);
        let pause = SCRUB_PAUSE.min(period / u32::try_from(reads.max(1)).unwrap_or(u32::MAX));
        for (mut after, end) in [(first.checked_sub(1), last + 1), (None, first)] {
            while let Some(entry) = store.items_after(after, 1).pop().filter(|entry| entry.id < end) {
                let check = self.check(p, store, &entry, pause);
                check.instrument(info_span!("scrub", bytes = entry.length, id = entry.id)).await;
                after = Some(entry.id);
            }
        }
    }

    /// Checks one item, and prints what is news.
    async fn check<B: Block>(&self, p: &impl Platform, store: &Store<B>, entry: &Entry, pause: Duration) {
        let id = entry.id;
        let mut has_failed = false;
        loop {
            until_good(store).await;
            let begun = Cell::new(p.now());
            let paused = async |bytes| {
                self.checked_bytes.set(self.checked_bytes.get() + bytes);
                let took = p.now() - begun.get();
                p.sleep(pause.max((took * SCRUB_PAUSE_READS).min(SCRUB_PAUSE_MAX))).await;
                begun.set(p.now());
            };
            let error = match store.check_item(entry, paused).await {
                None => return,
                Some(Ok(())) => {
                    if store.set_damaged(id, false) {
                        p.print(format_args!("upload-queue: scrub: item {id} can be read again, and is whole"));
                    }
                    return;
                }
                Some(Err(error)) => error,
            };
            match error {
                // Whether the disk works apart from this item, or not at all, is checked before it is read once more.
                StoreError::Disk(_) if !has_failed && !store.damaged().contains(&id) => {
                    has_failed = true;
                    store.read_failed(error);
                }
                StoreError::Disk(_) => {
                    if store.set_damaged(id, true) {
                        p.print(format_args!("upload-queue: scrub: item {id} cannot be read: {error}"));
                    }
                    return;
                }
                error => {
                    if store.set_damaged(id, true) {
                        p.print(format_args!("upload-queue: scrub: {error}"));
                    }
                    return store.read_failed(error);
                }
            }
        }
    }
}

/// Waits until the disk does what the queue needs.
async fn until_good<B: Block>(store: &Store<B>) {
    loop {
        let changed = store.changed();
        if store.health() == Health::Good {
            return;
        }
        changed.await;
    }
}
