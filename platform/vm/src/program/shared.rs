//! The memory that all ranks share, and what the launcher of ranks has in its first page (docs/formats/mpi-ranks.md).

use alloc::alloc::{Layout, alloc_zeroed, dealloc};
use core::ptr;
use core::slice;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

/// It starts at a page.
const ALIGNMENT: usize = 4096;
/// Words of the first page: the rank that aborted plus one, its exit code, the states of the ranks.
const ABORTED: usize = 0;
const CODE: usize = 1;
const STATES: usize = 16;
/// The state of a rank between `MPI_Init` and `MPI_Finalize`.
const INSIDE: u32 = 1;

static WORDS: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());
static WORDS_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Makes the memory, of `bytes` bytes, unless a rank has made it. `None` without memory for it, or if it has another length.
pub fn make(bytes: u64) -> Option<()> {
    let bytes = usize::try_from(bytes).ok()?.next_multiple_of(ALIGNMENT);
    // The first page is read by the launcher.
    let layout = Layout::from_size_align(bytes, ALIGNMENT).ok().filter(|layout| layout.size() > 0)?;
    if memory().is_none() {
        // All ranks request the same; one that fails there has its own `make` fail too.
        // SAFETY: the size is not zero.
        let new = unsafe { alloc_zeroed(layout) };
        if new.is_null() {
            return None;
        }
        let words = bytes / size_of::<AtomicU32>();
        let is_first = WORDS_COUNT.compare_exchange(0, words, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if is_first {
            // Release: pairs with the Acquire in `memory`.
            WORDS.store(new.cast(), Ordering::Release);
        } else {
            // SAFETY: it was allocated above, with this layout, and nothing refers to it.
            unsafe { dealloc(new, layout) };
        }
    }
    while memory().is_none() {
        core::hint::spin_loop();
    }
    (size_of_val(memory()?) == bytes).then_some(())
}

/// The memory, once it was made.
pub fn memory() -> Option<&'static [AtomicU32]> {
    // Acquire: pairs with the Release in `make`.
    let words = WORDS.load(Ordering::Acquire);
    // SAFETY: it has so many words, is never freed, and is accessed in ways that all ranks agree on.
    (!words.is_null()).then(|| unsafe { slice::from_raw_parts(words, WORDS_COUNT.load(Ordering::Relaxed)) })
}

/// Whether the rank is between `MPI_Init` and `MPI_Finalize`.
pub fn is_inside(rank: usize) -> bool {
    let state = memory().and_then(|words| words.get(STATES + rank));
    state.is_some_and(|state| state.load(Ordering::Acquire) == INSIDE)
}

/// Makes every wait of other ranks fail, unless one has aborted the job already. Returns whether it has.
pub fn announce_end_of(rank: usize, code: u8) -> bool {
    let Some(words) = memory() else { return false };
    if words[ABORTED].load(Ordering::Acquire) != 0 {
        return true;
    }
    words[CODE].store(code.into(), Ordering::Relaxed);
    words[ABORTED].store(rank as u32 + 1, Ordering::Release);
    false
}
