//! Tasks that wait for each other, in random orders, with some that are cancelled: bounds hold, turns are fair and none
//! is lost.

use glass_api::{Cancelled, JoinHandle};
use glass_lib_executor::sync::{
    Closed, Latch, Mutex, Notify, Semaphore, SendError, TrySendError, Watch, channel, oneshot, yield_now,
};
use glass_lib_executor::{Executor, Unpark};
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

struct Nothing;
impl Unpark for Nothing {
    fn unpark(&self) {}
}

fn executor() -> Executor {
    Executor::new(Arc::new(Nothing))
}

/// Runs until every task waits for something that does not come, and returns how many do.
fn settle(executor: &Executor) -> usize {
    settle_with(executor, || ())
}

/// The same, with a call after each round.
fn settle_with(executor: &Executor, mut after_round: impl FnMut()) -> usize {
    for _ in 0..1_000_000 {
        if executor.run_ready() == 0 {
            return executor.task_count();
        }
        after_round();
    }
    panic!("the tasks do not come to rest");
}

fn value<T>(executor: &Executor, mut handle: JoinHandle<T>) -> Option<Result<T, Cancelled>> {
    settle(executor);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::Pin::new(&mut handle).poll(&mut context) {
        std::task::Poll::Ready(value) => Some(value),
        std::task::Poll::Pending => None,
    }
}

async fn turns(count: usize) {
    for _ in 0..count {
        yield_now().await;
    }
}

/// What one task of a random world does.
#[derive(Debug, Clone)]
struct Plan {
    before: usize,
    wanted: usize,
    held: usize,
    /// Cancelled after so many turns.
    cancelled: Option<usize>,
}

const PERMITS: usize = 4;

fn plans() -> impl Strategy<Value = Vec<Plan>> {
    let plan = (0..6usize, 1..=PERMITS, 0..6usize, prop::option::weighted(0.3, 0..10usize));
    let plan = plan.prop_map(|(before, wanted, held, cancelled)| Plan { before, wanted, held, cancelled });
    prop::collection::vec(plan, 1..20)
}

proptest! {
    #[test]
    fn a_semaphore_keeps_its_bound_its_order_and_its_permits(plans in plans()) {
        let executor = executor();
        let semaphore = Semaphore::new(PERMITS);
        // Tasks in the order of their requests, and the round in which each got its permit.
        let (held, asked) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(Vec::new())));
        let (round, got) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(BTreeMap::new())));
        struct Held(Rc<Cell<usize>>, usize);
        impl Drop for Held {
            fn drop(&mut self) {
                self.0.set(self.0.get() - self.1);
            }
        }
        for (number, plan) in plans.iter().cloned().enumerate() {
            let (semaphore, held, asked) = (semaphore.clone(), held.clone(), asked.clone());
            let (round, got) = (round.clone(), got.clone());
            let task = executor.spawn("holder", async move {
                turns(plan.before).await;
                let permit = semaphore.acquire_many(plan.wanted);
                asked.borrow_mut().push(number);
                let permit = permit.await;
                got.borrow_mut().insert(number, round.get());
                held.set(held.get() + plan.wanted);
                assert!(held.get() <= PERMITS, "{} permits of {PERMITS}", held.get());
                let _held = Held(held.clone(), plan.wanted);
                turns(plan.held).await;
                // Dropped in the reverse order, so the count goes down before the permit is free.
                drop(_held);
                drop(permit);
            }).unwrap();
            if let Some(after) = plan.cancelled {
                executor.spawn("canceller", async move {
                    turns(after).await;
                    task.cancel();
                    let _ = task.await;
                }).unwrap();
            }
        }
        prop_assert_eq!(settle_with(&executor, || round.set(round.get() + 1)), 0, "a turn was lost");
        prop_assert_eq!((held.get(), semaphore.free()), (0, PERMITS));
        // A task that is given a permit is polled in the next round, and one that requests in this round may get another at once.
        let got = got.take();
        let mut latest = 0;
        for number in asked.take() {
            let Some(round) = got.get::<usize>(&number).copied() else { continue };
            prop_assert!(latest <= round + 1, "task {} overtook in round {} of {:?}", number, round, got);
            latest = latest.max(round);
        }
    }

    #[test]
    fn a_channel_loses_and_repeats_nothing(capacity in 1..5usize, plans in plans(), slowness in 0..3usize) {
        let executor = executor();
        let (sender, mut receiver) = channel(capacity);
        let sent = Rc::new(RefCell::new(Vec::new()));
        for (number, plan) in plans.iter().cloned().enumerate() {
            let (sender, sent) = (sender.clone(), sent.clone());
            let task = executor.spawn("sender", async move {
                turns(plan.before).await;
                for index in 0..plan.wanted * 3 {
                    sender.send((number, index)).await.unwrap();
                    sent.borrow_mut().push((number, index));
                    turns(plan.held % 2).await;
                }
            }).unwrap();
            if let Some(after) = plan.cancelled {
                executor.spawn("canceller", async move {
                    turns(after).await;
                    task.cancel();
                }).unwrap();
            }
        }
        drop(sender);
        let received = executor.spawn("receiver", async move {
            let mut received = Vec::new();
            loop {
                assert!(receiver.len() <= capacity);
                match receiver.recv().await {
                    Some(value) => received.push(value),
                    None => return received,
                }
                turns(slowness).await;
            }
        }).unwrap();
        let received = value(&executor, received).expect("the receiver ends").unwrap();
        prop_assert_eq!(executor.task_count(), 0);
        let mut sent = sent.take();
        for number in 0..plans.len() {
            let of = |values: &[(usize, usize)]| values.iter().filter(|value| value.0 == number).map(|value| value.1).collect::<Vec<_>>();
            prop_assert_eq!(of(&sent), of(&received), "task {} of {:?}", number, plans);
        }
        let mut received = received;
        sent.sort_unstable();
        received.sort_unstable();
        prop_assert_eq!(sent, received);
    }
}

