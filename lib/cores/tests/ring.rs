//! What crosses cores under every order of memory accesses that the language allows: run with `--cfg loom`.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p glass-lib-cores --release --test ring`, in a target folder of its own.
#![cfg(loom)]

use glass_lib_cores::{End, Inbox, Link, List, Once, WakerCell, channel};
use loom::thread;
use std::pin::{Pin, pin};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// A task's waker, and how often it was called.
#[derive(Default)]
struct Doorbell {
    rings: loom::sync::atomic::AtomicUsize,
}

impl Wake for Doorbell {
    fn wake(self: Arc<Self>) {
        self.rings.fetch_add(1, loom::sync::atomic::Ordering::Release);
    }
}

/// Runs `future`; between polls it waits for a wake-up, so one that is lost hangs the model.
fn block_on<F: Future>(mut future: Pin<&mut F>) -> F::Output {
    let doorbell = Arc::new(Doorbell::default());
    let waker = Waker::from(doorbell.clone());
    let mut heard = 0;
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        // The other core continues first: a task may be woken because a wake-up of it is being made.
        thread::yield_now();
        while doorbell.rings.load(loom::sync::atomic::Ordering::Acquire) == heard {
            thread::yield_now();
        }
        heard += 1;
    }
}

/// Explores `model`, and asserts that there was more than one way through it.
fn explore(least: usize, executions: &'static AtomicUsize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        executions.fetch_add(1, Ordering::Relaxed);
        model();
    });
    let count = executions.load(Ordering::Relaxed);
    assert!(count >= least, "only {count} executions were explored");
}

#[test]
fn values_arrive_whole_in_order_and_wake_the_receiver() {
    static EXECUTIONS: AtomicUsize = AtomicUsize::new(0);
    explore(100, &EXECUTIONS, || {
        let (mut sender, mut receiver) = channel::<Box<usize>>(1);
        let sending = thread::spawn(move || {
            // The second waits for room.
            for number in 0..2 {
                block_on(pin!(sender.send(Box::new(number)))).unwrap();
            }
        });
        for number in 0..2 {
            assert_eq!(block_on(pin!(receiver.recv())), Some(Box::new(number)));
        }
        assert_eq!(block_on(pin!(receiver.recv())), None, "the sender is dropped");
        sending.join().unwrap();
    });
}

#[test]
fn a_receiver_that_goes_ends_a_sender_that_waits() {
    static EXECUTIONS: AtomicUsize = AtomicUsize::new(0);
    explore(10, &EXECUTIONS, || {
        let (mut sender, receiver) = channel::<u8>(1);
        sender.try_send(1).unwrap();
        let receiving = thread::spawn(move || drop(receiver));
        assert!(block_on(pin!(sender.send(2))).is_err());
        receiving.join().unwrap();
    });
}

/// Also one that was sent while the receiver began to wait, by a sender that was dropped on another core.
#[test]
fn values_are_received_after_their_sender_is_dropped() {
    static EXECUTIONS: AtomicUsize = AtomicUsize::new(0);
    explore(20, &EXECUTIONS, || {
        let (mut sender, mut receiver) = channel::<u8>(1);
        let sending = thread::spawn(move || {
            sender.try_send(7).unwrap();
            thread::spawn(move || drop(sender)).join().unwrap();
        });
        assert_eq!(block_on(pin!(receiver.recv())), Some(7));
        assert_eq!(block_on(pin!(receiver.recv())), None);
        sending.join().unwrap();
    });
}

#[test]
fn who_sees_an_end_sees_what_was_done_before_it() {
    static EXECUTIONS: AtomicUsize = AtomicUsize::new(0);
    explore(10, &EXECUTIONS, || {
        let shared = Arc::new((End::new(), loom::cell::UnsafeCell::new(0)));
        let theirs = shared.clone();
        let ending = thread::spawn(move || {
            // SAFETY: it is read only after the report, which loom checks.
            theirs.1.with_mut(|place| unsafe { *place = 7 });
            theirs.0.report();
        });
        let wait = std::future::poll_fn(|context| match shared.0.is_reported_to(context.waker()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        });
        block_on(pin!(wait));
        // SAFETY: it is written only before the report.
        assert_eq!(shared.1.with(|place| unsafe { *place }), 7);
        ending.join().unwrap();
    });
}

