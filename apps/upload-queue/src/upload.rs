//! Uploads: data from a client to the disk.

use crate::account::Charge;
use crate::allocator::{Piece, Reservation};
use crate::digest::Digests;
use crate::error::StoreError;
use crate::format::{self, BLOCK_BYTES};
use crate::inflight::InFlight;
use crate::limits::{CHUNK_BYTES, CHUNKS_PER_TRANSFER};
use crate::resumable::Resumable;
use crate::session::Session;
use crate::store::Store;
use alloc::boxed::Box;
use alloc::rc::Rc;
use core::any::Any;
use glasshouse::future::{Either, select};
use glasshouse::tracing::{Instrument, info_span};
use glasshouse::{Block, BlockError, Buf};
use xxhash_rust::xxh3::Xxh3;

/// An item that is being received. At most [`CHUNKS_PER_TRANSFER`] chunks are in memory.
pub struct Upload<B: Block> {
    pub(crate) store: Store<B>,
    /// `None` once it belongs to an item or to abandoned writes.
    pub(crate) space: Option<Reservation>,
    /// Bytes that will come, `None` while unknown.
    pub(crate) length: Option<u64>,
    /// Bytes that may come at most.
    pub(crate) length_max: u64,
    pub(crate) received: u64,
    /// Bytes for which blocks were given out.
    placed: u64,
    /// Bytes that are in full chunks, all of which are hashed.
    pub(crate) hashed: u64,
    /// Of those, the bytes whose writes were completed.
    pub(crate) written: u64,
    pub(crate) hasher: Box<Xxh3>,
    pub(crate) digests: Digests,
    pub(crate) charge: Option<Charge>,
    filling: Option<Chunk>,
    writes: InFlight<(Result<(), BlockError>, Buf, u64)>,
    /// Of an upload that can be resumed.
    pub(crate) session: Option<Box<Session>>,
    /// Of the store when this upload started.
    pub(crate) lost_flushes: u64,
    /// See [`Upload::hold`].
    held: Option<Box<dyn Any>>,
}

/// The chunk that is being filled.
struct Chunk {
    buf: Buf,
    piece: Piece,
    filled: usize,
    /// The first so many bytes were hashed before.
    hashed: usize,
}

impl<B: Block> Upload<B> {
    pub(crate) fn new(store: Store<B>, space: Reservation, length: Option<u64>, length_max: u64) -> Upload<B> {
        Upload::at(store, space, length, length_max, 0, format::hasher(), None)
    }

    /// One that has received `offset` bytes, which `hasher` has hashed.
    pub(crate) fn at(
        store: Store<B>,
        space: Reservation,
        length: Option<u64>,
        length_max: u64,
        offset: u64,
        hasher: Box<Xxh3>,
        session: Option<Box<Session>>,
    ) -> Upload<B> {
        let writes = InFlight::new();
        let (space, lost_flushes) = (Some(space), store.lost_flushes());
        Upload {
            store,
            space,
            length,
            length_max,
            received: offset,
            // A block that was begun is written again.
            placed: offset / BLOCK_BYTES as u64 * BLOCK_BYTES as u64,
            hashed: offset,
            written: offset,
            hasher,
            digests: Digests::default(),
            charge: None,
            filling: None,
            writes,
            session,
            lost_flushes,
            held: None,
        }
    }

    /// Drops `guard` when the last write has ended: writes of an upload that is dropped continue, and hold memory. An upload that is
    /// completely written and waits for its commit holds none.
    pub fn hold(&mut self, guard: impl Any) {
        self.held = Some(Box::new(guard));
    }

    /// Its bytes must have these digests, or [`Upload::finish`] fails; call it before the first byte.
    pub fn verify(&mut self, digests: Digests) {
        self.digests = digests;
    }

    pub(crate) fn digests(&mut self) -> &mut Digests {
        &mut self.digests
    }

    /// What it counts for its uploader, until its item is removed.
    pub(crate) fn set_charge(&mut self, charge: Option<Charge>) {
        self.charge = charge;
    }

    pub(crate) fn take_charge(&mut self) -> Option<Charge> {
        self.charge.take()
    }

