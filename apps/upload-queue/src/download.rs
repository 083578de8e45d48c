//! Downloads: data from the disk to a client.

use crate::allocator::Cursor;
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
    entry: Entry,
    /// What keeps its space.
    holder: Rc<dyn Any>,
    to_read: Cursor,
    bytes_left: u64,
    hasher: Box<Xxh3>,
    reads: InFlight<(Result<(), BlockError>, Buf, usize)>,
    /// See [`Download::hold`].
    held: Option<Box<dyn Any>>,
}

impl<B: Block> Download<B> {
    pub(crate) fn new(store: Store<B>, entry: Entry, holder: Rc<dyn Any>) -> Download<B> {
        let to_read = Cursor::new(entry.extents, entry.length);
        let (hasher, reads) = (format::hasher(), InFlight::new());
        Download { store, entry, holder, to_read, bytes_left: entry.length, hasher, reads, held: None }
    }

    /// Another download of the same item, from its start.
    pub fn again(&self) -> Download<B> {
        Download::new(self.store.clone(), self.entry, self.holder.clone())
    }

    /// Drops `guard` when the download and its last read have ended: the device still writes into the buffers of a download that is
    /// dropped.
    pub fn hold(&mut self, guard: impl Any) {
        self.held = Some(Box::new(guard));
    }

    /// The item that is read.
    pub fn entry(&self) -> &Entry {
        &self.entry
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
            verify(&self.entry, self.hasher.digest())?;
        }
        Ok(Some(chunk))
    }

    /// The hash of what was read.
    pub(crate) fn hasher(&self) -> Box<Xxh3> {
        self.hasher.clone()
    }

    /// Never completes; lets the reads make progress while the caller sends a chunk.
    pub async fn drive(&mut self) {
        self.reads.drive().await
    }
}

/// Fails unless the data of an item has the checksum that it had at the upload.
pub(crate) fn verify(entry: &Entry, computed: u64) -> Result<(), StoreError> {
    let stored = entry.checksum;
    if stored == computed { Ok(()) } else { Err(StoreError::Damaged { id: entry.id, stored, computed }) }
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
