//! Pages that another domain may reach at any time, and the only accesses to them.
//!
//! The other domain may write them whatever was agreed, so there is never a reference to their bytes: words are atomics, bytes are copied
//! by volatile accesses, and each access checks its bounds.
#![allow(unsafe_code)]

use alloc::alloc::{Layout, alloc_zeroed, dealloc};
use alloc::rc::Rc;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU16, AtomicU32};

/// Size of a frame, of a grant, and of a ring page.
pub const PAGE_BYTES: usize = 4096;

/// Where pages come from that can be lent to another domain.
pub trait Frames {
    /// `count` zeroed pages whose frame numbers follow each other. `None` when there is no memory.
    fn allocate(&self, count: usize) -> Option<SharedPages>;
}

/// Memory of the global allocator, for a guest whose page tables map each page to itself, and for tests.
#[derive(Debug, Clone, Copy, Default)]
pub struct IdentityFrames;

impl Frames for IdentityFrames {
    fn allocate(&self, count: usize) -> Option<SharedPages> {
        let layout = Layout::from_size_align(count.max(1).checked_mul(PAGE_BYTES)?, PAGE_BYTES).ok()?;
        // SAFETY: the layout's size is at least a page, so not zero.
        let pointer = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let frame = pointer.as_ptr().expose_provenance() / PAGE_BYTES;
        // SAFETY: the allocator gave these bytes to us alone, and `release_global` frees them with the same layout.
        Some(unsafe { SharedPages::from_parts(pointer, layout.size(), frame as u64, release_global) })
    }
}

/// # Safety
/// The memory must come from [`IdentityFrames`], and not be used any more.
unsafe fn release_global(pointer: NonNull<u8>, bytes: usize) {
    let layout = Layout::from_size_align(bytes, PAGE_BYTES).expect("it was valid when the memory was allocated");
    // SAFETY: by this function's contract the pointer came from `alloc_zeroed` with this layout.
    unsafe { dealloc(pointer.as_ptr(), layout) }
}

/// Pages that another domain may reach. Clones are handles to the same pages, which live as long as one of them.
#[derive(Debug, Clone)]
pub struct SharedPages {
    region: Rc<Region>,
    /// Which of the region's bytes: the first one, and their number.
    start: usize,
    bytes: usize,
}

#[derive(Debug)]
struct Region {
    pointer: NonNull<u8>,
    bytes: usize,
    frame: u64,
    release: unsafe fn(NonNull<u8>, usize),
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the region owns the memory and is gone after this (`from_parts` has the rest of the contract).
        unsafe { (self.release)(self.pointer, self.bytes) }
    }
}

impl SharedPages {
    /// Pages that a platform has set aside: memory of its own, or a page that Xen shares with it.
    ///
    /// # Safety
    /// `pointer` must be aligned to a page and valid for reads and writes of `bytes` initialised bytes, a multiple of [`PAGE_BYTES`]; all
    /// other accesses of this domain must go through the new value. Their frames must be numbered from `frame` on.
    /// `release` must be sound to call once with the first two values when nothing uses the memory.
    pub unsafe fn from_parts(
        pointer: NonNull<u8>,
        bytes: usize,
        frame: u64,
        release: unsafe fn(NonNull<u8>, usize),
    ) -> SharedPages {
        SharedPages { region: Rc::new(Region { pointer, bytes, frame, release }), start: 0, bytes }
    }

