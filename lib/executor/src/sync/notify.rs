//! Waiting for a state to change.

use super::Reason;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::rc::Rc;
use core::cell::{Cell, RefCell};
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use glass_lib_trace::{BlockKind, Name};

static STATE: Name = Name::new("change of state");

/// Wakes tasks that wait for a state to change. Clones share it.
///
/// Use it as a condition variable: create the [`Notified`] future, check the state, then await.
///
/// ```
/// use core::cell::Cell;
/// use glass_lib_executor::sync::Notify;
/// use glass_lib_trace::Name;
///
/// /// What a trace calls the wait.
/// static COMMIT: Name = Name::new("commit of the index");
///
/// async fn wait_until_committed(sequence: u64, last: &Cell<u64>, committed: &Notify) {
///     loop {
///         let changed = committed.notified();
///         if last.get() >= sequence {
///             return;
///         }
///         changed.await;
///     }
/// }
/// # let _ = (wait_until_committed(1, &Cell::new(2), &Notify::named(&COMMIT)),);
/// ```
#[derive(Clone)]
pub struct Notify {
    inner: Rc<Inner>,
}

struct Inner {
    reason: Reason,
    /// Calls of [`Notify::notify_all`].
    generation: Cell<u64>,
    waiters: RefCell<Waiters>,
}

#[derive(Default)]
struct Waiters {
    /// By ticket, so in the order in which they began to wait.
    waiting: BTreeMap<u64, Waker>,
    /// Tickets that [`Notify::notify_one`] has chosen and whose futures were not polled since.
    chosen: BTreeSet<u64>,
    tickets: u64,
    /// [`Notify::notify_one`] found no waiting task.
    is_due: bool,
}

impl Default for Notify {
    fn default() -> Notify {
        Notify::new()
    }
}

impl Notify {
    /// No task waits yet.
    pub fn new() -> Notify {
        Notify::named(&STATE)
    }

    /// One whose waits have a name in traces: what is waited for, such as "commit of the index".
    pub fn named(name: &'static Name) -> Notify {
        Notify::with_kind(name, BlockKind::Notify)
    }

    /// Like [`Notify::named`], but the trace shows the wait as a wait for a limited resource, such as "free buffer".
    pub fn of_resource(name: &'static Name) -> Notify {
        Notify::with_kind(name, BlockKind::Resource)
    }

    fn with_kind(name: &'static Name, kind: BlockKind) -> Notify {
        let inner = Inner { reason: Reason::new(kind, name), generation: Cell::new(0), waiters: RefCell::default() };
        Notify { inner: Rc::new(inner) }
    }

    /// Completes every [`Notified`] that was made before this call.
    pub fn notify_all(&self) {
        self.inner.generation.set(self.inner.generation.get() + 1);
        let waiting = core::mem::take(&mut self.inner.waiters.borrow_mut().waiting);
        waiting.into_values().for_each(Waker::wake);
    }

    /// Completes the [`Notified`] that has waited longest. If none waits, the next one to be polled completes at once;
    /// several calls until then count as one.
    pub fn notify_one(&self) {
        let mut waiters = self.inner.waiters.borrow_mut();
        let Some((ticket, waker)) = waiters.waiting.pop_first() else {
            waiters.is_due = true;
            return;
        };
        waiters.chosen.insert(ticket);
        drop(waiters);
        waker.wake();
    }

    /// Completes at the first [`Notify::notify_all`] after the creation of this future (even if it was not polled yet), or when
    /// [`Notify::notify_one`] selects it; for that it must have been polled.
    pub fn notified(&self) -> Notified {
        Notified { notify: self.clone(), generation: self.inner.generation.get(), ticket: None }
    }
}

/// See [`Notify::notified`].
pub struct Notified {
    notify: Notify,
    generation: u64,
    /// Its place among the waiters, since its first poll.
    ticket: Option<u64>,
}

impl Future for Notified {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<()> {
        let this = &mut *self;
        let inner = &this.notify.inner;
        let mut waiters = inner.waiters.borrow_mut();
        let is_chosen = match this.ticket {
            Some(ticket) => waiters.chosen.remove(&ticket),
            None => core::mem::take(&mut waiters.is_due),
        };
        if is_chosen || inner.generation.get() != this.generation {
            return Poll::Ready(());
        }
        match this.ticket.and_then(|ticket| waiters.waiting.get_mut(&ticket)) {
            Some(waker) => waker.clone_from(context.waker()),
            // Polled after it completed: it waits anew.
            None => {
                waiters.tickets += 1;
                let ticket = waiters.tickets;
                waiters.waiting.insert(ticket, context.waker().clone());
                this.ticket = Some(ticket);
            }
        }
        inner.reason.block();
        Poll::Pending
    }
}

impl Drop for Notified {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut waiters = self.notify.inner.waiters.borrow_mut();
        let waker = waiters.waiting.remove(&ticket);
        let is_chosen = waiters.chosen.remove(&ticket);
        drop(waiters);
        drop(waker);
        if is_chosen {
            // It was its turn, which must not be lost.
            self.notify.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::pin::pin;

    fn poll(future: Pin<&mut Notified>) -> bool {
        future.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn those_that_stop_waiting_are_forgotten() {
        let notify = Notify::new();
        let mut stays = pin!(notify.notified());
        assert!(!poll(stays.as_mut()));
        for _ in 0..1000 {
            let mut leaves = pin!(notify.notified());
            assert!(!poll(leaves.as_mut()));
            assert!(!poll(leaves.as_mut()));
        }
        assert!(notify.inner.waiters.borrow().waiting.len() <= 2);
        notify.notify_all();
        assert!(poll(stays.as_mut()));
        assert_eq!(notify.inner.waiters.borrow().waiting.len(), 0);
    }

    #[test]
    fn one_is_chosen_in_the_order_of_waiting_and_a_turn_is_passed_on() {
        let notify = Notify::new();
        let [mut first, mut second, mut third] = [(); 3].map(|()| alloc::boxed::Box::pin(notify.notified()));
        // The second begins to wait before the first.
        assert!(!poll(second.as_mut()) && !poll(first.as_mut()) && !poll(third.as_mut()));
        notify.notify_one();
        assert!(!poll(first.as_mut()) && !poll(third.as_mut()));
        assert!(poll(second.as_mut()));
        notify.notify_one();
        // It leaves with its turn.
        drop(first);
        assert!(poll(third.as_mut()));
        let waiters = notify.inner.waiters.borrow();
        assert!(waiters.waiting.is_empty() && waiters.chosen.is_empty() && !waiters.is_due);
    }

    #[test]
    fn a_turn_without_a_taker_is_kept_once() {
        let notify = Notify::new();
        let mut made_before = pin!(notify.notified());
        notify.notify_one();
        notify.notify_one();
        assert!(poll(made_before.as_mut()));
        assert!(!poll(pin!(notify.notified())));
    }

    #[test]
    fn all_counts_for_those_that_one_has_chosen() {
        let notify = Notify::new();
        let (mut first, mut second) = (pin!(notify.notified()), pin!(notify.notified()));
        assert!(!poll(first.as_mut()) && !poll(second.as_mut()));
        notify.notify_one();
        notify.notify_all();
        assert!(poll(first.as_mut()) && poll(second.as_mut()));
        assert!(!poll(pin!(notify.notified())));
    }
}
