//! Bytes that arrived before they were read.

use crate::HttpError;
use alloc::vec::Vec;

/// Enough for the heads that browsers and tools send.
const START_BYTES: usize = 4096;

/// A growing window over received bytes.
#[derive(Default)]
pub(crate) struct Input {
    /// Zeroed memory; `start..end` of it holds data.
    memory: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.end]
    }

    pub(crate) fn len(&self) -> usize {
        self.end - self.start
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    pub(crate) fn consume(&mut self, count: usize) {
        assert!(count <= self.len(), "{count} of {} bytes", self.len());
        self.start += count;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Moves bytes to the front of `out` and returns how many.
    pub(crate) fn take(&mut self, out: &mut [u8]) -> usize {
        let count = self.len().min(out.len());
        out[..count].copy_from_slice(&self.bytes()[..count]);
        self.consume(count);
        count
    }

    /// Memory to receive into; empty when `bytes_max` are held already.
    pub(crate) fn space(&mut self, bytes_max: usize) -> Result<&mut [u8], HttpError> {
        if self.len() >= bytes_max {
            return Ok(&mut []);
        }
        if self.end == self.memory.len() {
            if self.start > 0 {
                self.memory.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
            } else {
                let larger = (self.memory.len() * 2).clamp(START_BYTES.min(bytes_max), bytes_max);
                let more = larger - self.memory.len();
                self.memory.try_reserve_exact(more).map_err(|_| HttpError::OutOfMemory)?;
                self.memory.resize(larger, 0);
            }
        }
        let end = self.memory.len().min(self.start + bytes_max);
        Ok(&mut self.memory[self.end..end])
    }

    /// Adds `count` bytes that were received into [`Input::space`].
    pub(crate) fn received(&mut self, count: usize) {
        assert!(count <= self.memory.len() - self.end, "more bytes than there was space for");
        self.end += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_doubles_up_to_the_maximum() {
        let mut input = Input::default();
        for space_bytes in [START_BYTES, START_BYTES, 2 * START_BYTES, START_BYTES, 0] {
            assert_eq!(input.space(5 * START_BYTES).unwrap().len(), space_bytes);
            input.received(space_bytes);
        }
        assert_eq!(input.memory.capacity(), 5 * START_BYTES);
    }

    #[test]
    fn what_was_consumed_makes_room_and_the_rest_is_kept() {
        let mut input = Input::default();
        input.space(10).unwrap().copy_from_slice(b"0123456789");
        input.received(10);
        input.consume(7);
        assert_eq!(input.space(10).unwrap().len(), 7);
        assert_eq!(input.bytes(), b"789");
        input.space(10).unwrap().copy_from_slice(b"abcdefg");
        input.received(7);
        assert_eq!((input.bytes(), input.len()), (&b"789abcdefg"[..], 10));
    }
}
