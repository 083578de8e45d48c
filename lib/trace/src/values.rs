//! Counters and gauges for services.

use crate::{Name, counter, gauge};
use core::fmt;
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

/// A counter or a gauge with what it means, in a sentence.
#[derive(Debug, Clone, Copy)]
pub enum Metric<'a> {
    /// See [`Counter`].
    Counter(&'a Counter, &'a str),
    /// See [`Gauge`].
    Gauge(&'a Gauge, &'a str),
}

/// Counters and gauges as Prometheus reads them (text exposition format 0.0.4, whose media type is [`Metrics::MEDIA_TYPE`]). A name is that of the service
/// and the value's own, with `_` for what names may not have; those of counters end in `_total`.
///
/// ```
/// use glass_lib_trace::{Counter, Metric, Metrics};
///
/// static HITS: Counter = Counter::new("cache hits");
/// let text = Metrics { service: "web-server", values: &[Metric::Counter(&HITS, "Files from the cache.")] }.to_string();
/// assert!(text.ends_with("# TYPE web_server_cache_hits_total counter\nweb_server_cache_hits_total 0\n"));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Metrics<'a> {
    /// The service's name.
    pub service: &'a str,
    /// What it shows.
    pub values: &'a [Metric<'a>],
}

impl Metrics<'_> {
    /// For `Content-Type`.
    pub const MEDIA_TYPE: &'static str = "text/plain; version=0.0.4";
}

impl fmt::Display for Metrics<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for metric in self.values {
            let (name, value, help, kind, end) = match metric {
                Metric::Counter(counter, help) => (&counter.name, counter.value(), help, "counter", "_total"),
                Metric::Gauge(gauge, help) => (&gauge.name, gauge.value(), help, "gauge", ""),
            };
            let word = fmt::from_fn(|f| write!(f, "{}_{}{end}", Word(self.service), Word(name.text())));
            write!(f, "# HELP {word} {help}\n# TYPE {word} {kind}\n{word} {value}\n")?;
        }
        Ok(())
    }
}

/// A text as a part of a metric's name.
struct Word<'a>(&'a str);

impl fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write as _;
        self.0.chars().try_for_each(|c| f.write_char(if c.is_ascii_alphanumeric() { c } else { '_' }))
    }
}
