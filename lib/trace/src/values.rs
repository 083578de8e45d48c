//! Counters and gauges for services.

use crate::{Name, counter, gauge};
use core::sync::atomic::{AtomicI64, Ordering};

/// Counts something that happens; the trace shows how it grows.
///
/// ```
/// use glass_trace::Counter;
///
/// static UPLOADS: Counter = Counter::new("uploads done");
/// UPLOADS.add(1);
/// assert_eq!(UPLOADS.value(), 1);
/// ```
/// A trace has it from its first change on that happens while the group of counters is on.
#[derive(Debug)]
pub struct Counter {
    name: Name,
    value: AtomicI64,
}

impl Counter {
    /// A counter that stands at 0.
    pub const fn new(name: &'static str) -> Counter {
        Counter { name: Name::new(name), value: AtomicI64::new(0) }
    }

    /// Counts `more`.
    #[inline]
    pub fn add(&self, more: u32) {
        // Relaxed: a number for people. Two threads at once may tell the trace in the other order.
        let value = self.value.fetch_add(more.into(), Ordering::Relaxed).wrapping_add(more.into());
        counter(&self.name, value);
    }

    /// What was counted so far.
    pub fn value(&self) -> i64 {
        self.value.load(Ordering::Relaxed)
    }
}

/// Something that goes up and down, such as the length of a queue.
///
/// ```
/// use glass_trace::Gauge;
///
/// static WAITING: Gauge = Gauge::new("clients waiting");
/// WAITING.add(3);
/// WAITING.add(-1);
/// assert_eq!(WAITING.value(), 2);
/// WAITING.set(0);
/// ```
/// A trace has it from its first change on that happens while the group of counters is on.
#[derive(Debug)]
pub struct Gauge {
    name: Name,
    value: AtomicI64,
}

impl Gauge {
    /// A gauge that stands at 0.
    pub const fn new(name: &'static str) -> Gauge {
        Gauge { name: Name::new(name), value: AtomicI64::new(0) }
    }

    /// It is at `value` now.
    #[inline]
    pub fn set(&self, value: i64) {
        self.value.store(value, Ordering::Relaxed);
        gauge(&self.name, value);
    }

    /// It is `change` higher now, or lower.
    #[inline]
    pub fn add(&self, change: i64) {
        let value = self.value.fetch_add(change, Ordering::Relaxed).wrapping_add(change);
        gauge(&self.name, value);
    }

    /// Where it is.
    pub fn value(&self) -> i64 {
        self.value.load(Ordering::Relaxed)
    }
}
