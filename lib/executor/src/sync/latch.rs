//! Something that happens once.

use super::{Notified, Notify};
use alloc::rc::Rc;
use core::cell::Cell;
use core::pin::Pin;
use core::task::{Context, Poll};
use glass_lib_trace::Name;

static EVENT: Name = Name::new("event");

/// A flag that is set once and never reset: a start, an end. Clones share it.
///
/// ```
/// use glass_lib_executor::sync::Latch;
///
/// # async fn example() {
/// let stop = Latch::new();
/// let stopped = stop.wait();
/// stop.open();
/// stopped.await;
/// assert!(stop.is_open());
/// # }
/// ```
#[doc(alias = "CancellationToken")]
#[derive(Clone)]
pub struct Latch {
    inner: Rc<Inner>,
}

struct Inner {
    is_open: Cell<bool>,
    opened: Notify,
}

impl Default for Latch {
    fn default() -> Latch {
        Latch::new()
    }
}

impl Latch {
    /// A closed latch.
    pub fn new() -> Latch {
        Latch::named(&EVENT)
    }

    /// One whose waits have a name in traces: what is waited for, such as "shutdown".
    pub fn named(name: &'static Name) -> Latch {
        Latch { inner: Rc::new(Inner { is_open: Cell::new(false), opened: Notify::named(name) }) }
    }

    /// Opens the latch. Only the first call has an effect.
    pub fn open(&self) {
        if !self.inner.is_open.replace(true) {
            self.inner.opened.notify_all();
        }
    }

    /// Whether it is open.
    pub fn is_open(&self) -> bool {
        self.inner.is_open.get()
    }

    /// Completes once it is open; at once if it is.
    pub fn wait(&self) -> Opened {
        Opened { latch: self.clone(), notified: self.inner.opened.notified() }
    }
}

/// See [`Latch::wait`].
pub struct Opened {
    latch: Latch,
    notified: Notified,
}

impl Future for Opened {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<()> {
        if self.latch.is_open() {
            return Poll::Ready(());
        }
        Pin::new(&mut self.notified).poll(context)
    }
}
