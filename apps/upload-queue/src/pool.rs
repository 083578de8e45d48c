//! Chunk buffers that are reused, so that streaming does not clear memory for every chunk.

use crate::limits::{CHUNK_BYTES, POOL_CHUNKS_MAX};
use crate::telemetry::BUFFERS_FREE;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use glasshouse::{Buf, OutOfMemory};

/// Unused buffers of [`CHUNK_BYTES`]. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Pool {
    idle: Rc<RefCell<Vec<Buf>>>,
}

impl Pool {
    /// A buffer of exactly `bytes` with unspecified contents. Full chunks come from the pool; a
    /// shorter piece is the last of its item and gets a buffer of its own size.
    pub(crate) fn take(&self, bytes: usize) -> Result<Buf, OutOfMemory> {
        let mut idle = self.idle.borrow_mut();
        if bytes == CHUNK_BYTES
            && let Some(buf) = idle.pop()
        {
            BUFFERS_FREE.set(idle.len() as i64);
            return Ok(buf);
        }
        Buf::zeroed(bytes)
    }

    /// Keeps `buf` for the next chunk, if it is a whole chunk and not shared.
    pub(crate) fn give(&self, mut buf: Buf) {
        let mut idle = self.idle.borrow_mut();
        if buf.len() == CHUNK_BYTES && idle.len() < POOL_CHUNKS_MAX && buf.as_mut().is_some() {
            idle.push(buf);
            BUFFERS_FREE.set(idle.len() as i64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{CHUNKS_PER_TRANSFER, DOWNLOADS_MAX, UPLOADS_MAX};
    use alloc::vec;

    /// The bounds promise a quarter of a VM of 32 MiB.
    #[test]
    fn no_more_chunks_are_kept_than_all_transfers_use() {
        let pool = Pool::default();
        let used = UPLOADS_MAX * CHUNKS_PER_TRANSFER + DOWNLOADS_MAX * CHUNKS_PER_TRANSFER;
        let mut taken = vec![];
        for _ in 0..2 * used {
            taken.push(pool.take(CHUNK_BYTES).unwrap());
        }
        taken.into_iter().for_each(|buf| pool.give(buf));
        assert_eq!(pool.idle.borrow().len(), used);
        assert!(used * CHUNK_BYTES <= (32 << 20) / 4);
        // Neither a short buffer nor one that is shared is kept.
        let buf = pool.take(CHUNK_BYTES).unwrap();
        pool.give(Buf::zeroed(100).unwrap());
        pool.give(buf.clone());
        assert_eq!(pool.idle.borrow().len(), used - 1);
    }
}
