//! The global allocator: each core allocates from a heap of its own, which grows from the pool of the machine.
//!
//! With one core the heap has all memory. With several, a table has the owner of each part of memory, and what is freed on another core
//! goes home on its owner's list (docs/decisions/0019-cores.md).

use crate::core_heap::CoreHeap;
use crate::cores::{self, Core, this_core};
use crate::machine::Ram;
use crate::pool::{PART_BYTES, Pool};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::hint::spin_loop;
use core::ptr::{self, NonNull};
use core::slice;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use glass_api::MemoryUse;
use glass_formats::CORES_MAX;
use glass_lib_cores::Link;

/// A core that needs memory takes one part in so many of what is left.
const SHARE: u64 = 64;

/// The allocator that `entry!` registers.
pub struct Heap;

/// What a block contains on its way home.
#[repr(C)]
struct Freed {
    link: Link,
    bytes: usize,
    align: usize,
}

/// The machine's pool. Its lock is taken where a heap grows.
struct Locked {
    is_locked: AtomicBool,
    pool: UnsafeCell<Pool>,
}

// SAFETY: the pool is touched only under the lock.
unsafe impl Sync for Locked {}

static POOL: Locked = Locked { is_locked: AtomicBool::new(false), pool: UnsafeCell::new(Pool::new()) };
/// All memory was zero when it was added.
static IS_ZERO: AtomicBool = AtomicBool::new(false);
/// Bytes of memory, in heaps and in the pool.
static TOTAL_BYTES: AtomicU64 = AtomicU64::new(0);
/// The number of the core that owns each part; null while there is one core.
static OWNERS: AtomicPtr<AtomicU8> = AtomicPtr::new(ptr::null_mut());
static OWNERS_COUNT: AtomicUsize = AtomicUsize::new(0);
const _: () = assert!(CORES_MAX <= 256);

impl Locked {
    /// Code under the lock does not wait, so no core waits for it long.
    fn with<R>(&self, work: impl FnOnce(&mut Pool) -> R) -> R {
        while self.is_locked.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            spin_loop();
        }
        // SAFETY: the lock is ours, and `work` cannot take it again: it gets nothing but the pool.
        let result = work(unsafe { &mut *self.pool.get() });
        self.is_locked.store(false, Ordering::Release);
        result
    }
}

/// A block has room for what it contains on its way home.
fn padded(layout: Layout) -> Layout {
    let (bytes, align) = (layout.size().max(size_of::<Freed>()), layout.align().max(align_of::<Freed>()));
    // SAFETY: both alignments are powers of two; a size that is rounded up to 24 is far from the largest.
    unsafe { Layout::from_size_align_unchecked(bytes, align) }
}

// SAFETY: talc's cell implements the contract for one core. Each core touches only its own heap: a block is freed on the core that owns
// its memory, at once or from the list of what others have freed.
unsafe impl GlobalAlloc for Heap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract.
        unsafe { allocate(layout, CoreHeap::alloc) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract.
        unsafe { allocate(layout, CoreHeap::alloc_zeroed) }
    }

    #[inline]
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        let (core, layout) = (this_core(), padded(layout));
        let owner = owner_of(pointer);
        if owner != core.index() {
            // SAFETY: the caller gives the block away.
            return unsafe { send_home(owner, pointer, layout) };
        }
        // SAFETY: the caller keeps the contract, and the block is of this heap.
        unsafe { core.heap.dealloc(pointer, layout) };
        count(core, 0, layout.size());
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let (core, old) = (this_core(), padded(layout));
        // SAFETY: the caller promises that the size is valid for the alignment.
        let wanted = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        if owner_of(pointer) == core.index() {
            let new = padded(wanted);
            // SAFETY: the caller keeps the contract, and the block is of this heap.
            let moved = unsafe { core.heap.realloc(pointer, old, new.size()) };
            if !moved.is_null() {
                count(core, new.size(), old.size());
                return moved;
            }
        }
        // SAFETY: a new block, a copy of what both have, and the old one is freed as the caller requested.
        unsafe {
            let moved = self.alloc(wanted);
            if !moved.is_null() {
                ptr::copy_nonoverlapping(pointer, moved, layout.size().min(new_size));
                self.dealloc(pointer, layout);
            }
            moved
        }
    }
}

/// A function of [`CoreHeap`] that allocates.
type Allocate = unsafe fn(&CoreHeap, Layout) -> *mut u8;

