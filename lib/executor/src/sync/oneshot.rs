//! One value from one task to another.

use super::Reason;
use alloc::rc::Rc;
use core::cell::{Cell, RefCell};
use core::fmt;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use glass_lib_trace::{BlockKind, Name};

static ANSWER: Name = Name::new("answer");

/// A channel for one value, such as the answer to a request that went through a [`channel`](super::channel).
///
/// ```
/// use glass_lib_executor::sync::oneshot;
///
/// # async fn example() {
/// let (sender, receiver) = oneshot();
/// sender.send(7).unwrap();
/// assert_eq!(receiver.await, Ok(7));
/// # }
/// ```
pub fn oneshot<T>() -> (OneSender<T>, OneReceiver<T>) {
    oneshot_named(&ANSWER)
}

/// A [`oneshot`] whose wait has a name in traces: what is sent.
pub fn oneshot_named<T>(name: &'static Name) -> (OneSender<T>, OneReceiver<T>) {
    let inner = Rc::new(Inner {
        value: Cell::new(None),
        is_over: Cell::new(false),
        receiver: RefCell::new(None),
        reason: Reason::new(BlockKind::Notify, name),
    });
    (OneSender { inner: inner.clone() }, OneReceiver { inner })
}

struct Inner<T> {
    value: Cell<Option<T>>,
    /// One of the ends is gone.
    is_over: Cell<bool>,
    receiver: RefCell<Option<Waker>>,
    reason: Reason,
}

/// Sends the value of a [`oneshot`].
pub struct OneSender<T> {
    inner: Rc<Inner<T>>,
}

impl<T> OneSender<T> {
    /// Sends the value; returns it if the receiver was dropped.
    pub fn send(self, value: T) -> Result<(), T> {
        if self.inner.is_over.get() {
            return Err(value);
        }
        self.inner.value.set(Some(value));
        Ok(())
    }

    /// Whether the receiver is gone, so that the value need not be made.
    pub fn is_closed(&self) -> bool {
        self.inner.is_over.get()
    }
}

impl<T> Drop for OneSender<T> {
    fn drop(&mut self) {
        self.inner.is_over.set(true);
        let receiver = self.inner.receiver.take();
        if let Some(receiver) = receiver {
            receiver.wake();
        }
    }
}

/// Waits for the value of a [`oneshot`].
pub struct OneReceiver<T> {
    inner: Rc<Inner<T>>,
}

/// The sender was dropped without a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "the sender was dropped without sending a value")
    }
}

impl core::error::Error for Closed {}

impl<T> Future for OneReceiver<T> {
    type Output = Result<T, Closed>;

    fn poll(self: Pin<&mut Self>, context: &mut Context) -> Poll<Result<T, Closed>> {
        if let Some(value) = self.inner.value.take() {
            return Poll::Ready(Ok(value));
        }
        if self.inner.is_over.get() {
            return Poll::Ready(Err(Closed));
        }
        *self.inner.receiver.borrow_mut() = Some(context.waker().clone());
        self.inner.reason.block();
        Poll::Pending
    }
}

impl<T> Drop for OneReceiver<T> {
    fn drop(&mut self) {
        self.inner.is_over.set(true);
        let value = self.inner.value.take();
        drop(value);
    }
}