#[test]
fn a_task_gives_its_value_once_and_a_cancelled_one_none() {
    let executor = executor();
    let task = executor.spawn("sum", async { 2 + 3 }).unwrap();
    assert!(!task.is_finished());
    assert_eq!(value(&executor, task), Some(Ok(5)));

    let dropped = Rc::new(());
    let held = dropped.clone();
    let task = executor
        .spawn("waits", async move {
            let _held = held;
            std::future::pending::<()>().await
        })
        .unwrap();
    settle(&executor);
    task.cancel();
    assert_eq!(Rc::strong_count(&dropped), 2, "it is dropped at its turn, not in the call");
    assert_eq!(value(&executor, task), Some(Err(Cancelled)));
    assert_eq!((Rc::strong_count(&dropped), executor.task_count()), (1, 0));
}

#[test]
fn a_task_can_be_cancelled_before_its_first_poll_by_itself_and_after_its_end() {
    let executor = executor();
    let polled = Rc::new(Cell::new(false));
    let first = polled.clone();
    let task = executor.spawn("never", async move { first.set(true) }).unwrap();
    task.cancel();
    assert_eq!((value(&executor, task), polled.get()), (Some(Err(Cancelled)), false));

    let own: Rc<RefCell<Option<JoinHandle<()>>>> = Rc::default();
    let handle = own.clone();
    let task = executor
        .spawn("itself", async move {
            handle.borrow().as_ref().unwrap().cancel();
            yield_now().await;
            unreachable!("it was cancelled");
        })
        .unwrap();
    *own.borrow_mut() = Some(task);
    assert_eq!(settle(&executor), 0);

    let task = executor.spawn("done", async { 7 }).unwrap();
    settle(&executor);
    // The slot has another task by then, which must not be hit.
    let next = executor.spawn("next", async { 8 }).unwrap();
    task.cancel();
    assert_eq!(value(&executor, task), Some(Ok(7)));
    assert_eq!(value(&executor, next), Some(Ok(8)));
}

