//! A bound on how many do something at once.

use super::Reason;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use glass_lib_trace::{BlockKind, Name};

static PERMIT: Name = Name::new("permit");

/// A number of permits. Clones share it.
///
/// Permits go to waiting tasks in the order in which they began to wait: a task that waits for many permits is not starved by tasks
/// that wait for few, and a newcomer waits behind them.
///
/// ```
/// use glass_lib_executor::sync::Semaphore;
/// use glass_lib_trace::Name;
///
/// static SLOT: Name = Name::new("slot for an upload");
///
/// async fn upload(slots: &Semaphore) {
///     let _slot = slots.acquire().await;
///     // No more than 8 tasks are here at once.
/// }
/// # let _ = upload(&Semaphore::named(&SLOT, 8));
/// ```
#[derive(Clone)]
pub struct Semaphore {
    inner: Rc<Inner>,
}

struct Inner {
    reason: Reason,
    count: usize,
    state: RefCell<State>,
}

struct State {
    free: usize,
    /// By ticket, so in the order in which they began to wait.
    waiting: BTreeMap<u64, Waiter>,
    /// Permits that were given to a ticket whose future was not polled since.
    given: BTreeMap<u64, usize>,
    tickets: u64,
}

struct Waiter {
    wanted: usize,
    waker: Waker,
}

impl State {
    /// Gives what is free to those that have waited longest.
    fn hand_out(&mut self) -> Vec<Waker> {
        let mut woken = Vec::new();
        while let Some(first) = self.waiting.first_entry()
            && first.get().wanted <= self.free
        {
            let (ticket, waiter) = first.remove_entry();
            self.free -= waiter.wanted;
            self.given.insert(ticket, waiter.wanted);
            woken.push(waiter.waker);
        }
        woken
    }
}

impl Semaphore {
    /// `count` permits, all of them free.
    pub fn new(count: usize) -> Semaphore {
        Semaphore::named(&PERMIT, count)
    }

    /// One whose waits have a name in traces: what a permit stands for, such as "slot for an upload".
    pub fn named(name: &'static Name, count: usize) -> Semaphore {
        let state = RefCell::new(State { free: count, waiting: BTreeMap::new(), given: BTreeMap::new(), tickets: 0 });
        Semaphore { inner: Rc::new(Inner { reason: Reason::new(BlockKind::Resource, name), count, state }) }
    }

    /// Waits for a permit.
    pub fn acquire(&self) -> Acquire {
        self.acquire_many(1)
    }

    /// Waits until `count` permits are free at once.
    ///
    /// # Panics
    /// When the semaphore has fewer permits: the wait would never end.
    pub fn acquire_many(&self, count: usize) -> Acquire {
        assert!(count <= self.inner.count, "{count} permits of {} are never free", self.inner.count);
        Acquire { semaphore: self.clone(), wanted: count, ticket: None }
    }

    /// A permit, if one is free and no task waits for it.
    pub fn try_acquire(&self) -> Option<Permit> {
        self.take(1).then(|| Permit { semaphore: self.clone(), count: 1 })
    }

    /// Permits that are free now.
    #[doc(alias = "available_permits")]
    pub fn free(&self) -> usize {
        self.inner.state.borrow().free
    }

    fn take(&self, wanted: usize) -> bool {
        let mut state = self.inner.state.borrow_mut();
        let is_free = state.waiting.is_empty() && state.free >= wanted;
        if is_free {
            state.free -= wanted;
        }
        is_free
    }

    /// Gives back `count` permits.
    pub(super) fn release(&self, count: usize) {
        let mut state = self.inner.state.borrow_mut();
        state.free = state.free.saturating_add(count);
        let woken = state.hand_out();
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }
}

/// See [`Semaphore::acquire`].
pub struct Acquire {
    semaphore: Semaphore,
    wanted: usize,
    ticket: Option<u64>,
}

impl Future for Acquire {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<Permit> {
        let this = &mut *self;
        let permit = || Poll::Ready(Permit { semaphore: this.semaphore.clone(), count: this.wanted });
        if this.ticket.is_none() && this.semaphore.take(this.wanted) {
            return permit();
        }
        let inner = &this.semaphore.inner;
        let mut state = inner.state.borrow_mut();
        if this.ticket.is_some_and(|ticket| state.given.remove(&ticket).is_some()) {
            this.ticket = None;
            return permit();
        }
        let ticket = *this.ticket.get_or_insert_with(|| {
            state.tickets += 1;
            state.tickets
        });
        state.waiting.insert(ticket, Waiter { wanted: this.wanted, waker: context.waker().clone() });
        inner.reason.block();
        Poll::Pending
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut state = self.semaphore.inner.state.borrow_mut();
        let waiter = state.waiting.remove(&ticket);
        let given = state.given.remove(&ticket).unwrap_or(0);
        drop(state);
        drop(waiter);
        // Those behind it may want less than it did.
        self.semaphore.release(given);
    }
}

/// One or more permits of a [`Semaphore`], until this is dropped.
pub struct Permit {
    semaphore: Semaphore,
    count: usize,
}

impl Permit {
    /// Keeps the permits from coming back; [`Semaphore::release`] gives them back.
    pub(super) fn keep(mut self) {
        self.count = 0;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.semaphore.release(self.count);
    }
}