/// Allocates on this core. Null if there is too little memory.
///
/// # Safety
/// The layout's size is not zero.
#[inline]
unsafe fn allocate(layout: Layout, allocate: Allocate) -> *mut u8 {
    let (core, layout) = (this_core(), padded(layout));
    // SAFETY: the caller keeps the contract.
    let pointer = unsafe { allocate(&core.heap, layout) };
    let pointer = if pointer.is_null() { allocate_slowly(core, layout, allocate) } else { pointer };
    if !pointer.is_null() {
        count(core, layout.size(), 0);
    }
    pointer
}

/// The number of the core whose heap `pointer` is from.
#[inline]
fn owner_of(pointer: *mut u8) -> usize {
    // Acquire: pairs with the Release in `share`. On x86-64 a plain load.
    let owners = OWNERS.load(Ordering::Acquire);
    let part = pointer.addr() / PART_BYTES as usize;
    if owners.is_null() || part >= OWNERS_COUNT.load(Ordering::Relaxed) {
        return 0;
    }
    // SAFETY: the table has so many entries and is never freed. Relaxed: who has a block got it from a core that saw the entry.
    usize::from(unsafe { (*owners.add(part)).load(Ordering::Relaxed) })
}

/// Puts a block on the list of the core that owns it.
///
/// # Safety
/// The block is `owner`'s, has this padded layout, and is the caller's to give away.
#[cold]
unsafe fn send_home(owner: usize, pointer: *mut u8, layout: Layout) {
    let Some(((_, mail), freed)) = cores::public(owner).zip(NonNull::new(pointer.cast::<Freed>())) else { return };
    // SAFETY: `padded` has made room and alignment for it; nothing else refers to the block any more. The owner takes it once.
    unsafe {
        freed.write(Freed { link: Link::new(), bytes: layout.size(), align: layout.align() });
        mail.freed.push(freed.cast());
    }
}

/// Frees what other cores have sent home. Costs a load if there is nothing.
#[inline]
pub fn take_freed() {
    let core = this_core();
    core.mail.freed.take(|link| {
        // SAFETY: only `send_home` puts links there, each at the start of a block of this core, with its layout.
        unsafe {
            let Freed { bytes, align, .. } = link.cast::<Freed>().read();
            core.heap.dealloc(link.as_ptr().cast(), Layout::from_size_align_unchecked(bytes, align));
            count(core, 0, bytes);
        }
    });
}

/// Allocates after more memory was got: what others have freed, then a part of the pool. Null if there is too little.
#[cold]
fn allocate_slowly(core: &Core, layout: Layout, allocate: Allocate) -> *mut u8 {
    take_freed();
    // SAFETY: the layout is a caller's of the allocator.
    let pointer = unsafe { allocate(&core.heap, layout) };
    if !pointer.is_null() {
        return pointer;
    }
    // What talc needs around the first block, and around this one.
    let Some(bytes_min) = layout.size().checked_add(layout.align()).and_then(|bytes| bytes.checked_add(4096)) else {
        return ptr::null_mut();
    };
    let take = |pool: &mut Pool| pool.take(bytes_min as u64, pool.left_bytes() / SHARE);
    let Some(part) = POOL.with(take) else { return ptr::null_mut() };
    own(core, part);
    // SAFETY: as above, and the memory is from the pool.
    unsafe {
        claim(core, part);
        allocate(&core.heap, layout)
    }
}

/// Notes in the table that `part` is `core`'s.
fn own(core: &Core, part: Ram) {
    let (owners, count) = (OWNERS.load(Ordering::Acquire), OWNERS_COUNT.load(Ordering::Relaxed));
    if owners.is_null() {
        return;
    }
    // SAFETY: the table has so many entries and is never freed.
    let owners = unsafe { slice::from_raw_parts(owners, count) };
    let parts = (part.0 / PART_BYTES) as usize..(part.1 / PART_BYTES) as usize;
    owners[parts].iter().for_each(|owner| owner.store(core.index() as u8, Ordering::Relaxed));
}

/// Makes `part` a part of the heap.
///
/// # Safety
/// It is mapped, writable RAM that nothing else uses.
unsafe fn claim(core: &Core, part: Ram) {
    // SAFETY: the caller vouches for the range, and `trust_zeroes` for its contents.
    unsafe { core.heap.claim(part.0 as *mut u8, (part.1 - part.0) as usize, IS_ZERO.load(Ordering::Relaxed)) };
}