#[test]
fn all_tasks_that_live_can_be_cancelled_at_once() {
    let executor = executor();
    // A slot that is reused, and one that is free when all are cancelled.
    for _ in 0..2 {
        executor.spawn("gone", async {}).unwrap();
    }
    let held = [(); 3].map(|()| Rc::new(()));
    let holds = |held: &Rc<()>| {
        let held = held.clone();
        async move {
            let _held = held;
            std::future::pending::<()>().await
        }
    };
    executor.spawn("waits", holds(&held[0])).unwrap();
    settle(&executor);
    executor.spawn("new", holds(&held[1])).unwrap();
    executor.cancel_all();
    executor.spawn("later", holds(&held[2])).unwrap();
    assert_eq!(settle(&executor), 1);
    assert_eq!(held.each_ref().map(Rc::strong_count), [1, 1, 2]);
}

#[test]
fn a_simulation_can_run_a_part_of_the_ready_tasks() {
    let executor = executor();
    let order = Rc::new(RefCell::new(Vec::new()));
    for number in 0..5 {
        let order = order.clone();
        executor.spawn("task", async move { order.borrow_mut().push(number) }).unwrap();
    }
    for (polled, count) in [(2, 2), (2, 4), (1, 5)] {
        assert!(executor.has_ready());
        assert_eq!(executor.run_ready_up_to(2), polled);
        assert_eq!(*order.borrow(), (0..count).collect::<Vec<_>>());
    }
    assert!(!executor.has_ready());
}

#[test]
fn a_handle_that_is_dropped_lets_its_task_go_on() {
    let executor = executor();
    let done = Rc::new(Cell::new(0));
    let count = done.clone();
    drop(executor.spawn("alone", async move {
        turns(3).await;
        count.set(1)
    }));
    assert_eq!((settle(&executor), done.get()), (0, 1));
}

#[test]
fn who_waits_for_a_task_is_woken_by_its_end() {
    let executor = executor();
    let gate = Latch::new();
    let opened = gate.wait();
    let inner = executor
        .spawn("inner", async move {
            opened.await;
            1
        })
        .unwrap();
    let outer = executor.spawn("outer", async move { inner.await.unwrap() + 1 }).unwrap();
    assert_eq!(settle(&executor), 2);
    gate.open();
    assert_eq!(value(&executor, outer), Some(Ok(2)));
    assert!(gate.is_open());
    assert_eq!(value(&executor, executor.spawn("late", gate.wait()).unwrap()), Some(Ok(())));
}

#[test]
fn a_mutex_is_held_across_waits() {
    let executor = executor();
    let numbers = Rc::new(Mutex::new(Vec::new()));
    for number in 0..3 {
        let numbers = numbers.clone();
        let task = async move {
            let mut numbers = numbers.lock().await;
            numbers.push(number);
            turns(2).await;
            numbers.push(number);
        };
        executor.spawn("writer", task).unwrap();
    }
    executor.run_ready();
    assert!(numbers.try_lock().is_none());
    assert_eq!(settle(&executor), 0);
    assert_eq!(*numbers.try_lock().unwrap(), [0, 0, 1, 1, 2, 2]);
    assert_eq!(Rc::into_inner(numbers).unwrap().into_inner().len(), 6);
}

