//! Counters and gauges for services.

use crate::{Name, counter, gauge};
use core::sync::atomic::{AtomicI64, Ordering};

/// A counter that only grows.
///
/// ```
/// use glass_lib_trace::Counter;
///
/// static UPLOADS: Counter = Counter::new("uploads done");
/// UPLOADS.add(1);
/// assert_eq!(UPLOADS.value(), 1);
/// ```
/// A trace contains it from its first change while the group of counters is on.
#[derive(Debug)]
pub struct Counter {
    name: Name,
    value: AtomicI64,
}

impl Counter {
    /// A counter at 0.
    pub const fn new(name: &'static str) -> Counter {
        Counter { name: Name::new(name), value: AtomicI64::new(0) }
    }

    /// Counts `more`.
    #[inline]
    pub fn add(&self, more: u32) {
        // Relaxed: the value is only displayed. Two threads may record their values in the other order.
        let value = self.value.fetch_add(more.into(), Ordering::Relaxed).wrapping_add(more.into());
        counter(&self.name, value);
    }

    /// The count so far.
    pub fn value(&self) -> i64 {
        self.value.load(Ordering::Relaxed)
    }
}

/// A value that rises and falls, such as the length of a queue.
///
/// ```
/// use glass_lib_trace::Gauge;
///
/// static WAITING: Gauge = Gauge::new("clients waiting");
/// WAITING.add(3);
/// WAITING.add(-1);
/// assert_eq!(WAITING.value(), 2);
/// WAITING.set(0);
/// ```
/// A trace contains it from its first change while the group of counters is on.
#[derive(Debug)]
pub struct Gauge {
    name: Name,
    value: AtomicI64,
}

impl Gauge {
    /// A gauge at 0.
    pub const fn new(name: &'static str) -> Gauge {
        Gauge { name: Name::new(name), value: AtomicI64::new(0) }
    }

    /// Sets the value.
    #[inline]
    pub fn set(&self, value: i64) {
        self.value.store(value, Ordering::Relaxed);
        gauge(&self.name, value);
    }

    /// Adds `change`, which may be negative.
    #[inline]
    pub fn add(&self, change: i64) {
        let value = self.value.fetch_add(change, Ordering::Relaxed).wrapping_add(change);
        gauge(&self.name, value);
    }

    /// The current value.
    pub fn value(&self) -> i64 {
        self.value.load(Ordering::Relaxed)
    }
}
