//! The seam to memory that a device can reach, and the only accesses to it.
//!
//! A device may write to its memory at any time, whatever it has completed before. So a word that both sides use is an atomic, bytes that it
//! may write are copied by volatile reads before anything looks at them, and a reference exists only to memory that no device may
//! write. Ordinary memory is lent for one request: from [`Dma::share`] to [`Dma::unshare`] it is the device's.

use alloc::alloc::{Layout, alloc_zeroed, dealloc};
use alloc::rc::Rc;
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Rings and buffers start at a multiple of this.
pub const PAGE_BYTES: usize = 4096;

/// What a device may do with a piece of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Users {
    /// We write it, the device reads it.
    DeviceReads,
    /// The device writes it at any time.
    DeviceWrites,
}

/// Where device memory comes from and how a device names it.
///
/// # Safety
/// The memory that a device gets must be what we set aside for it: an address from [`Dma::share`] must name exactly the memory in
/// the call, or a copy of it, until [`Dma::unshare`]; and memory from [`Dma::allocate`] must be reachable at the address
/// that it carries, for as long as it lives. Memory for [`Users::DeviceReads`] must be only read through these addresses.
pub unsafe trait Dma {
    /// At least `bytes` zeroed bytes at a page boundary, contiguous for the device too. `None`
    /// when there is no memory.
    fn allocate(&self, bytes: usize, users: Users) -> Option<DmaMemory>;

    /// Lends `bytes` bytes of ordinary memory at `pointer` to the device, and returns the address by which it reaches them. `None` when
    /// there is no memory for another mapping.
    ///
    /// # Safety
    /// The bytes must be initialised memory that stays where it is until it is given back, that is not written meanwhile and, with
    /// [`Users::DeviceWrites`], not used at all.
    unsafe fn share(&self, pointer: *mut u8, bytes: usize, users: Users) -> Option<u64>;

    /// Ends a mapping: the device does not reach the memory any more, and what it has written is there.
    ///
    /// # Safety
    /// `address` must come from [`Dma::share`] with the same other arguments, the memory still be there, and no request that names it
    /// be in flight: it has completed, or the device was reset.
    unsafe fn unshare(&self, address: u64, pointer: *mut u8, bytes: usize, users: Users);
}

/// Memory from the global allocator, for worlds in which a device's addresses are ours: a VM whose
/// page tables map each page to itself, or a test whose device is a function beside it.
#[derive(Debug, Clone, Copy, Default)]
pub struct IdentityDma;

// SAFETY: its users are worlds in which a device and we use the same addresses (see above).
unsafe impl Dma for IdentityDma {
    fn allocate(&self, bytes: usize, users: Users) -> Option<DmaMemory> {
        let layout = Layout::from_size_align(bytes.max(1).checked_next_multiple_of(PAGE_BYTES)?, PAGE_BYTES).ok()?;
        // SAFETY: the layout's size is at least a page, so not zero.
        let pointer = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let address = pointer.as_ptr().expose_provenance() as u64;
        // SAFETY: the allocator gave `layout.size()` zeroed bytes at a page boundary to us alone, and
        // `release_global` frees them with the same layout.
        Some(unsafe { DmaMemory::from_parts(pointer, layout.size(), address, users, release_global) })
    }

    unsafe fn share(&self, pointer: *mut u8, _bytes: usize, _users: Users) -> Option<u64> {
        Some(pointer.expose_provenance() as u64)
    }

    unsafe fn unshare(&self, _address: u64, _pointer: *mut u8, _bytes: usize, _users: Users) {}
}

/// # Safety
/// The memory must come from [`IdentityDma::allocate`], and it must not be used any more.
unsafe fn release_global(pointer: NonNull<u8>, bytes: usize) {
    let layout = Layout::from_size_align(bytes, PAGE_BYTES).expect("it was valid when the memory was allocated");
    // SAFETY: by this function's contract the pointer came from `alloc_zeroed` with this layout.
    unsafe { dealloc(pointer.as_ptr(), layout) }
}

/// Memory that a device can reach. Every access checks its bounds.
///
/// Words are little-endian, as the device sees them.
#[derive(Debug)]
pub struct DmaMemory {
    region: Rc<Region>,
}

/// Keeps device memory from being freed, and gives no access to it.
pub struct Kept {
    _region: Rc<Region>,
}

