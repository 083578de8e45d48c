//! The waker of a task that waits for another core.

use super::{AtomicU32, Ordering, UnsafeCell, fence};
use core::task::Waker;

const EMPTY: u32 = 0;
/// A waker is there.
const SET: u32 = 1;
/// It is being written or taken.
const BUSY: u32 = 2;
/// As `BUSY`, and who is at it must wake it.
const NOTIFIED: u32 = 3;

/// A place for the waker of one task. While no task waits, [`WakerCell::wake`] costs a fence and a load.
///
/// One side changes what is waited for, then calls `wake`. The other calls [`WakerCell::register`], then looks at what it waits for once more. Of two
/// such calls at the same time at least one sees the other.
#[derive(Debug)]
pub struct WakerCell {
    state: AtomicU32,
    waker: UnsafeCell<Option<Waker>>,
}

// SAFETY: who changes the state to BUSY is the only one that touches the waker until it changes the state again; wakers are `Send`.
unsafe impl Send for WakerCell {}
// SAFETY: as above.
unsafe impl Sync for WakerCell {}

impl WakerCell {
    /// No task waits.
    pub fn new() -> WakerCell {
        WakerCell { state: AtomicU32::new(EMPTY), waker: UnsafeCell::new(None) }
    }

    /// The task of `waker` waits, in place of the one that waited before. Look once more at what is waited for after this.
    pub fn register(&self, waker: &Waker) {
        let state = self.state.load(Ordering::Relaxed);
        // Acquire: pairs with the Release of who had the waker last.
        let is_ours =
            state < BUSY && self.state.compare_exchange(state, BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if !is_ours {
            // A wake-up happens now, or another thread registers: poll again.
            waker.wake_by_ref();
            return;
        }
        // SAFETY: the state is BUSY by this thread.
        self.waker.with_mut(|place| unsafe {
            match &mut *place {
                Some(old) => old.clone_from(waker),
                empty => *empty = Some(waker.clone()),
            }
        });
        if self.state.compare_exchange(BUSY, SET, Ordering::Release, Ordering::Relaxed).is_err() {
            self.take_and_wake();
        }
        // Pairs with the fence in `wake`.
        fence(Ordering::SeqCst);
    }

    /// Wakes the task that waits, if one does. What it waits for must have changed before.
    #[inline]
    pub fn wake(&self) {
        // Pairs with the fence in `register`: either the state is seen here, or the change is seen there.
        fence(Ordering::SeqCst);
        let state = self.state.load(Ordering::Relaxed);
        if state != EMPTY {
            self.wake_from(state);
        }
    }

    #[cold]
    fn wake_from(&self, mut state: u32) {
        loop {
            let (next, order) = match state {
                SET => (BUSY, Ordering::Acquire),
                BUSY => (NOTIFIED, Ordering::Relaxed),
                _ => return,
            };
            match self.state.compare_exchange(state, next, order, Ordering::Relaxed) {
                Ok(SET) => return self.take_and_wake(),
                Ok(_) => return,
                Err(other) => state = other,
            }
        }
    }

    /// The state is BUSY or NOTIFIED, by this thread.
    fn take_and_wake(&self) {
        // SAFETY: so no other thread touches the waker.
        let waker = self.waker.with_mut(|place| unsafe { (*place).take() });
        // A wake-up that was requested meanwhile is this one. Release: pairs with the Acquire of the next one.
        self.state.swap(EMPTY, Ordering::Release);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Default for WakerCell {
    fn default() -> WakerCell {
        WakerCell::new()
    }
}
