//! Uploads: data from a client to the disk.

use crate::allocator::{Piece, Reservation};
use crate::error::StoreError;
use crate::format::{self, BLOCK_BYTES};
use crate::inflight::InFlight;
use crate::limits::{CHUNK_BYTES, CHUNKS_PER_TRANSFER};
use crate::store::Store;
use alloc::boxed::Box;
use core::any::Any;
use glasshouse::future::{Either, select};
use glasshouse::tracing::{Instrument, info_span};
use glasshouse::{Block, BlockError, Buf};
use xxhash_rust::xxh3::Xxh3;

/// An item that is being received. At most [`CHUNKS_PER_TRANSFER`] chunks are in memory.
pub struct Upload<B: Block> {
    store: Store<B>,
    /// `None` once it belongs to an item or to abandoned writes.
    space: Option<Reservation>,
    /// Bytes that will come, `None` while unknown.
    length: Option<u64>,
    /// Bytes that may come at most.
    length_max: u64,
    received: u64,
    /// Bytes for which blocks were given out.
    placed: u64,
    hasher: Box<Xxh3>,
    filling: Option<Chunk>,
    writes: InFlight<(Result<(), BlockError>, Buf)>,
    /// Of the store when this upload started.
    lost_flushes: u64,
    /// See [`Upload::hold`].
    held: Option<Box<dyn Any>>,
}

/// The chunk that is being filled.
struct Chunk {
    buf: Buf,
    piece: Piece,
    filled: usize,
}

impl<B: Block> Upload<B> {
    pub(crate) fn new(store: Store<B>, space: Reservation, length: Option<u64>, length_max: u64) -> Upload<B> {
        let (hasher, writes) = (format::hasher(), InFlight::new());
        let (space, lost_flushes) = (Some(space), store.lost_flushes());
        Upload {
            store,
            space,
            length,
            length_max,
            received: 0,
            placed: 0,
            hasher,
            filling: None,
            writes,
            lost_flushes,
            held: None,
        }
    }

    /// Drops `guard` when the upload and its last write have ended: writes of an upload that is dropped continue, and hold memory.
    pub fn hold(&mut self, guard: impl Any) {
        self.held = Some(Box::new(guard));
    }

    /// Bytes that are still to come, or that may still come if the length is unknown.
    pub fn missing_bytes(&self) -> u64 {
        self.length_max - self.received
    }

    /// Whether its length is still not known.
    pub fn is_open(&self) -> bool {
        self.length.is_none()
    }

    /// Sets the length to the received bytes, for an upload whose length was unknown.
    pub fn end(&mut self) {
        assert!(self.is_open(), "a length that was announced stays");
        self.length = Some(self.received);
    }

    /// Lets `read` put the next bytes into a chunk's free space, while full chunks are being
    /// written, and returns its result: how many bytes it put there. The space is not empty
    /// while bytes are missing, and never larger than they are. Dropping the future loses nothing that
    /// `read` does not lose.
    pub async fn receive<E>(
        &mut self,
        read: impl AsyncFnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<Result<usize, E>, StoreError> {
        if self.filling.is_none() {
            self.filling = self.next_chunk().await?;
        }
        let Some(chunk) = &mut self.filling else { return Ok(Ok(0)) };
        let bytes = chunk.buf.as_mut().expect("a chunk that is being filled has one owner");
        let space = &mut bytes[chunk.filled..chunk.piece.bytes];
        let space_bytes = space.len();
        let result = match select(read(space), self.writes.drive()).await {
            Either::First(result) => result,
            Either::Second(()) => unreachable!("drive never completes"),
        };
        if let Ok(count) = result {
            assert!(count <= space_bytes, "{count} bytes put into {space_bytes}");
            chunk.filled += count;
            self.received += count as u64;
        }
        if let Some(chunk) = self.filling.take_if(|chunk| chunk.filled == chunk.piece.bytes) {
            self.write(chunk).await;
        }
        Ok(result)
    }

    /// A chunk for the next piece, once few enough are in flight.
    async fn next_chunk(&mut self) -> Result<Option<Chunk>, StoreError> {
        let missing = self.length_max - self.placed;
        if missing == 0 {
            return Ok(None);
        }
        while self.writes.len() >= CHUNKS_PER_TRANSFER {
            self.finish_write().await?;
        }
        let space = self.space.as_mut().expect("only the end takes the space of an upload");
        let blocks = missing.min(CHUNK_BYTES as u64).div_ceil(BLOCK_BYTES as u64) as u32;
        let Ok(extent) = space.next(blocks, missing.div_ceil(BLOCK_BYTES as u64)) else {
            return Err(self.store.full(missing));
        };
        let extent_bytes = u64::from(extent.blocks) * BLOCK_BYTES as u64;
        let piece =
            Piece { offset: u64::from(extent.start) * BLOCK_BYTES as u64, bytes: missing.min(extent_bytes) as usize };
        self.placed += piece.bytes as u64;
        let buf = self.store.pool().take(piece.padded_bytes())?;
        Ok(Some(Chunk { buf, piece, filled: 0 }))
    }

    async fn finish_write(&mut self) -> Result<bool, StoreError> {
        let Some((result, buf)) = self.writes.pop().await else { return Ok(false) };
        let bytes = buf.len();
        self.store.pool().give(buf);
        result?;
        self.store.wrote(bytes);
        Ok(true)
    }

    async fn finish_writes(&mut self) -> Result<(), StoreError> {
        while self.finish_write().await? {}
        Ok(())
    }

    /// Starts to write a full chunk.
    async fn write(&mut self, mut chunk: Chunk) {
        let bytes = chunk.buf.as_mut().expect("a chunk that is being filled has one owner");
        self.hasher.update(&bytes[..chunk.piece.bytes]);
        // The buffer may have held another item.
        bytes[chunk.piece.bytes..].fill(0);
        let block = self.store.block().clone();
        self.writes.push(async move { block.write(chunk.piece.offset, chunk.buf).await }).await;
    }

    /// Makes the item part of the queue; it is durable when this returns its id. Once the data is
    /// complete and written, it becomes part of the queue even if the future is dropped.
    pub async fn finish(mut self) -> Result<u64, StoreError> {
        let length = self.length.unwrap_or(self.length_max);
        if self.received != length {
            return Err(StoreError::Short { length, received: self.received });
        }
        if let Some(mut chunk) = self.filling.take() {
            // The end came earlier than the chunk's.
            chunk.piece.bytes = chunk.filled;
            if chunk.filled > 0 {
                self.write(chunk).await;
            }
        }
        self.finish_writes().instrument(info_span!("write")).await?;
        let space = self.space.take().expect("only this function takes the space of a live upload");
        let space = space.into_space(length.div_ceil(BLOCK_BYTES as u64));
        self.store.add(length, self.hasher.digest(), space, self.lost_flushes).instrument(info_span!("commit")).await
    }
}

impl<B: Block> Drop for Upload<B> {
    /// Writes in flight must not hit blocks that have a new owner.
    fn drop(&mut self) {
        let Some(space) = self.space.take() else { return };
        if self.writes.is_empty() {
            return;
        }
        let mut writes = core::mem::replace(&mut self.writes, InFlight::new());
        let (pool, held) = (self.store.pool().clone(), self.held.take());
        self.store.abandon(async move {
            while let Some((_, buf)) = writes.pop().await {
                pool.give(buf);
            }
            drop((space, held));
        });
    }
}
