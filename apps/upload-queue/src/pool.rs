//! Chunk buffers that are used again, so that streaming does not clear memory for every chunk.

use crate::limits::{CHUNK_BYTES, POOL_CHUNKS_MAX};
use crate::telemetry::BUFFERS_FREE;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use glasshouse::{Buf, OutOfMemory};

/// Buffers of [`CHUNK_BYTES`] that nobody uses. Clones share them.
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

    /// Keeps `buf` for the next one, if it is a whole chunk that nobody shares.
    pub(crate) fn give(&self, mut buf: Buf) {
        let mut idle = self.idle.borrow_mut();
        if buf.len() == CHUNK_BYTES && idle.len() < POOL_CHUNKS_MAX && buf.as_mut().is_some() {
            idle.push(buf);
            BUFFERS_FREE.set(idle.len() as i64);
        }
    }
}
