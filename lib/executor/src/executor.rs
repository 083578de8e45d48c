//! The task table.

use crate::join::{Joined, Joining};
use crate::ready::{ReadySet, SLOTS_MAX, SlotWaker, Unpark};
use crate::timers::{Sleep, Timers};
use alloc::boxed::Box;
use alloc::rc::{Rc, Weak};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell, RefMut};
use core::pin::Pin;
use core::sync::atomic::{AtomicU32, Ordering};
use core::task::{Context, Poll, Waker};
use glass_api::{Instant, JoinHandle, SpawnError};
use glass_lib_trace::{Group, Name, Outcome, is_on};

/// Tasks that can exist at once.
pub const TASKS_MAX: usize = SLOTS_MAX;

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// A core's tasks and timers. Clones are handles to the same executor.
#[derive(Clone)]
pub struct Executor {
    inner: Rc<Inner>,
}

/// Names one task forever: a slot, and the number of the task that is meant.
pub(crate) struct TaskId {
    executor: Weak<Inner>,
    slot: Cell<usize>,
    pub(crate) number: u32,
}

impl TaskId {
    /// Requests that the task is dropped when it would be polled next, if it has not ended.
    pub(crate) fn cancel(&self) {
        if let Some(executor) = self.executor.upgrade() {
            executor.cancel(self.slot.get(), self.number);
        }
    }
}

struct Inner {
    ready: Arc<ReadySet>,
    slots: RefCell<Vec<Slot>>,
    /// Slots without a task.
    free: RefCell<Vec<usize>>,
    timers: RefCell<Timers>,
    /// Slot that is being polled.
    current: Cell<Option<usize>>,
    /// Number of the task that is being polled, 0 for none.
    current_number: Cell<u32>,
}

/// Number of the task that was spawned last on any core: each task of a program has its own.
static LAST_NUMBER: AtomicU32 = AtomicU32::new(0);

struct Slot {
    name: Name,
    /// 0 if the slot is free.
    number: u32,
    own: Arc<SlotWaker>,
    /// `None` while the task is polled, or when the slot is free.
    task: Option<Task>,
    /// To be dropped instead of polled.
    is_cancelled: bool,
    waker: Waker,
}

impl Inner {
    fn cancel(&self, slot: usize, number: u32) {
        let mut slots = self.slots.borrow_mut();
        let entry = &mut slots[slot];
        if entry.number == number {
            entry.is_cancelled = true;
            let waker = entry.waker.clone();
            drop(slots);
            waker.wake();
        }
    }
}

impl Executor {
    /// An executor without tasks. A wake calls `unpark` if no task was runnable before.
    pub fn new(unpark: Arc<dyn Unpark>) -> Executor {
        Executor {
            inner: Rc::new(Inner {
                ready: Arc::new(ReadySet::new(unpark)),
                slots: RefCell::new(Vec::new()),
                free: RefCell::new(Vec::new()),
                timers: RefCell::new(Timers::default()),
                current: Cell::new(None),
                current_number: Cell::new(0),
            }),
        }
    }

