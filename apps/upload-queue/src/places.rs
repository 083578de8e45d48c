//! A bound on how many do something at once.

use alloc::rc::Rc;
use core::cell::Cell;
use core::time::Duration;
use embassy_futures::select::{Either, select};
use glasshouse::Clock;
use glasshouse::sync::Notify;
use glasshouse::trace::{Gauge, Name};

/// A number of places. Clones share them.
#[derive(Clone)]
pub(crate) struct Places {
    inner: Rc<Inner>,
}

struct Inner {
    free: Cell<usize>,
    freed: Notify,
    /// How many wait with [`Places::wait_for`].
    waiting: Option<&'static Gauge>,
}

impl Places {
    /// `name` is what one of them is called in traces.
    pub(crate) fn new(count: usize, name: &'static Name, waiting: Option<&'static Gauge>) -> Places {
        Places { inner: Rc::new(Inner { free: Cell::new(count), freed: Notify::of_resource(name), waiting }) }
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
        let _waiting = self.inner.waiting.map(Waiting::begin);
        match select(self.wait(), clock.sleep(time)).await {
            Either::First(place) => Some(place),
            Either::Second(()) => None,
        }
    }
}

/// Somebody waits until this is dropped.
struct Waiting(&'static Gauge);

impl Waiting {
    fn begin(gauge: &'static Gauge) -> Waiting {
        gauge.add(1);
        Waiting(gauge)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.add(-1);
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
