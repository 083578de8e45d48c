//! The latest value of something.

use super::Notify;
use alloc::rc::Rc;
use core::cell::{Cell, Ref, RefCell};
use glass_lib_trace::Name;

static VALUE: Name = Name::new("new value");

/// A value that changes, and tasks that follow it. Clones share it. A watcher sees the latest value; it can miss values in
/// between.
///
/// ```
/// use glass_lib_executor::sync::Watch;
///
/// # async fn example() {
/// let rate = Watch::new(100);
/// let mut watcher = rate.watcher();
/// rate.set(200);
/// rate.set(300);
/// watcher.changed().await;
/// assert_eq!(*watcher.get(), 300);
/// let _ = rate.wait_until(|rate| *rate > 1000);
/// # }
/// ```
pub struct Watch<T> {
    inner: Rc<Inner<T>>,
}

struct Inner<T> {
    value: RefCell<T>,
    /// Times that it was set.
    version: Cell<u64>,
    changed: Notify,
}

impl<T> Clone for Watch<T> {
    fn clone(&self) -> Watch<T> {
        Watch { inner: self.inner.clone() }
    }
}

impl<T> Watch<T> {
    /// Creates a watch with an initial value.
    pub fn new(value: T) -> Watch<T> {
        Watch::named(&VALUE, value)
    }

    /// One whose waits have a name in traces: what the value is, such as "new configuration".
    pub fn named(name: &'static Name, value: T) -> Watch<T> {
        let inner = Inner { value: RefCell::new(value), version: Cell::new(0), changed: Notify::named(name) };
        Watch { inner: Rc::new(inner) }
    }

    /// The value. Do not keep the borrow across an await.
    pub fn get(&self) -> Ref<'_, T> {
        self.inner.value.borrow()
    }

    /// Replaces the value.
    ///
    /// # Panics
    /// While a borrow of [`Watch::get`] is held.
    pub fn set(&self, value: T) {
        let before = self.inner.value.replace(value);
        self.inner.version.set(self.inner.version.get() + 1);
        self.inner.changed.notify_all();
        drop(before);
    }

    /// Follows the value from now on.
    pub fn watcher(&self) -> Watcher<T> {
        Watcher { watch: self.clone(), seen: self.inner.version.get() }
    }

    /// Completes when `is_wanted` is true of the value.
    pub async fn wait_until(&self, is_wanted: impl Fn(&T) -> bool) {
        loop {
            let changed = self.inner.changed.notified();
            if is_wanted(&self.get()) {
                return;
            }
            changed.await;
        }
    }
}

/// Follows a [`Watch`].
pub struct Watcher<T> {
    watch: Watch<T>,
    /// The version that was seen last.
    seen: u64,
}

impl<T> Watcher<T> {
    /// Waits until the value is set. A `set` since the creation of this watcher, or since the last return of this function,
    /// counts.
    pub async fn changed(&mut self) {
        loop {
            let changed = self.watch.inner.changed.notified();
            let version = self.watch.inner.version.get();
            if version != self.seen {
                self.seen = version;
                return;
            }
            changed.await;
        }
    }

    /// The value; see [`Watch::get`].
    pub fn get(&self) -> Ref<'_, T> {
        self.watch.get()
    }
}