    /// Adds a task; it is polled at the next [`Executor::run_ready`]. One that is refused is dropped.
    pub fn spawn<T: 'static>(
        &self,
        name: &'static str,
        task: impl Future<Output = T> + 'static,
    ) -> Result<JoinHandle<T>, SpawnError> {
        let number = next_number();
        let id = TaskId { executor: Rc::downgrade(&self.inner), slot: Cell::new(0), number };
        let joined = Rc::new(Joined::new(id));
        // Before the slots are borrowed, so that a task that is refused is dropped after it: its drop may spawn or wake others.
        let task: Task = Box::pin(Joining::new(task, joined.clone()));
        let slot = self.insert(Name::new(name), number, task)?;
        joined.id.slot.set(slot);
        self.inner.ready.set(slot);
        Ok(JoinHandle::new(joined))
    }

    fn insert(&self, name: Name, number: u32, task: Task) -> Result<usize, SpawnError> {
        let mut slots = self.inner.slots.borrow_mut();
        let free = self.inner.free.borrow_mut().pop();
        let slot = match free {
            Some(slot) => {
                let entry = &mut slots[slot];
                (entry.name, entry.number, entry.task, entry.is_cancelled) = (name, number, Some(task), false);
                entry.own.task.store(number, Ordering::Relaxed);
                slot
            }
            None if slots.len() < TASKS_MAX => {
                let slot = slots.len();
                let (task_number, ready) = (AtomicU32::new(number), self.inner.ready.clone());
                let own = Arc::new(SlotWaker { slot, task: task_number, ready });
                let waker = Waker::from(own.clone());
                slots.push(Slot { name, number, own, task: Some(task), is_cancelled: false, waker });
                slot
            }
            None => {
                drop(slots);
                drop(task);
                return Err(SpawnError { tasks_max: TASKS_MAX });
            }
        };
        if is_on(Group::Tasks) {
            let parent = self.inner.current_number.get();
            glass_lib_trace::task_spawn(number, slots[slot].name.number(), parent, false);
        }
        Ok(slot)
    }

    /// Requests that every task is dropped when it would be polled next: for a simulated node without power.
    pub fn cancel_all(&self) {
        let count = self.inner.slots.borrow().len();
        for slot in 0..count {
            let number = self.inner.slots.borrow()[slot].number;
            if number != 0 {
                self.inner.cancel(slot, number);
            }
        }
    }

    /// Writes an event for every existing task into the trace: call it when tracing of tasks was switched on.
    pub fn announce(&self) {
        for slot in self.inner.slots.borrow().iter().filter(|slot| slot.number != 0) {
            glass_lib_trace::task_spawn(slot.number, slot.name.number(), 0, true);
        }
    }

    /// Polls every task that is runnable, each at most once, in the order of their slots, and returns how many were polled.
    pub fn run_ready(&self) -> usize {
        self.run_ready_up_to(usize::MAX)
    }

    /// Polls the first tasks that are ready, at most `count_max`, and returns how many were polled: for a simulation that chooses.
    pub fn run_ready_up_to(&self, count_max: usize) -> usize {
        let mut polled = 0;
        self.inner.ready.take(|slot| {
            polled += usize::from(self.poll_slot(slot));
            polled < count_max
        });
        polled
    }

    fn poll_slot(&self, slot: usize) -> bool {
        // The task leaves the table for the poll, so that it may spawn others.
        let (mut task, waker, number, is_cancelled) = {
            let mut slots = self.inner.slots.borrow_mut();
            let entry = &mut slots[slot];
            match entry.task.take() {
                Some(task) => {
                    if is_on(Group::Tasks) {
                        glass_lib_trace::poll_begin(entry.number, entry.name.number());
                    }
                    (task, entry.waker.clone(), entry.number, entry.is_cancelled)
                }
                None => return false,
            }
        };
        self.inner.current.set(Some(slot));
        self.inner.current_number.set(number);
        let poll = match is_cancelled {
            true => Poll::Ready(()),
            false => task.as_mut().poll(&mut Context::from_waker(&waker)),
        };
        match poll {
            Poll::Pending => {
                self.inner.slots.borrow_mut()[slot].task = Some(task);
                glass_lib_trace::poll_end(number, Outcome::Pending);
            }
            Poll::Ready(()) => {
                // Dropped outside of any borrow: a task's captured values may use the executor. Whom the drop wakes,
                // the task has woken.
                drop(task);
                let entry = &mut self.inner.slots.borrow_mut()[slot];
                entry.number = 0;
                entry.own.task.store(0, Ordering::Relaxed);
                self.inner.free.borrow_mut().push(slot);
                glass_lib_trace::poll_end(number, Outcome::Ready);
            }
        }
        self.inner.current.set(None);
        self.inner.current_number.set(0);
        true
    }

    /// Whether a task waits to be polled.
    pub fn has_ready(&self) -> bool {
        !self.inner.ready.is_empty()
    }

    /// Wakes everything whose deadline is `now` or earlier and returns how many.
    pub fn fire_timers(&self, now: Instant) -> usize {
        if is_on(Group::Cores) {
            let due = self.timers().count_due(now);
            if due > 0 {
                glass_lib_trace::timers_fire(u32::try_from(due).unwrap_or(u32::MAX));
            }
        }
        let mut fired = 0;
        loop {
            let due = self.timers().pop_due(now);
            let Some(waker) = due else { return fired };
            waker.wake();
            fired += 1;
        }
    }

    /// The earliest deadline of all timers.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.timers().next_deadline()
    }

    /// A future that completes at `deadline` or at the first [`Executor::fire_timers`] after it.
    pub fn sleep_until(&self, deadline: Instant) -> Sleep {
        Sleep::new(self.clone(), deadline)
    }

    /// Tasks that have not ended.
    pub fn task_count(&self) -> usize {
        self.inner.slots.borrow().len() - self.inner.free.borrow().len()
    }

    /// Name of the task that is being polled.
    pub fn current_task(&self) -> Option<&'static str> {
        let slot = self.inner.current.get()?;
        Some(self.inner.slots.borrow()[slot].name.text())
    }

    pub(crate) fn timers(&self) -> RefMut<'_, Timers> {
        self.inner.timers.borrow_mut()
    }
}