#[test]
fn a_waker_is_called_or_the_change_is_seen() {
    static EXECUTIONS: AtomicUsize = AtomicUsize::new(0);
    explore(20, &EXECUTIONS, || {
        let shared = Arc::new((WakerCell::new(), loom::sync::atomic::AtomicBool::new(false)));
        let theirs = shared.clone();
        let changing = thread::spawn(move || {
            theirs.1.store(true, loom::sync::atomic::Ordering::Relaxed);
            theirs.0.wake();
        });
        let wait = std::future::poll_fn(|context| {
            shared.0.register(context.waker());
            match shared.1.load(loom::sync::atomic::Ordering::Relaxed) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        });
        block_on(pin!(wait));
        changing.join().unwrap();
    });
}

#[test]
fn a_result_is_taken_once_by_one() {
    static EXECUTIONS: AtomicUsize = AtomicUsize::new(0);
    explore(10, &EXECUTIONS, || {
        let place = Arc::new(Once::new());
        let (putting, taking) = (place.clone(), place.clone());
        let threads = [
            thread::spawn(move || {
                putting.put(Box::new(7));
                None
            }),
            thread::spawn(move || taking.take()),
        ];
        let first = place.take();
        let others = threads.map(|thread| thread.join().unwrap());
        let last = place.take();
        let taken: Vec<Box<i32>> = others.into_iter().chain([first, last]).flatten().collect();
        assert_eq!(taken, [Box::new(7)]);
    });
}

#[test]
fn everything_that_two_cores_put_in_is_taken_in_order() {
    static EXECUTIONS: AtomicUsize = AtomicUsize::new(0);
    explore(50, &EXECUTIONS, || {
        let inbox = Arc::new(Inbox::new(10));
        let put = |start: usize| {
            let inbox = inbox.clone();
            thread::spawn(move || (start..start + 2).for_each(|value| inbox.push(Box::new(value)).unwrap()))
        };
        let threads = [put(10), put(20)];
        let mut taken = inbox.take();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        taken.extend(inbox.take());
        for start in [10, 20] {
            let of_one: Vec<usize> =
                taken.iter().map(|value| **value).filter(|value| value / 10 * 10 == start).collect();
            assert_eq!(of_one, [start, start + 1]);
        }
        assert_eq!(taken.len(), 4);
    });
}

/// A block of memory on its way home: its owner reads what the other core has written, and no other core has it.
#[test]
fn freed_memory_goes_home() {
    #[repr(C)]
    struct Block {
        link: Link,
        bytes: loom::cell::UnsafeCell<usize>,
    }
    /// To pass a block to a thread.
    struct Given(NonNull<Block>);
    // SAFETY: the block is used by one thread at a time, which is what is tested.
    unsafe impl Send for Given {}

    static EXECUTIONS: AtomicUsize = AtomicUsize::new(0);
    explore(20, &EXECUTIONS, || {
        let freed = Arc::new(List::new());
        let free = |bytes: usize| {
            let (freed, block) = (freed.clone(), Block { link: Link::new(), bytes: loom::cell::UnsafeCell::new(0) });
            let block = Given(NonNull::from(Box::leak(Box::new(block))));
            thread::spawn(move || {
                let Given(block) = { block };
                // SAFETY: the block is this thread's until it is pushed.
                unsafe {
                    block.as_ref().bytes.with_mut(|place| *place = bytes);
                    freed.push(block.cast());
                }
            })
        };
        let threads = [free(1), free(2)];
        let home = std::cell::Cell::new(0);
        let take = || {
            freed.take(|link| {
                // SAFETY: it was pushed as a block, and is ours since it was taken.
                let block = unsafe { Box::from_raw(link.cast::<Block>().as_ptr()) };
                // SAFETY: as above.
                home.set(home.get() + block.bytes.with(|bytes| unsafe { *bytes }));
            });
        };
        take();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        take();
        assert_eq!(home.get(), 3);
    });
}