#[derive(Debug)]
struct Region {
    pointer: NonNull<u8>,
    bytes: usize,
    address: u64,
    users: Users,
    release: unsafe fn(NonNull<u8>, usize),
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the region owns the memory and is gone after this; a `Session` keeps it until the device was reset
        // (`from_parts` has the rest of the contract).
        unsafe { (self.release)(self.pointer, self.bytes) }
    }
}

impl DmaMemory {
    /// Memory that an implementation of [`Dma`] has set aside.
    ///
    /// # Safety
    /// `pointer` must be valid for reads and writes of `bytes` initialised bytes, be aligned to a
    /// page, and belong to the new value alone (and to the device, which reaches it at `address` and, with
    /// [`Users::DeviceReads`], never writes it). `release` must be sound to call once with the same two values when the memory is not
    /// used.
    pub unsafe fn from_parts(
        pointer: NonNull<u8>,
        bytes: usize,
        address: u64,
        users: Users,
        release: unsafe fn(NonNull<u8>, usize),
    ) -> DmaMemory {
        DmaMemory { region: Rc::new(Region { pointer, bytes, address, users, release }) }
    }

    /// Length of the memory.
    pub fn bytes(&self) -> usize {
        self.region.bytes
    }

    /// What keeps the memory alive although this value is dropped.
    pub fn keep(&self) -> Kept {
        Kept { _region: self.region.clone() }
    }

    /// Where the device finds byte `offset`.
    pub fn device_address(&self, offset: usize) -> u64 {
        self.region.address + offset as u64
    }

    fn at(&self, range: Range<usize>) -> NonNull<u8> {
        let bytes = self.region.bytes;
        assert!(range.start <= range.end && range.end <= bytes, "{range:?} of {bytes} bytes");
        // SAFETY: the range was just found to be inside the memory, which is one allocation.
        unsafe { self.region.pointer.add(range.start) }
    }

    fn word_u16(&self, offset: usize) -> &AtomicU16 {
        assert!(offset.is_multiple_of(2));
        let pointer = self.at(offset..offset + 2).cast::<u16>();
        // SAFETY: in bounds and, from a page-aligned start, aligned. All other accesses are atomic or volatile
        // too, or by `slice_mut`, whose callers exclude the word; `self` outlives the result.
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

    /// The word at `offset`.
    pub fn load_u16(&self, offset: usize, ordering: Ordering) -> u16 {
        u16::from_le(self.word_u16(offset).load(ordering))
    }

    /// Writes the word at `offset`.
    pub fn store_u16(&self, offset: usize, value: u16, ordering: Ordering) {
        self.word_u16(offset).store(value.to_le(), ordering);
    }

    /// The word at `offset`.
    pub fn load_u32(&self, offset: usize) -> u32 {
        u32::from_le(self.word_u32(offset).load(Ordering::Relaxed))
    }

    /// Writes the word at `offset`.
    pub fn store_u64(&self, offset: usize, value: u64) {
        self.word_u64(offset).store(value.to_le(), Ordering::Relaxed);
    }

    /// Copies the bytes from `offset` on into `target`. The device may write them meanwhile: each byte is read once, so what was copied
    /// can be checked and then trusted, and is of several moments if the device has changed it.
    pub fn copy_to(&self, offset: usize, target: &mut [u8]) {
        let source = self.at(offset..offset + target.len()).as_ptr();
        let (start, rest) = target.split_at_mut(source.align_offset(BLOCK_BYTES).min(target.len()));
        // SAFETY: `at` has checked the range.
        unsafe { read_bytes(source, start) };
        let (blocks, end) = rest.as_chunks_mut::<BLOCK_BYTES>();
        let source = source.wrapping_add(start.len());
        for (index, block) in blocks.iter_mut().enumerate() {
            // SAFETY: the range continues here, and `start` ends where blocks are aligned.
            *block = unsafe { read_block(source.add(index * BLOCK_BYTES)) };
        }
        // SAFETY: the range ends with these bytes.
        unsafe { read_bytes(source.add(blocks.len() * BLOCK_BYTES), end) };
    }

    /// # Safety
    /// While the result lives, no request that names the range may be in flight.
    ///
    /// # Panics
    /// If the device may write the memory: there can be no reference to such.
    pub unsafe fn slice_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        assert_eq!(self.region.users, Users::DeviceReads, "a device may write this memory");
        let pointer = self.at(range.clone());
        // SAFETY: in bounds and initialised (`from_parts`), and the device only reads it; `&mut self` keeps our own side away, as
        // `Kept` gives no access.
        unsafe { core::slice::from_raw_parts_mut(pointer.as_ptr(), range.len()) }
    }
}

