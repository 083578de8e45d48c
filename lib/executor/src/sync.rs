//! Waiting for each other among tasks of one core.

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::future::poll_fn;
use core::pin::Pin;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::{Context, Poll, Waker};
use glass_trace::{BlockKind, Name, block};

static STATE: Name = Name::new("change of state");
static TURN: Name = Name::new("turn");

/// Wakes tasks that wait for a state to change. Clones share it.
///
/// Use it as a condition variable: make the [`Notified`] future, look at the state, then await.
///
/// A trace shows what a task waits for by the name:
/// ```
/// use glass_executor::sync::Notify;
/// use glass_trace::Name;
///
/// static COMMIT: Name = Name::new("commit of the index");
/// let committed = Notify::named(&COMMIT);
/// # let _ = committed;
/// ```
#[derive(Clone)]
pub struct Notify {
    inner: Rc<Inner>,
}

/// Numbers that were given to [`Notify`]s.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

struct Inner {
    name: &'static Name,
    kind: BlockKind,
    /// Tells it from others that have the same name.
    number: u64,
    generation: Cell<u64>,
    waiters: RefCell<Waiters>,
}

/// Who waits for the next notification, each in a place of its own until it stops waiting.
#[derive(Default)]
struct Waiters {
    places: Vec<Option<Waker>>,
    /// Places that were left.
    free: Vec<usize>,
}

impl Default for Notify {
    fn default() -> Notify {
        Notify::new()
    }
}

impl Notify {
    /// Nobody waits yet.
    pub fn new() -> Notify {
        Notify::named(&STATE)
    }

    /// One whose waits have a name in traces: what is waited for, such as "commit of the index".
    pub fn named(name: &'static Name) -> Notify {
        Notify::with_kind(name, BlockKind::Notify)
    }

    /// Waits for it are waits for some of a bounded amount, such as "free buffer".
    pub fn of_resource(name: &'static Name) -> Notify {
        Notify::with_kind(name, BlockKind::Resource)
    }

    fn with_kind(name: &'static Name, kind: BlockKind) -> Notify {
        // Relaxed: numbers only have to differ.
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed) + 1;
        let inner = Inner { name, kind, number, generation: Cell::new(0), waiters: RefCell::default() };
        Notify { inner: Rc::new(inner) }
    }

    /// Completes every [`Notified`] that was made before this call.
    pub fn notify_all(&self) {
        self.inner.generation.set(self.inner.generation.get() + 1);
        let waiters = self.inner.waiters.take();
        waiters.places.into_iter().flatten().for_each(Waker::wake);
    }

    /// Completes at the first [`Notify::notify_all`] after this call, not after its first poll.
    pub fn notified(&self) -> Notified {
        Notified { inner: self.inner.clone(), generation: self.inner.generation.get(), place: None }
    }
}

/// See [`Notify::notified`].
pub struct Notified {
    inner: Rc<Inner>,
    generation: u64,
    /// Where its waker is, as long as the generation is the same.
    place: Option<usize>,
}

impl Future for Notified {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<()> {
        if self.inner.generation.get() != self.generation {
            return Poll::Ready(());
        }
        let mut waiters = self.inner.waiters.borrow_mut();
        let place = match self.place.or_else(|| waiters.free.pop()) {
            Some(place) => place,
            None => {
                waiters.places.push(None);
                waiters.places.len() - 1
            }
        };
        match &mut waiters.places[place] {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        drop(waiters);
        self.place = Some(place);
        block(self.inner.kind, self.inner.name, self.inner.number);
        Poll::Pending
    }
}

impl Drop for Notified {
    fn drop(&mut self) {
        let Some(place) = self.place.filter(|_| self.inner.generation.get() == self.generation) else { return };
        let mut waiters = self.inner.waiters.borrow_mut();
        let waker = waiters.places[place].take();
        waiters.free.push(place);
        drop(waiters);
        drop(waker);
    }
}

/// Lets every other task that is ready have its turn first.
pub async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if core::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        block(BlockKind::Yield, &TURN, 0);
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::pin::pin;

    #[test]
    fn those_that_stop_waiting_are_forgotten() {
        let notify = Notify::new();
        let mut context = Context::from_waker(Waker::noop());
        let mut stays = pin!(notify.notified());
        assert!(stays.as_mut().poll(&mut context).is_pending());
        for _ in 0..1000 {
            let mut leaves = pin!(notify.notified());
            assert!(leaves.as_mut().poll(&mut context).is_pending());
            assert!(leaves.as_mut().poll(&mut context).is_pending());
        }
        assert!(notify.inner.waiters.borrow().places.len() <= 2);
        notify.notify_all();
        assert!(stays.as_mut().poll(&mut context).is_ready());
        assert_eq!(notify.inner.waiters.borrow().places.len(), 0);
    }
}
