//! Waiting for each other among tasks of one core.

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

/// Wakes tasks that wait for a state to change. Clones share it.
///
/// Use it as a condition variable: make the [`Notified`] future, look at the state, then await.
#[derive(Clone, Default)]
pub struct Notify {
    inner: Rc<Inner>,
}

#[derive(Default)]
struct Inner {
    generation: Cell<u64>,
    waiters: RefCell<Vec<Waker>>,
}

impl Notify {
    /// Nobody waits yet.
    pub fn new() -> Notify {
        Notify::default()
    }

    /// Completes every [`Notified`] that was made before this call.
    pub fn notify_all(&self) {
        self.inner.generation.set(self.inner.generation.get() + 1);
        let waiters = self.inner.waiters.take();
        for waiter in waiters {
            waiter.wake();
        }
    }

    /// Completes at the first [`Notify::notify_all`] after this call, not after its first poll.
    pub fn notified(&self) -> Notified {
        Notified { inner: self.inner.clone(), generation: self.inner.generation.get() }
    }
}

/// See [`Notify::notified`].
pub struct Notified {
    inner: Rc<Inner>,
    generation: u64,
}

impl Future for Notified {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context) -> Poll<()> {
        if self.inner.generation.get() != self.generation {
            return Poll::Ready(());
        }
        let mut waiters = self.inner.waiters.borrow_mut();
        if !waiters.iter().any(|waiter| waiter.will_wake(context.waker())) {
            waiters.push(context.waker().clone());
        }
        Poll::Pending
    }
}