/// Bytes that one volatile read takes: 16 at once is what makes a copy of 64 KiB cheap under TCG too (0.05 ms, and 0.16 in words of
/// 8 bytes, 2026-11-21).
const BLOCK_BYTES: usize = 16;

/// Copies bytes one by one.
///
/// # Safety
/// As many bytes as `target` has must be readable from `source` on. A device may write them meanwhile.
unsafe fn read_bytes(source: *const u8, target: &mut [u8]) {
    for (index, byte) in target.iter_mut().enumerate() {
        // SAFETY: the caller vouches for the bytes.
        *byte = unsafe { source.add(index).read_volatile() };
    }
}

/// What is read at once.
#[cfg(target_arch = "x86_64")]
type Block = core::arch::x86_64::__m128i;
#[cfg(target_arch = "aarch64")]
type Block = core::arch::aarch64::uint8x16_t;

/// # Safety
/// The 16 bytes from `source` on must be readable, and `source` aligned to 16. A device may write them meanwhile.
unsafe fn read_block(source: *const u8) -> [u8; BLOCK_BYTES] {
    // SAFETY: the caller vouches for the bytes; any bits are a value.
    let block = unsafe { source.cast::<Block>().read_volatile() };
    // SAFETY: both are 16 plain bytes.
    unsafe { core::mem::transmute(block) }
}

/// Ordinary memory that is lent to a device for one request.
#[derive(Debug)]
pub struct DmaMapping {
    /// Where the device finds it.
    pub address: u64,
    pointer: *mut u8,
    bytes: usize,
    users: Users,
}

impl DmaMapping {
    /// # Safety
    /// As for [`Dma::share`].
    pub unsafe fn new(dma: &impl Dma, pointer: *mut u8, bytes: usize, users: Users) -> Option<DmaMapping> {
        // SAFETY: the caller vouches for it.
        let address = unsafe { dma.share(pointer, bytes, users) }?;
        Some(DmaMapping { address, pointer, bytes, users })
    }

    /// # Safety
    /// `dma` must be that of [`DmaMapping::new`], the memory still be there, and no request that names it be in flight.
    pub unsafe fn end(self, dma: &impl Dma) {
        // SAFETY: the caller vouches for it.
        unsafe { dma.unshare(self.address, self.pointer, self.bytes, self.users) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    #[test]
    fn is_zeroed_aligned_and_little_endian() {
        let mut memory = IdentityDma.allocate(5000, Users::DeviceReads).unwrap();
        assert_eq!(memory.device_address(0) % PAGE_BYTES as u64, 0);
        assert_eq!(memory.bytes(), 8192);
        memory.store_u64(8, 0x0807_0605_0403_0201);
        assert_eq!(memory.load_u16(10, Ordering::Relaxed), 0x0403);
        assert_eq!(memory.load_u32(12), 0x0807_0605);
        let mut bytes = [9; 4];
        memory.copy_to(7, &mut bytes);
        assert_eq!(bytes, [0, 1, 2, 3]);
        // SAFETY: no device has this memory.
        unsafe { memory.slice_mut(8191..8192) }.fill(9);
        assert!(IdentityDma.allocate(usize::MAX, Users::DeviceReads).is_none());
    }

    #[test]
    fn copies_have_any_length_and_place() {
        let mut memory = IdentityDma.allocate(4096, Users::DeviceReads).unwrap();
        // SAFETY: no device has this memory.
        unsafe { memory.slice_mut(0..4096) }.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at % 251) as u8);
        for offset in [0, 1, 7, 16, 4096 - 70] {
            for length in 0..70 {
                let mut copy = vec![0xff; length];
                memory.copy_to(offset, &mut copy);
                let expected: Vec<u8> = (offset..offset + length).map(|at| (at % 251) as u8).collect();
                assert_eq!(copy, expected);
            }
        }
    }

    #[test]
    #[should_panic(expected = "8191..8193 of 8192 bytes")]
    fn does_not_reach_past_its_end() {
        let memory = IdentityDma.allocate(8192, Users::DeviceWrites).unwrap();
        memory.copy_to(8191, &mut [0; 2]);
    }

    #[test]
    #[should_panic(expected = "a device may write this memory")]
    fn there_is_no_reference_to_what_a_device_may_write() {
        let mut memory = IdentityDma.allocate(8192, Users::DeviceWrites).unwrap();
        // SAFETY: no device has this memory.
        let _ = unsafe { memory.slice_mut(0..1) };
    }
}
