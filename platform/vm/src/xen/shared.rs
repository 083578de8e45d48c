//! The page of `struct shared_info` (`xen/include/public/xen.h`), in which Xen reports pending events and the time.

use super::hypercall::{self, Number, Refused};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const PAGE_BYTES: usize = 4096;
/// Offsets of the 64-bit layout: the boot core's part, whether an event is pending, and which words have one.
const UPCALL_PENDING: usize = 0;
const PENDING_WORDS: usize = 8;
/// The boot core's time.
pub const TIME: usize = 32;
/// A bit for each event channel: whether it has an event, and whether it is masked.
const PENDING: usize = 2048;
const MASK: usize = 2560;
/// Words of each.
const WORDS: usize = 64;
/// Version, seconds and nanoseconds of the time of day at system time 0, and the seconds' upper half.
pub const WALL: usize = 3072;

/// `XENMEM_add_to_physmap`, and what is to be mapped.
const ADD_TO_PHYSMAP: u32 = 7;
/// The page of shared information.
const SPACE_SHARED_INFO: u32 = 0;
/// A page of the grant table.
pub const SPACE_GRANT_TABLE: u32 = 1;

/// `struct xen_add_to_physmap`.
#[repr(C)]
struct AddToPhysmap {
    domain: u16,
    size: u16,
    space: u32,
    index: u64,
    frame: u64,
}

/// A page of this domain whose place Xen's page takes.
#[repr(C, align(4096))]
struct Page([AtomicU32; PAGE_BYTES / 4]);
static INFO: Page = Page([const { AtomicU32::new(0) }; PAGE_BYTES / 4]);

/// Puts page `index` of a space of Xen's in the place of the page at `address`.
///
/// # Safety
/// Nothing may rely on the contents of the page at `address`, which are lost.
pub unsafe fn put_in_place(space: u32, index: u64, address: u64) -> Result<(), Refused> {
    let frame = address / PAGE_BYTES as u64;
    let mut argument = AddToPhysmap { domain: hypercall::SELF, size: 0, space, index, frame };
    // SAFETY: the argument is that operation's; the caller gives the page away.
    unsafe { hypercall::operate(Number::Memory, ADD_TO_PHYSMAP, &mut argument) }.map(drop)
}

/// Makes the page Xen's, and masks all events.
pub fn initialize() -> Result<(), Refused> {
    // SAFETY: the page holds nothing before this.
    unsafe { put_in_place(SPACE_SHARED_INFO, 0, &raw const INFO as u64) }?;
    (0..WORDS).for_each(|index| word_u64(MASK + 8 * index).store(u64::MAX, Ordering::Relaxed));
    Ok(())
}

/// The word of 32 bits at `offset`.
pub fn word(offset: usize) -> &'static AtomicU32 {
    &INFO.0[offset / 4]
}

fn word_u64(offset: usize) -> &'static AtomicU64 {
    assert!(offset.is_multiple_of(8) && offset < PAGE_BYTES);
    // SAFETY: in bounds and aligned, as the page is; Xen's accesses are atomic too.
    unsafe { AtomicU64::from_ptr((&raw const INFO.0[offset / 4]).cast::<u64>().cast_mut()) }
}

/// Takes all events that are pending and not masked, and calls `each` with their ports.
pub fn take_events(mut each: impl FnMut(u32)) {
    // Before the words: an event that comes from here on interrupts again.
    word(UPCALL_PENDING).fetch_and(!0xff, Ordering::SeqCst);
    let mut words = word_u64(PENDING_WORDS).swap(0, Ordering::SeqCst);
    while words != 0 {
        let index = words.trailing_zeros() as usize;
        words &= words - 1;
        let open = !word_u64(MASK + 8 * index).load(Ordering::Relaxed);
        let mut events = word_u64(PENDING + 8 * index).load(Ordering::Relaxed) & open;
        word_u64(PENDING + 8 * index).fetch_and(!events, Ordering::SeqCst);
        while events != 0 {
            each(index as u32 * 64 + events.trailing_zeros());
            events &= events - 1;
        }
    }
}

/// Masks an event channel.
pub fn mask(port: u32) {
    word_u64(MASK + port as usize / 64 * 8).fetch_or(1 << (port % 64), Ordering::SeqCst);
}