    /// Their length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// `count` of them, from number `first` on.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn part(&self, first: usize, count: usize) -> SharedPages {
        let (start, bytes) = (first * PAGE_BYTES, count * PAGE_BYTES);
        assert!(start + bytes <= self.bytes, "{count} pages from {first} on of {} bytes", self.bytes);
        SharedPages { region: self.region.clone(), start: self.start + start, bytes }
    }

    /// Frame number of page `index`.
    ///
    /// # Panics
    /// If there is no such page.
    pub fn frame(&self, index: usize) -> u64 {
        assert!(index < self.bytes / PAGE_BYTES, "page {index} of {} bytes", self.bytes);
        self.region.frame + (self.start / PAGE_BYTES + index) as u64
    }

    fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        let end = offset.checked_add(bytes);
        assert!(end.is_some_and(|end| end <= self.bytes), "{bytes} bytes at {offset} of {}", self.bytes);
        // SAFETY: the range was just found to be inside this part of the memory, which is one allocation (`part`).
        unsafe { self.region.pointer.as_ptr().add(self.start + offset) }
    }

    /// The word of 16 bits at byte `offset`.
    pub(crate) fn word_u16(&self, offset: usize) -> &AtomicU16 {
        assert!(offset.is_multiple_of(2));
        // SAFETY: in bounds and, from a page-aligned start, aligned; `self` outlives the result. Other accesses to words are
        // atomic, and those to bytes volatile.
        unsafe { AtomicU16::from_ptr(self.at(offset, 2).cast()) }
    }

    /// The word of 32 bits at byte `offset`.
    pub(crate) fn word_u32(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4));
        // SAFETY: as in `word_u16`.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4).cast()) }
    }

    /// Copies the bytes from `offset` on into `target`, each once.
    pub fn read(&self, offset: usize, target: &mut [u8]) {
        let source = self.at(offset, target.len());
        let (head, rest) = target.split_at_mut(source.align_offset(8).min(target.len()));
        let (words, tail) = rest.as_chunks_mut::<8>();
        let (head_bytes, word_bytes) = (head.len(), words.len() * 8);
        // SAFETY: `at` has checked the range; any bits are a value.
        let byte = |at: usize| unsafe { source.add(at).read_volatile() };
        head.iter_mut().enumerate().for_each(|(at, target)| *target = byte(at));
        for (index, word) in words.iter_mut().enumerate() {
            // SAFETY: in range as above, and aligned: `head` ends where words are.
            *word = unsafe { source.add(head_bytes + index * 8).cast::<u64>().read_volatile() }.to_ne_bytes();
        }
        tail.iter_mut().enumerate().for_each(|(at, target)| *target = byte(head_bytes + word_bytes + at));
    }

    /// Copies `source` to the bytes from `offset` on.
    pub fn write(&self, offset: usize, source: &[u8]) {
        let target = self.at(offset, source.len());
        let (head, rest) = source.split_at(target.align_offset(8).min(source.len()));
        let (words, tail) = rest.as_chunks::<8>();
        // SAFETY: `at` has checked the range, and nothing refers to the bytes.
        let byte = |at: usize, value: u8| unsafe { target.add(at).write_volatile(value) };
        head.iter().enumerate().for_each(|(at, &value)| byte(at, value));
        for (index, word) in words.iter().enumerate() {
            // SAFETY: in range as above, and aligned: `head` ends where words are.
            unsafe { target.add(head.len() + index * 8).cast::<u64>().write_volatile(u64::from_ne_bytes(*word)) };
        }
        tail.iter().enumerate().for_each(|(at, &value)| byte(head.len() + words.len() * 8 + at, value));
    }
}

/// Pages whose frame numbers start at `frame`, as they are small in a guest; those of a process have more than 32 bits.
#[cfg(any(test, feature = "fake"))]
pub fn numbered(count: usize, frame: u64) -> SharedPages {
    let mut pages = IdentityFrames.allocate(count).expect("memory for a test");
    Rc::get_mut(&mut pages.region).expect("one handle").frame = frame;
    pages
}

/// Pages of the allocator with such numbers.
#[cfg(any(test, feature = "fake"))]
#[derive(Debug, Default)]
pub struct SmallNumbers(core::cell::Cell<u64>);

#[cfg(any(test, feature = "fake"))]
impl Frames for SmallNumbers {
    fn allocate(&self, count: usize) -> Option<SharedPages> {
        let frame = self.0.get() + 0x1000;
        self.0.set(frame + count as u64);
        Some(numbered(count, frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    #[test]
    fn copies_have_any_length_and_place() {
        let pages = IdentityFrames.allocate(2).unwrap();
        assert_eq!((pages.bytes(), pages.frame(1)), (8192, pages.frame(0) + 1));
        for offset in [0, 1, 7, 8, 4090, 8192 - 40] {
            for length in 0..=40 {
                let bytes: Vec<u8> = (1..=length as u8).collect();
                pages.write(offset, &bytes);
                let mut copy = vec![0; length];
                pages.read(offset, &mut copy);
                assert_eq!(copy, bytes);
            }
        }
    }

    #[test]
    #[should_panic(expected = "2 bytes at 4095 of 4096")]
    fn does_not_reach_past_its_end() {
        IdentityFrames.allocate(1).unwrap().read(4095, &mut [0; 2]);
    }
}
