//! One value from one core to another.

use super::{AtomicU32, Ordering, UnsafeCell};

const EMPTY: u32 = 0;
/// Being written or read.
const BUSY: u32 = 1;
const FULL: u32 = 2;
const TAKEN: u32 = 3;

/// A place for a value that is put in once and taken once.
#[derive(Debug)]
pub struct Once<T> {
    state: AtomicU32,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: a value goes from the thread that puts it in to the one that takes it; no reference to it is shared.
unsafe impl<T: Send> Send for Once<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Once<T> {}

impl<T> Once<T> {
    /// Without a value.
    pub fn new() -> Once<T> {
        Once { state: AtomicU32::new(EMPTY), value: UnsafeCell::new(None) }
    }

    /// Puts the value in. A second one is dropped.
    pub fn put(&self, value: T) {
        if self.state.compare_exchange(EMPTY, BUSY, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            // SAFETY: only one thread changes EMPTY to BUSY, and none touches the value until it is FULL.
            self.value.with_mut(|place| unsafe { *place = Some(value) });
            // Release: pairs with the Acquire in `take`.
            self.state.store(FULL, Ordering::Release);
        }
    }

    /// Takes the value, if it is there.
    pub fn take(&self) -> Option<T> {
        self.state.compare_exchange(FULL, TAKEN, Ordering::Acquire, Ordering::Relaxed).ok()?;
        // SAFETY: only one thread changes FULL to TAKEN, and none touches the value afterwards.
        self.value.with_mut(|place| unsafe { (*place).take() })
    }

    /// Whether a value is there.
    pub fn is_full(&self) -> bool {
        self.state.load(Ordering::Relaxed) == FULL
    }
}

impl<T> Default for Once<T> {
    fn default() -> Once<T> {
        Once::new()
    }
}
