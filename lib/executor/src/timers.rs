//! Deadlines, in order.

use crate::Executor;
use alloc::collections::BTreeMap;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use glass_api::Instant;
use glass_lib_trace::{BlockKind, Name, block};

/// The name of the wait of a task that only waits for time.
static TIMER: Name = Name::new("timer");

/// The number makes equal deadlines distinct and keeps their order.
pub(crate) type TimerKey = (Instant, u64);

#[derive(Default)]
pub(crate) struct Timers {
    pending: BTreeMap<TimerKey, Waker>,
    created: u64,
}

impl Timers {
    fn insert(&mut self, deadline: Instant, waker: Waker) -> TimerKey {
        self.created += 1;
        let key = (deadline, self.created);
        self.pending.insert(key, waker);
        key
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.pending.keys().next().map(|key| key.0)
    }

    pub(crate) fn count_due(&self, now: Instant) -> usize {
        self.pending.range(..=(now, u64::MAX)).count()
    }

    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<Waker> {
        let entry = self.pending.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }
}

/// Completes once its deadline was reached; see [`Executor::sleep_until`]. Dropping it removes the timer.
pub struct Sleep {
    executor: Executor,
    deadline: Instant,
    key: Option<TimerKey>,
}

impl Sleep {
    pub(crate) fn new(executor: Executor, deadline: Instant) -> Sleep {
        Sleep { executor, deadline, key: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<()> {
        let this = &mut *self;
        let mut timers = this.executor.timers();
        match this.key {
            None => this.key = Some(timers.insert(this.deadline, context.waker().clone())),
            Some(key) => match timers.pending.get_mut(&key) {
                Some(waker) => waker.clone_from(context.waker()),
                None => return Poll::Ready(()),
            },
        }
        block(BlockKind::Timer, &TIMER, this.deadline.0);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.executor.timers().pending.remove(&key);
        }
    }
}
