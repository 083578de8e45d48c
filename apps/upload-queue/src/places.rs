//! A bound on how many do something at once.

use alloc::rc::Rc;
use core::cell::Cell;
use core::time::Duration;
use embassy_futures::select::{Either, select};
use glasshouse::Clock;
use glasshouse::sync::Notify;

/// A number of places. Clones share them.
#[derive(Clone)]
pub(crate) struct Places {
    inner: Rc<Inner>,
}

struct Inner {
    free: Cell<usize>,
    freed: Notify,
}

impl Places {
    pub(crate) fn new(count: usize) -> Places {
        Places { inner: Rc::new(Inner { free: Cell::new(count), freed: Notify::new() }) }
    }

    /// A place, if one is free now.
    pub(crate) fn take(&self) -> Option<Place> {
        let left = self.inner.free.get().checked_sub(1)?;
        self.inner.free.set(left);
        Some(Place { inner: self.inner.clone() })
    }

    /// The next free place.
    pub(crate) async fn wait(&self) -> Place {
        loop {
            let freed = self.inner.freed.notified();
            if let Some(place) = self.take() {
                return place;
            }
            freed.await;
        }
    }

    /// A place, if one becomes free within `time`.
    pub(crate) async fn wait_for(&self, clock: &impl Clock, time: Duration) -> Option<Place> {
        if let Some(place) = self.take() {
            return Some(place);
        }
        match select(self.wait(), clock.sleep(time)).await {
            Either::First(place) => Some(place),
            Either::Second(()) => None,
        }
    }
}

/// A place; free again when it is dropped.
pub(crate) struct Place {
    inner: Rc<Inner>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.inner.free.set(self.inner.free.get() + 1);
        self.inner.freed.notify_all();
    }
}
