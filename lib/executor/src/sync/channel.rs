//! Values from many tasks to one, in order.

use super::{Reason, Semaphore};
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use core::cell::{Cell, RefCell};
use core::fmt;
use core::future::poll_fn;
use core::task::{Context, Poll, Waker};
use glass_lib_trace::{BlockKind, Name};

static CHANNEL: Name = Name::new("channel");

/// A channel that holds up to `capacity` values. If it is full, senders wait in first-in, first-out order.
/// Everything that was sent can be received after the last sender is dropped.
///
/// ```
/// use glass_lib_executor::sync::channel;
///
/// # async fn example() {
/// let (sender, mut receiver) = channel(1);
/// let second = sender.clone();
/// sender.send("hello").await.unwrap();
/// assert!(second.try_send("world").is_err());
/// assert_eq!(receiver.recv().await, Some("hello"));
/// drop((sender, second));
/// assert_eq!(receiver.recv().await, None);
/// # }
/// ```
///
/// # Panics
/// When `capacity` is 0.
#[doc(alias = "mpsc")]
pub fn channel<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    channel_named(&CHANNEL, capacity)
}

/// A [`channel`] whose waits have a name in traces: what is sent, such as "orders". Waiting for room is a wait for a
/// resource of that name.
pub fn channel_named<T>(name: &'static Name, capacity: usize) -> (Sender<T>, Receiver<T>) {
    assert!(capacity > 0, "a channel holds at least one value");
    let inner = Rc::new(Inner {
        values: RefCell::default(),
        permits: Semaphore::named(name, capacity),
        arrival: Reason::new(BlockKind::Notify, name),
        receiver: RefCell::default(),
        senders: Cell::new(1),
        is_closed: Cell::new(false),
    });
    (Sender { inner: inner.clone() }, Receiver { inner })
}

struct Inner<T> {
    values: RefCell<VecDeque<T>>,
    /// A permit for each value that there is room for.
    permits: Semaphore,
    arrival: Reason,
    receiver: RefCell<Option<Waker>>,
    senders: Cell<usize>,
    /// The receiver is gone.
    is_closed: Cell<bool>,
}

impl<T> Inner<T> {
    fn wake_receiver(&self) {
        let receiver = self.receiver.take();
        if let Some(receiver) = receiver {
            receiver.wake();
        }
    }
}

/// The end of a [`channel`] that sends. Clones send to the same receiver.
pub struct Sender<T> {
    inner: Rc<Inner<T>>,
}

/// The receiver is gone; this is the value that was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendError<T>(pub T);

impl<T> fmt::Display for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "the channel has no receiver any more")
    }
}

impl<T: fmt::Debug> core::error::Error for SendError<T> {}

/// Why [`Sender::try_send`] did not send; with the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrySendError<T> {
    /// There is no room, or others wait for it.
    Full(T),
    /// The receiver is gone.
    Closed(T),
}

impl<T> fmt::Display for TrySendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            TrySendError::Full(_) => write!(f, "the channel is full"),
            TrySendError::Closed(_) => write!(f, "the channel has no receiver any more"),
        }
    }
}

impl<T: fmt::Debug> core::error::Error for TrySendError<T> {}

impl<T> Sender<T> {
    /// Waits for room and sends `value`. Cancel safe: a future that is dropped has sent nothing.
    pub async fn send(&self, value: T) -> Result<(), SendError<T>> {
        let permit = self.inner.permits.acquire().await;
        if self.inner.is_closed.get() {
            return Err(SendError(value));
        }
        permit.keep();
        self.push(value);
        Ok(())
    }

    /// Sends `value` if there is room now.
    pub fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
        if self.inner.is_closed.get() {
            return Err(TrySendError::Closed(value));
        }
        let Some(permit) = self.inner.permits.try_acquire() else { return Err(TrySendError::Full(value)) };
        permit.keep();
        self.push(value);
        Ok(())
    }

    fn push(&self, value: T) {
        self.inner.values.borrow_mut().push_back(value);
        self.inner.wake_receiver();
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        self.inner.senders.set(self.inner.senders.get() + 1);
        Sender { inner: self.inner.clone() }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.inner.senders.set(self.inner.senders.get() - 1);
        if self.inner.senders.get() == 0 {
            self.inner.wake_receiver();
        }
    }
}

/// The end of a [`channel`] that receives. Dropping it drops what it holds, and every send fails.
pub struct Receiver<T> {
    inner: Rc<Inner<T>>,
}

impl<T> Receiver<T> {
    /// The next value; `None` once all senders are dropped and everything was received. Cancel safe.
    pub async fn recv(&mut self) -> Option<T> {
        poll_fn(|context| self.poll_recv(context)).await
    }

    fn poll_recv(&mut self, context: &mut Context) -> Poll<Option<T>> {
        match self.try_recv() {
            Some(value) => Poll::Ready(Some(value)),
            None if self.inner.senders.get() == 0 => Poll::Ready(None),
            None => {
                *self.inner.receiver.borrow_mut() = Some(context.waker().clone());
                self.inner.arrival.block();
                Poll::Pending
            }
        }
    }

    /// The next value, if one is there.
    pub fn try_recv(&mut self) -> Option<T> {
        let value = self.inner.values.borrow_mut().pop_front()?;
        self.inner.permits.release(1);
        Some(value)
    }

    /// Values that are there.
    pub fn len(&self) -> usize {
        self.inner.values.borrow().len()
    }

    /// Whether no value is there.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.inner.is_closed.set(true);
        let values = self.inner.values.take();
        drop(values);
        // More than there are senders: each one continues and finds that the channel is closed.
        self.inner.permits.release(usize::MAX / 2);
    }
}
