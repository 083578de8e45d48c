//! The ring of a core or thread.

use crate::spans::{Entered, Numbers};
use crate::sys::{self, CONTROL};
use core::sync::atomic::{AtomicU64, Ordering};
use glass_formats::trace::{EVENT_WORDS, Ring, RingEntry};

/// Writes the ring of one core or thread.
#[derive(Debug)]
pub struct Writer {
    ring: Ring<'static>,
    pub(crate) entered: Entered,
    pub(crate) numbers: Numbers,
}

impl Writer {
    /// Takes a ring for the core or thread that calls, with `words` for its events, 32 bytes each; their number must
    /// be a power of two above one. `None` if there is no ring left, which is counted, or the number is not such a power.
    pub fn claim(name: &str, words: &'static [AtomicU64]) -> Option<Writer> {
        let free =
            |entry: &&RingEntry| entry.taken.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let Some(entry) = CONTROL.rings.iter().find(free) else {
            CONTROL.rings_lost.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        let Some(ring) = Ring::new(&entry.head, words) else {
            entry.taken.store(0, Ordering::Relaxed);
            return None;
        };
        entry.name.store(crate::intern(name), Ordering::Relaxed);
        entry.address.store(words.as_ptr() as u64, Ordering::Relaxed);
        entry.capacity.store((words.len() / EVENT_WORDS) as u64, Ordering::Release);
        sys::own::set_ring(entry);
        Some(Writer { ring, entered: Entered::new(), numbers: Numbers::new() })
    }

    #[inline(always)]
    pub(crate) fn write(&self, words: [u64; EVENT_WORDS]) {
        self.ring.push(words);
    }
}

/// Sets the writer of the calling core or thread; `None` stops recording its events.
pub fn set_current(writer: Option<&'static Writer>) {
    sys::own::set_writer(writer);
}