    /// `bytes` have arrived. False if the quota of its uploader does not allow them.
    pub(crate) fn arrived(&mut self, bytes: u64) -> bool {
        let is_announced = self.length.is_some();
        let Some(charge) = &mut self.charge else { return true };
        charge.arrived(bytes);
        // An announced length was charged at the start.
        is_announced || charge.add(bytes)
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

    /// Bytes that were received, including those of earlier sessions.
    pub fn received_bytes(&self) -> u64 {
        self.received
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
            self.save_progress();
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
        let mut buf = self.store.pool().take(piece.padded_bytes())?;
        let begun = self.session.as_mut().map(|session| core::mem::take(&mut session.begun)).unwrap_or_default();
        buf.as_mut().expect("a new buffer has one owner")[..begun.len()].copy_from_slice(&begun);
        Ok(Some(Chunk { buf, piece, filled: begun.len(), hashed: begun.len() }))
    }

    async fn finish_write(&mut self) -> Result<bool, StoreError> {
        let Some((result, buf, end)) = self.writes.pop().await else { return Ok(false) };
        let bytes = buf.len();
        self.store.pool().give(buf);
        result?;
        self.store.wrote(bytes);
        self.written = end;
        self.save_progress();
        Ok(true)
    }

    async fn finish_writes(&mut self) -> Result<(), StoreError> {
        while self.finish_write().await? {}
        Ok(())
    }

    /// Starts to write a full chunk.
    async fn write(&mut self, mut chunk: Chunk) {
        let bytes = chunk.buf.as_mut().expect("a chunk that is being filled has one owner");
        let new = &bytes[chunk.hashed..chunk.piece.bytes];
        self.hasher.update(new);
        self.digests.update(new);
        if let Some(session) = &mut self.session {
            session.whole.update(new);
        }
        self.hashed += new.len() as u64;
        let end = self.hashed;
        // The buffer may have held another item.
        bytes[chunk.piece.bytes..].fill(0);
        let block = self.store.block().clone();
        let write = async move {
            let (result, buf) = block.write(chunk.piece.offset, chunk.buf).await;
            (result, buf, end)
        };
        self.writes.push(write).await;
    }

    /// Writes all that was received. The next flush waits for it, so the caller adds the change at once.
    pub(crate) async fn write_all(&mut self) -> Result<(), StoreError> {
        let _writing = self.store.begin_last_writes();
        // The rest of a block that was begun is zero, whatever an interrupted session left there.
        if self.filling.is_none() && self.session.as_ref().is_some_and(|session| !session.begun.is_empty()) {
            self.filling = self.next_chunk().await?;
        }
        if let Some(mut chunk) = self.filling.take() {
            // The end came earlier than the chunk's.
            chunk.piece.bytes = chunk.filled;
            if chunk.filled > 0 {
                self.write(chunk).await;
            }
        }
        self.finish_writes().instrument(info_span!("write")).await?;
        self.held = None;
        Ok(())
    }

    /// Makes the item part of the queue; it is durable when this returns its id. Once the data is
    /// complete and written, it becomes part of the queue even if the future is dropped.
    pub async fn finish(mut self) -> Result<u64, StoreError> {
        let length = self.length.unwrap_or(self.length_max);
        if self.received != length {
            return Err(StoreError::Short { length, received: self.received });
        }
        self.write_all().await?;
        self.digests.verify()?;
        if self.session.is_some() {
            return self.finish_session(length).await;
        }
        let space = self.space.take().expect("only this function takes the space of a live upload");
        let space = space.into_space(length.div_ceil(BLOCK_BYTES as u64));
        let charge = self.charge.take();
        self.store
            .add(length, self.hasher.digest(), space, charge, self.lost_flushes)
            .instrument(info_span!("commit"))
            .await
    }
}

impl<B: Block> Drop for Upload<B> {
    /// Writes in flight must not hit blocks that have a new owner.
    fn drop(&mut self) {
        let Some(space) = self.space.take() else { return };
        let of = self.session.take().map(|session| session.of);
        if let Some(upload) = &of {
            upload.charge.replace(self.charge.take());
        }
        let free = move |space: Reservation, of: Option<Rc<Resumable>>| match of {
            Some(upload) => upload.park(space),
            None => drop(space),
        };
        if self.writes.is_empty() {
            free(space, of);
            return self.store.notify();
        }
        let mut writes = core::mem::replace(&mut self.writes, InFlight::new());
        let (pool, held) = (self.store.pool().clone(), self.held.take());
        self.store.abandon(async move {
            while let Some((_, buf, _)) = writes.pop().await {
                pool.give(buf);
            }
            free(space, of);
            drop(held);
        });
    }
}
