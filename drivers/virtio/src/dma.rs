//! The seam to memory that a device can reach, and the only accesses to it.
//!
//! A device may write to its memory at any time, so a word that both sides use is an atomic, and a
//! range of bytes is looked at only between a completion and the next request that names it.

use crate::error::SetupError;
use alloc::alloc::{Layout, alloc_zeroed, dealloc};
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Rings and buffers start at a multiple of this.
pub const PAGE_BYTES: usize = 4096;

/// Where device memory comes from and how a device names it.
///
/// # Safety
/// What a device is told to use must be what we set aside for it: [`Dma::device_address`] must name
/// exactly the memory that it was asked about, and memory from [`Dma::allocate`] must be reachable
/// at the address that it carries, for as long as it lives.
pub unsafe trait Dma {
    /// At least `bytes` zeroed bytes at a page boundary, contiguous for the device too. `None`
    /// when there is no memory.
    fn allocate(&self, bytes: usize) -> Option<DmaMemory>;

    /// The address by which a device reaches `bytes` bytes of ordinary memory at `pointer`.
    fn device_address(&self, pointer: *const u8, bytes: usize) -> u64;
}

/// Memory from the global allocator, for worlds in which a device's addresses are ours: a VM whose
/// page tables map each page to itself, or a test whose device is a function beside it.
#[derive(Debug, Clone, Copy, Default)]
pub struct IdentityDma;

// SAFETY: its users are worlds in which a device and we use the same addresses (see above).
unsafe impl Dma for IdentityDma {
    fn allocate(&self, bytes: usize) -> Option<DmaMemory> {
        let layout = Layout::from_size_align(bytes.max(1).checked_next_multiple_of(PAGE_BYTES)?, PAGE_BYTES).ok()?;
        // SAFETY: the layout's size is at least a page, so not zero.
        let pointer = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let address = pointer.as_ptr().expose_provenance() as u64;
        // SAFETY: the allocator gave `layout.size()` zeroed bytes at a page boundary to us alone, and
        // `release_global` frees them with the same layout.
        Some(unsafe { DmaMemory::from_parts(pointer, layout.size(), address, release_global) })
    }

    fn device_address(&self, pointer: *const u8, _bytes: usize) -> u64 {
        pointer.expose_provenance() as u64
    }
}

/// # Safety
/// The memory must come from [`IdentityDma::allocate`], and nobody may use it any more.
unsafe fn release_global(pointer: NonNull<u8>, bytes: usize) {
    let layout = Layout::from_size_align(bytes, PAGE_BYTES).expect("it was valid when the memory was allocated");
    // SAFETY: by this function's contract the pointer came from `alloc_zeroed` with this layout.
    unsafe { dealloc(pointer.as_ptr(), layout) }
}

/// Memory that a device can read and write. Every access checks its bounds.
///
/// Words are little-endian, as the device sees them.
#[derive(Debug)]
pub struct DmaMemory {
    pointer: NonNull<u8>,
    bytes: usize,
    address: u64,
    release: unsafe fn(NonNull<u8>, usize),
}

impl DmaMemory {
    /// Memory that an implementation of [`Dma`] has set aside.
    ///
    /// # Safety
    /// `pointer` must be valid for reads and writes of `bytes` initialised bytes, be aligned to a
    /// page, and belong to the new value alone (and to the device, which reaches it at `address`).
    /// `release` must be sound to call once with the same two values when nobody uses the memory.
    pub unsafe fn from_parts(
        pointer: NonNull<u8>,
        bytes: usize,
        address: u64,
        release: unsafe fn(NonNull<u8>, usize),
    ) -> DmaMemory {
        DmaMemory { pointer, bytes, address, release }
    }

    /// Memory from `dma`, or the error that a driver's set-up returns.
    pub(crate) fn new(dma: &impl Dma, bytes: usize) -> Result<DmaMemory, SetupError> {
        dma.allocate(bytes).filter(|memory| memory.bytes >= bytes).ok_or(SetupError::OutOfMemory { bytes })
    }

    /// Where the device finds byte `offset`.
    pub fn device_address(&self, offset: usize) -> u64 {
        self.address + offset as u64
    }

