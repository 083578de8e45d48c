//! How a task's value reaches the task that waits for it.

use crate::executor::TaskId;
use alloc::rc::Rc;
use core::cell::{Cell, RefCell};
use core::pin::Pin;
use core::task::{Context, Poll, Waker, ready};
use glass_api::{Cancelled, JoinTask};
use glass_lib_trace::{BlockKind, Name, block};
use pin_project_lite::pin_project;

static END: Name = Name::new("end of a task");

/// What a task shares with its handle.
pub(crate) struct Joined<T> {
    pub(crate) id: TaskId,
    outcome: Cell<Outcome<T>>,
    waiting: RefCell<Option<Waker>>,
}

enum Outcome<T> {
    Running,
    Done(T),
    /// Dropped before it ended, or its value was taken.
    Gone,
}

impl<T> Joined<T> {
    pub(crate) fn new(id: TaskId) -> Joined<T> {
        Joined { id, outcome: Cell::new(Outcome::Running), waiting: RefCell::default() }
    }

    fn end(&self, outcome: Outcome<T>) {
        self.outcome.set(outcome);
        let waiting = self.waiting.take();
        if let Some(waiting) = waiting {
            waiting.wake();
        }
    }
}

impl<T> JoinTask<T> for Joined<T> {
    fn poll_join(&self, context: &mut Context) -> Poll<Result<T, Cancelled>> {
        match self.outcome.replace(Outcome::Gone) {
            Outcome::Done(value) => Poll::Ready(Ok(value)),
            Outcome::Gone => Poll::Ready(Err(Cancelled)),
            Outcome::Running => {
                self.outcome.set(Outcome::Running);
                *self.waiting.borrow_mut() = Some(context.waker().clone());
                block(BlockKind::Notify, &END, self.id.number.into());
                Poll::Pending
            }
        }
    }

    fn cancel(&self) {
        self.id.cancel();
    }

    fn is_finished(&self) -> bool {
        let outcome = self.outcome.replace(Outcome::Gone);
        let is_finished = !matches!(outcome, Outcome::Running);
        self.outcome.set(outcome);
        is_finished
    }
}

pin_project! {
    /// A task's future, and where its value goes.
    pub(crate) struct Joining<F: Future> {
        #[pin]
        future: F,
        end: End<F::Output>,
    }
}

impl<F: Future> Joining<F> {
    pub(crate) fn new(future: F, joined: Rc<Joined<F::Output>>) -> Joining<F> {
        Joining { future, end: End(joined) }
    }
}

impl<F: Future> Future for Joining<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context) -> Poll<()> {
        let this = self.project();
        let value = ready!(this.future.poll(context));
        this.end.0.end(Outcome::Done(value));
        Poll::Ready(())
    }
}

/// Ends the wait for a task that is dropped.
struct End<T>(Rc<Joined<T>>);

impl<T> Drop for End<T> {
    fn drop(&mut self) {
        if !self.0.is_finished() {
            self.0.end(Outcome::Gone);
        }
    }
}
