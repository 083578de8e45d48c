//! Downloads: data from the disk to a client.

use crate::allocator::Cursor;
use crate::changes::Item;
use crate::error::StoreError;
use crate::format::{self, Entry};
use crate::inflight::InFlight;
use crate::limits::{CHUNK_BYTES, CHUNKS_PER_TRANSFER};
use crate::pool::Pool;
use crate::store::Store;
use alloc::boxed::Box;
use alloc::rc::Rc;
use core::any::Any;
use core::ops::Deref;
use glasshouse::{Block, BlockError, Buf};
use xxhash_rust::xxh3::Xxh3;

/// An item that is being read. Its data stays whole even if the item is removed meanwhile.
///
/// At most [`CHUNKS_PER_TRANSFER`] chunks are in memory if the caller keeps one at a time.
pub struct Download<B: Block> {
    store: Store<B>,
    item: Rc<Item>,
    to_read: Cursor,
    bytes_left: u64,
    hasher: Box<Xxh3>,
    reads: InFlight<(Result<(), BlockError>, Buf, usize)>,
    /// See [`Download::hold`].
    held: Option<Box<dyn Any>>,
}

impl<B: Block> Download<B> {
    pub(crate) fn new(store: Store<B>, item: Rc<Item>) -> Download<B> {
        let to_read = Cursor::new(item.entry.extents, item.entry.length);
        let bytes_left = item.entry.length;
        Download { store, item, to_read, bytes_left, hasher: format::hasher(), reads: InFlight::new(), held: None }
    }

    /// Drops `guard` when the download and its last read have ended: the device still writes into the buffers of a download that is
    /// dropped.
    pub fn hold(&mut self, guard: impl Any) {
        self.held = Some(Box::new(guard));
    }

    /// The item that is read.
    pub fn entry(&self) -> &Entry {
        &self.item.entry
    }

    /// Bytes that were not returned yet.
    pub fn bytes_left(&self) -> u64 {
        self.bytes_left
    }

    /// The next bytes of the item, `None` after the last; later ones are read ahead. The checksum of
    /// the whole item has been verified before the last chunk is returned, so a receiver never
    /// gets the whole length of a damaged item.
    pub async fn next(&mut self) -> Result<Option<ChunkRead>, StoreError> {
        let next = self.read_next().await;
        if let Err(error @ (StoreError::Disk(_) | StoreError::Damaged { .. })) = next {
            self.store.read_failed(error);
        }
        next
    }

    async fn read_next(&mut self) -> Result<Option<ChunkRead>, StoreError> {
        if self.bytes_left == 0 {
            return Ok(None);
        }
        while self.reads.len() < CHUNKS_PER_TRANSFER {
            let Some(piece) = self.to_read.next(CHUNK_BYTES) else { break };
            let buf = self.store.pool().take(piece.padded_bytes())?;
            let block = self.store.block().clone();
            let read = async move {
                let (result, buf) = block.read(piece.offset, buf).await;
                (result, buf, piece.bytes)
            };
            self.reads.push(read).await;
        }
        let (result, buf, bytes) = self.reads.pop().await.expect("bytes are left, so a read is in flight");
        result?;
        let chunk = ChunkRead { buf: Some(buf), bytes, pool: self.store.pool().clone() };
        self.hasher.update(&chunk);
        self.bytes_left -= bytes as u64;
        if self.bytes_left == 0 {
            self.verify()?;
        }
        Ok(Some(chunk))
    }

    /// Never completes; lets the reads make progress while the caller sends a chunk.
    pub async fn drive(&mut self) {
        self.reads.drive().await
    }

    fn verify(&self) -> Result<(), StoreError> {
        let (stored, computed) = (self.item.entry.checksum, self.hasher.digest());
        if stored == computed { Ok(()) } else { Err(StoreError::Damaged { id: self.item.entry.id, stored, computed }) }
    }
}

impl<B: Block> Drop for Download<B> {
    fn drop(&mut self) {
        if self.reads.is_empty() {
            return;
        }
        let mut reads = core::mem::replace(&mut self.reads, InFlight::new());
        let (pool, held) = (self.store.pool().clone(), self.held.take());
        self.store.abandon(async move {
            while let Some((_, buf, _)) = reads.pop().await {
                pool.give(buf);
            }
            drop(held);
        });
    }
}

/// Bytes of an item; the buffer is used again after the drop.
pub struct ChunkRead {
    buf: Option<Buf>,
    bytes: usize,
    pool: Pool,
}

impl Deref for ChunkRead {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.buf {
            Some(buf) => &buf[..self.bytes],
            None => &[],
        }
    }
}

impl Drop for ChunkRead {
    fn drop(&mut self) {
        if let Some(buf) = self.buf.take() {
            self.pool.give(buf);
        }
    }
}