    fn at(&self, range: Range<usize>) -> NonNull<u8> {
        assert!(range.start <= range.end && range.end <= self.bytes, "{range:?} of {} bytes", self.bytes);
        // SAFETY: the range was just found to be inside the memory, which is one allocation.
        unsafe { self.pointer.add(range.start) }
    }

    fn word_u16(&self, offset: usize) -> &AtomicU16 {
        assert!(offset.is_multiple_of(2));
        let pointer = self.at(offset..offset + 2).cast::<u16>();
        // SAFETY: in bounds and, from a page-aligned start, aligned. All other accesses are atomic
        // too, or by `slice` and `slice_mut`, whose callers exclude the word; `self` outlives the result.
        unsafe { AtomicU16::from_ptr(pointer.as_ptr()) }
    }

    fn word_u32(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4));
        let pointer = self.at(offset..offset + 4).cast::<u32>();
        // SAFETY: as in `word_u16`.
        unsafe { AtomicU32::from_ptr(pointer.as_ptr()) }
    }

    fn word_u64(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8));
        let pointer = self.at(offset..offset + 8).cast::<u64>();
        // SAFETY: as in `word_u16`.
        unsafe { AtomicU64::from_ptr(pointer.as_ptr()) }
    }

    pub(crate) fn load_u16(&self, offset: usize, ordering: Ordering) -> u16 {
        u16::from_le(self.word_u16(offset).load(ordering))
    }

    pub(crate) fn store_u16(&self, offset: usize, value: u16, ordering: Ordering) {
        self.word_u16(offset).store(value.to_le(), ordering);
    }

    pub(crate) fn load_u32(&self, offset: usize) -> u32 {
        u32::from_le(self.word_u32(offset).load(Ordering::Relaxed))
    }

    pub(crate) fn store_u64(&self, offset: usize, value: u64) {
        self.word_u64(offset).store(value.to_le(), Ordering::Relaxed);
    }

    /// # Safety
    /// While the result lives, no request that lets the device write to the range may be under way,
    /// and no other reference to it may be mutable.
    pub(crate) unsafe fn slice(&self, range: Range<usize>) -> &[u8] {
        let pointer = self.at(range.clone());
        // SAFETY: in bounds and initialised (`from_parts`); by this function's contract nobody
        // writes to it meanwhile.
        unsafe { core::slice::from_raw_parts(pointer.as_ptr(), range.len()) }
    }

    /// # Safety
    /// While the result lives, no request that names the range may be under way.
    pub(crate) unsafe fn slice_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        let pointer = self.at(range.clone());
        // SAFETY: in bounds and initialised (`from_parts`); `&mut self` keeps our own side away, this
        // function's contract the device.
        unsafe { core::slice::from_raw_parts_mut(pointer.as_ptr(), range.len()) }
    }

    /// Gives the memory up for ever: for a device that cannot be made to let go of it.
    pub(crate) fn leak(&mut self) {
        self.release = |_, _| {};
    }
}

impl Drop for DmaMemory {
    fn drop(&mut self) {
        // SAFETY: the value owns the memory and is gone after this; drivers reset their device
        // before they drop its memory, or leak it (`from_parts` has the rest of the contract).
        unsafe { (self.release)(self.pointer, self.bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_zeroed_aligned_and_little_endian() {
        let mut memory = IdentityDma.allocate(5000).unwrap();
        assert_eq!(memory.device_address(0) % PAGE_BYTES as u64, 0);
        assert_eq!(memory.bytes, 8192);
        memory.store_u64(8, 0x0807_0605_0403_0201);
        assert_eq!(memory.load_u16(10, Ordering::Relaxed), 0x0403);
        assert_eq!(memory.load_u32(12), 0x0807_0605);
        // SAFETY: no device knows this memory.
        assert_eq!(unsafe { memory.slice(7..11) }, [0, 1, 2, 3]);
        // SAFETY: as above.
        unsafe { memory.slice_mut(8191..8192) }.fill(9);
        assert!(IdentityDma.allocate(usize::MAX).is_none());
    }

    #[test]
    #[should_panic(expected = "8191..8193 of 8192 bytes")]
    fn does_not_reach_past_its_end() {
        let memory = IdentityDma.allocate(8192).unwrap();
        // SAFETY: no device knows this memory.
        let _ = unsafe { memory.slice(8191..8193) };
    }
}
