//! Memory for device requests: owned, page-aligned, reference counted.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::ops::{Deref, Range};

const PAGE_BYTES: usize = 4096;

/// A range of page-aligned memory that can be passed to a device and shared without a copy.
///
/// A request takes the `Buf` by value and returns it when the device has completed it, so a future that is
/// dropped early can never leave a device writing to memory that has a new owner.
///
/// Cloning and [slicing](Buf::slice) share the memory; [`Buf::as_mut`] works only for a sole owner.
#[derive(Clone)]
pub struct Buf {
    memory: Arc<Memory>,
    range: Range<usize>,
}

/// `bytes[start..]` is page aligned. A vector's bytes do not move unless it is resized, which
/// does not happen: the field is private and no method grows it.
struct Memory {
    bytes: Vec<u8>,
    start: usize,
}

/// There was no memory for a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Requested bytes.
    pub bytes: usize,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "no memory for a buffer of {} bytes: give the service more memory", self.bytes)
    }
}

impl core::error::Error for OutOfMemory {}

/// A vector of `count` zeroed bytes. Unlike [`Vec::resize`] it requests zeroed memory of the allocator, which need not write what is new.
pub fn zeroed_bytes(count: usize) -> Result<Vec<u8>, OutOfMemory> {
    bytemuck::allocation::try_zeroed_vec(count).map_err(|()| OutOfMemory { bytes: count })
}

impl Buf {
    /// `len_bytes` zeroed bytes, aligned to 4096. Costs up to a page more than requested.
    pub fn zeroed(len_bytes: usize) -> Result<Buf, OutOfMemory> {
        let error = OutOfMemory { bytes: len_bytes };
        let total = len_bytes.checked_add(PAGE_BYTES - 1).ok_or(error)?;
        let bytes = zeroed_bytes(total).map_err(|_| error)?;
        let start = bytes.as_ptr().align_offset(PAGE_BYTES);
        Ok(Buf { memory: Arc::new(Memory { bytes, start }), range: 0..len_bytes })
    }

    /// No bytes, and no memory for any.
    pub fn empty() -> Buf {
        Buf { memory: Arc::new(Memory { bytes: Vec::new(), start: 0 }), range: 0..0 }
    }

    /// A copy of `data` in a new buffer.
    pub fn copy_of(data: &[u8]) -> Result<Buf, OutOfMemory> {
        let mut buf = Buf::zeroed(data.len())?;
        buf.as_mut().expect("a new buffer has one owner").copy_from_slice(data);
        Ok(buf)
    }

    /// The bytes `range` of this buffer, sharing its memory.
    ///
    /// # Panics
    /// When the range is not inside the buffer.
    pub fn slice(&self, range: Range<usize>) -> Buf {
        assert!(range.start <= range.end && range.end <= self.len(), "slice {range:?} of {} bytes", self.len());
        let start = self.range.start + range.start;
        Buf { memory: self.memory.clone(), range: start..start + range.len() }
    }

    /// The bytes for writing; `None` while another `Buf` shares the memory.
    pub fn as_mut(&mut self) -> Option<&mut [u8]> {
        let memory = Arc::get_mut(&mut self.memory)?;
        Some(&mut memory.bytes[memory.start..][self.range.clone()])
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory.bytes[self.memory.start..][self.range.clone()]
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Buf({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_page_aligned_and_zeroed() {
        for len in [0, 1, 4095, 4096, 70_000] {
            let buf = Buf::zeroed(len).unwrap();
            assert_eq!(buf.len(), len);
            assert_eq!(buf.as_ptr() as usize % PAGE_BYTES, 0);
            assert!(buf.iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn a_shared_buffer_cannot_be_written() {
        let mut buf = Buf::copy_of(b"hello").unwrap();
        let part = buf.slice(1..4);
        assert_eq!(&*part, b"ell");
        assert!(buf.as_mut().is_none());
        drop(part);
        buf.as_mut().unwrap()[0] = b'j';
        assert_eq!(&*buf, b"jello");
    }

    #[test]
    fn an_absurd_size_is_an_error() {
        assert!(Buf::zeroed(usize::MAX).is_err());
        assert!(Buf::zeroed(isize::MAX as usize - 10_000).is_err());
        assert_eq!(Buf::empty().as_mut().map(|bytes| bytes.len()), Some(0));
        assert_eq!(zeroed_bytes(usize::MAX), Err(OutOfMemory { bytes: usize::MAX }));
    }
}
