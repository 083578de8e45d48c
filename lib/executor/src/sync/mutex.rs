//! A value that one task at a time uses, across its waits.

use super::{Permit, Semaphore};
use core::cell::{RefCell, RefMut};
use core::ops::{Deref, DerefMut};
use glass_lib_trace::Name;

static LOCK: Name = Name::new("mutex");

/// A value that is locked while a task uses it. If the borrow does not cross an `.await`, a `Cell` or `RefCell` is enough.
///
/// Tasks get the lock in the order in which they began to wait for it. Put it into an `Rc` to share it.
///
/// ```
/// use glass_lib_executor::sync::Mutex;
///
/// # async fn write(_: &[u8]) {}
/// async fn append(log: &Mutex<Vec<u8>>, line: &[u8]) {
///     let mut log = log.lock().await;
///     log.extend_from_slice(line);
///     // No other task comes in between, although this waits.
///     write(&log).await;
/// }
/// # let _ = append(&Mutex::new(Vec::new()), b"");
/// ```
pub struct Mutex<T> {
    turn: Semaphore,
    value: RefCell<T>,
}

impl<T> Mutex<T> {
    /// A value that is not locked.
    pub fn new(value: T) -> Mutex<T> {
        Mutex::named(&LOCK, value)
    }

    /// One whose waits have a name in traces: what is locked, such as "the index".
    pub fn named(name: &'static Name, value: T) -> Mutex<T> {
        Mutex { turn: Semaphore::named(name, 1), value: RefCell::new(value) }
    }

    /// Waits until no other task has the lock.
    pub async fn lock(&self) -> MutexGuard<'_, T> {
        let turn = self.turn.acquire().await;
        MutexGuard { value: self.value.borrow_mut(), _turn: turn }
    }

    /// The lock, if it is free and no task waits for it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let turn = self.turn.try_acquire()?;
        Some(MutexGuard { value: self.value.borrow_mut(), _turn: turn })
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

/// The value of a [`Mutex`], locked until this is dropped.
pub struct MutexGuard<'a, T> {
    // Dropped first: the next task borrows the value as soon as it has its turn.
    value: RefMut<'a, T>,
    _turn: Permit,
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}