/// Counts from 1 on; 0 is no task, also after 4 billion.
fn next_number() -> u32 {
    loop {
        let number = LAST_NUMBER.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        if number != 0 {
            return number;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::Notify;
    use core::time::Duration;

    struct Nothing;
    impl Unpark for Nothing {
        fn unpark(&self) {}
    }

    fn executor() -> Executor {
        Executor::new(Arc::new(Nothing))
    }

    #[test]
    fn tasks_spawn_tasks_and_slots_are_reused() {
        let executor = executor();
        let done = Rc::new(Cell::new(0));
        for _ in 0..3 {
            let (inner, count) = (executor.clone(), done.clone());
            executor
                .spawn("outer", async move {
                    assert_eq!(inner.current_task(), Some("outer"));
                    inner.spawn("inner", async move { count.set(count.get() + 1) }).unwrap();
                })
                .unwrap();
            while executor.run_ready() > 0 {}
        }
        assert_eq!(done.get(), 3);
        assert_eq!(executor.task_count(), 0);
        assert_eq!(executor.inner.slots.borrow().len(), 2);
    }

    #[test]
    fn timers_fire_in_order_and_vanish_when_dropped() {
        let executor = executor();
        let order = Rc::new(RefCell::new(Vec::new()));
        for ms in [30u64, 10, 20] {
            let (inner, order) = (executor.clone(), order.clone());
            let sleep = inner.sleep_until(Instant(0) + Duration::from_millis(ms));
            executor
                .spawn("sleeper", async move {
                    sleep.await;
                    order.borrow_mut().push(ms);
                })
                .unwrap();
        }
        executor.run_ready();
        assert_eq!(executor.next_deadline(), Some(Instant(10_000_000)));
        assert_eq!(executor.fire_timers(Instant(9_999_999)), 0);
        assert_eq!(executor.fire_timers(Instant(25_000_000)), 2);
        executor.run_ready();
        assert_eq!(*order.borrow(), [10, 20]);

        let mut dropped = Box::pin(executor.sleep_until(Instant(1)));
        assert!(dropped.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(dropped);
        assert_eq!(executor.next_deadline(), Some(Instant(30_000_000)));
    }

    #[test]
    fn all_sleeps_until_the_same_moment_end() {
        let executor = executor();
        for _ in 0..3 {
            executor.spawn("sleeper", executor.sleep_until(Instant(10))).unwrap();
        }
        executor.run_ready();
        assert_eq!(executor.fire_timers(Instant(10)), 3);
        executor.run_ready();
        assert_eq!((executor.task_count(), executor.next_deadline()), (0, None));
    }

    #[test]
    fn the_number_of_tasks_is_bounded() {
        let executor = executor();
        for _ in 0..TASKS_MAX {
            executor.spawn("waiting", core::future::pending::<()>()).unwrap();
        }
        assert_eq!(executor.spawn("one more", async {}).unwrap_err(), SpawnError { tasks_max: TASKS_MAX });
        // What is refused may spawn when it is dropped, and is refused again.
        struct SpawnsAtItsEnd(Executor);
        impl Drop for SpawnsAtItsEnd {
            fn drop(&mut self) {
                assert!(self.0.spawn("another", async {}).is_err());
            }
        }
        let last = SpawnsAtItsEnd(executor.clone());
        assert!(executor.spawn("one more", async move { drop(last) }).is_err());
    }

    #[test]
    fn a_task_that_always_has_work_holds_up_nobody() {
        let executor = executor();
        // In the lowest slots: one wakes itself, two wake each other.
        executor.spawn("busy", async { std::future::poll_fn(wake_again).await }).unwrap();
        let (left, right) = (Notify::new(), Notify::new());
        for (own, other) in [(left.clone(), right.clone()), (right.clone(), left.clone())] {
            let ball = async move {
                loop {
                    let thrown = own.notified();
                    other.notify_one();
                    thrown.await;
                }
            };
            executor.spawn("ball", ball).unwrap();
        }
        // In the highest slots, each with turns to take.
        for _ in 0..TASKS_MAX - 4 {
            executor.spawn("waiting", core::future::pending::<()>()).unwrap();
        }
        let turns = Rc::new(Cell::new(0));
        let counted = turns.clone();
        let last = async move {
            loop {
                counted.set(counted.get() + 1);
                crate::sync::yield_now().await;
            }
        };
        executor.spawn::<()>("last", last).unwrap();
        for round in 1..100 {
            executor.run_ready();
            assert_eq!(turns.get(), round, "a turn in each round, whatever the others do");
        }
    }

    fn wake_again(context: &mut Context) -> Poll<()> {
        context.waker().wake_by_ref();
        Poll::Pending
    }
}