/// Keeps the books: so many bytes more and less are in use. Only this core writes them.
#[inline]
fn count(core: &Core, more: usize, less: usize) {
    let (used, peak) = (&core.public.heap_used_bytes, &core.public.heap_peak_bytes);
    let now = used.load(Ordering::Relaxed).wrapping_add(more).wrapping_sub(less);
    used.store(now, Ordering::Relaxed);
    if now > peak.load(Ordering::Relaxed) {
        peak.store(now, Ordering::Relaxed);
    }
}

/// The heaps. Bytes that were requested: what the allocator adds to each piece is not counted. With several cores the peak is the
/// sum of theirs, which need not have been at the same time.
pub fn memory() -> MemoryUse {
    let mut memory = MemoryUse { total_bytes: total_bytes(), ..MemoryUse::default() };
    for (public, _) in (0..CORES_MAX).map_while(cores::public) {
        memory.used_bytes += public.heap_used_bytes.load(Ordering::Relaxed) as u64;
        memory.peak_bytes += public.heap_peak_bytes.load(Ordering::Relaxed) as u64;
    }
    memory
}

/// Bytes of memory that there are, in heaps and in the pool.
pub fn total_bytes() -> u64 {
    TOTAL_BYTES.load(Ordering::Relaxed)
}

/// Parts of memory that no core has yet.
pub fn parts_left() -> u64 {
    POOL.with(|pool| pool.left_bytes()) / PART_BYTES
}

/// `ram` without the range `taken`, which lies inside of one of its ranges or nowhere.
pub fn without(ram: impl Iterator<Item = Ram>, taken: Ram) -> impl Iterator<Item = Ram> {
    let around = move |(start, end): Ram| match start <= taken.0 && taken.1 <= end {
        true => [(start, taken.0), (taken.1, end)],
        false => [(start, end), (end, end)],
    };
    ram.flat_map(around).filter(|(start, end)| start < end)
}

/// From now on, memory that is added is taken to be zero.
///
/// # Safety
/// All memory that is added later must be zero.
pub unsafe fn trust_zeroes() {
    IS_ZERO.store(true, Ordering::Relaxed);
}

/// Gives `ram` to the pool, and the ends that are no whole parts to the boot core, which calls this.
///
/// # Safety
/// The ranges are mapped, writable RAM that nothing else uses.
pub unsafe fn add(ram: impl Iterator<Item = Ram>) {
    for range in ram {
        TOTAL_BYTES.fetch_add(range.1 - range.0, Ordering::Relaxed);
        // The lower end last: the heap grows from there.
        for end in POOL.with(|pool| pool.add(range)).into_iter().rev().filter(|(start, end)| start < end) {
            // SAFETY: the caller vouches for it.
            unsafe { claim(this_core(), end) };
        }
    }
}

/// Gives all of the pool to the only core's heap.
pub fn take_all() {
    while let Some(part) = POOL.with(|pool| pool.take(1, u64::MAX >> 1)) {
        // SAFETY: it is from the pool, where `add` has put it.
        unsafe { claim(this_core(), part) };
    }
}

/// Prepares for secondary cores: from now on the owner of memory is looked up. `end` is the end of all memory.
pub fn share(end: u64) {
    let parts = (end / PART_BYTES + 1) as usize;
    // All that is in use so far is the boot core's, number 0.
    let owners: Vec<AtomicU8> = (0..parts).map(|_| AtomicU8::new(0)).collect();
    OWNERS_COUNT.store(parts, Ordering::Relaxed);
    OWNERS.store(Box::leak(owners.into_boxed_slice()).as_mut_ptr(), Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_not_given_to_the_heap() {
        let ram = [(0x1000, 0x2800), (0x28_0800, 0x200_0000)];
        let rest = |taken| without(ram.into_iter(), taken).collect::<alloc::vec::Vec<_>>();
        assert_eq!(rest((0x28_1000, 0x2a_1000)), [(0x1000, 0x2800), (0x28_0800, 0x28_1000), (0x2a_1000, 0x200_0000)]);
        assert_eq!(rest((0x1000, 0x2000)), [(0x2000, 0x2800), (0x28_0800, 0x200_0000)]);
        assert_eq!(rest((0, 0)), ram);
    }

    #[test]
    fn a_block_has_room_for_its_way_home() {
        for (bytes, align) in [(1, 1), (0, 8), (24, 1), (100, 64)] {
            let layout = padded(Layout::from_size_align(bytes, align).unwrap());
            assert!(layout.size() >= size_of::<Freed>() && layout.size() >= bytes);
            assert!(layout.align() >= align_of::<Freed>() && layout.align() >= align);
        }
    }
}