#[test]
fn the_end_of_one_side_of_a_channel_is_seen_by_the_other() {
    let executor = executor();
    let (sender, mut receiver) = channel(1);
    assert_eq!(sender.try_send(1), Ok(()));
    assert_eq!(sender.try_send(2), Err(TrySendError::Full(2)));
    let second = sender.clone();
    let blocked = executor.spawn("blocked", async move { second.send(3).await }).unwrap();
    settle(&executor);
    // A newcomer does not overtake who waits for room.
    assert_eq!(receiver.try_recv(), Some(1));
    assert_eq!(sender.try_send(4), Err(TrySendError::Full(4)));
    assert_eq!(value(&executor, blocked), Some(Ok(Ok(()))));
    assert_eq!((receiver.len(), receiver.is_empty()), (1, false));
    let blocked = executor.spawn("blocked", async move { sender.send(5).await.map_err(|error| error.0) }).unwrap();
    settle(&executor);
    drop(receiver);
    assert_eq!(value(&executor, blocked), Some(Ok(Err(5))));

    let (sender, receiver) = oneshot::<u8>();
    drop(sender);
    assert_eq!(value(&executor, executor.spawn("one", receiver).unwrap()), Some(Ok(Err(Closed))));
    assert_eq!(Closed.to_string(), "the sender was dropped without sending a value");
    let (sender, receiver) = oneshot();
    assert!(!sender.is_closed());
    drop(receiver);
    assert!(sender.is_closed());
    assert_eq!(sender.send(6), Err(6));
    let (sender, receiver) = oneshot();
    let waits = executor.spawn("one", receiver).unwrap();
    settle(&executor);
    sender.send(7).unwrap();
    assert_eq!(value(&executor, waits), Some(Ok(Ok(7))));
}

#[test]
fn a_receiver_counts_what_is_there() {
    let (sender, mut receiver) = channel(3);
    assert_eq!((receiver.len(), receiver.is_empty()), (0, true));
    for value in 0..3 {
        sender.try_send(value).unwrap();
    }
    assert_eq!((receiver.len(), receiver.is_empty()), (3, false));
    assert_eq!((receiver.try_recv(), receiver.len()), (Some(0), 2));
}

#[test]
fn the_end_of_a_receiver_reaches_all_senders_in_the_same_round() {
    let executor = executor();
    let (sender, receiver) = channel(1);
    sender.try_send(0).unwrap();
    let send = |value| {
        let sender = sender.clone();
        executor.spawn("blocked", async move { sender.send(value).await }).unwrap()
    };
    let blocked: Vec<_> = (1..4).map(|value| (value, send(value))).collect();
    settle(&executor);
    drop(receiver);
    executor.run_ready();
    assert!(blocked.iter().all(|(_, task)| task.is_finished()));
    for (sent, task) in blocked {
        assert_eq!(value(&executor, task), Some(Ok(Err(SendError(sent)))));
    }
    assert_eq!(sender.try_send(4), Err(TrySendError::Closed(4)));
}

#[test]
fn the_errors_of_a_channel_say_what_is_wrong_with_it() {
    let gone = "the channel has no receiver any more";
    assert_eq!(SendError(1).to_string(), gone);
    assert_eq!(TrySendError::Closed(1).to_string(), gone);
    assert_eq!(TrySendError::Full(1).to_string(), "the channel is full");
}

#[test]
fn a_watch_shows_the_latest() {
    let executor = executor();
    let watch = Watch::new(1);
    let mut watcher = watch.watcher();
    let seen = Rc::new(RefCell::new(Vec::new()));
    let list = seen.clone();
    let follow = async move {
        loop {
            watcher.changed().await;
            list.borrow_mut().push(*watcher.get());
            assert!(list.borrow().len() <= 2, "it is woken without a change");
        }
    };
    executor.spawn::<()>("follows", follow).unwrap();
    let other = watch.clone();
    let until = executor.spawn("until", async move { other.wait_until(|value| *value > 2).await }).unwrap();
    settle(&executor);
    watch.set(2);
    settle(&executor);
    assert!(!until.is_finished());
    watch.set(3);
    watch.set(4);
    assert_eq!(value(&executor, until), Some(Ok(())));
    assert_eq!(*seen.borrow(), [2, 4]);
}

#[test]
fn notify_one_serves_in_turn() {
    let executor = executor();
    let (notify, order) = (Notify::new(), Rc::new(RefCell::new(Vec::new())));
    for number in 0..4 {
        let (notify, order) = (notify.clone(), order.clone());
        let task = async move {
            notify.notified().await;
            order.borrow_mut().push(number);
        };
        executor.spawn("waiter", task).unwrap();
    }
    settle(&executor);
    for _ in 0..4 {
        notify.notify_one();
        settle(&executor);
    }
    assert_eq!((order.take(), executor.task_count()), (vec![0, 1, 2, 3], 0));
}
