//! What is left of a task that has panicked, and of those beside it.
#![forbid(unsafe_code)]

use core::cell::{Cell, RefCell};
use glass_api::Panicked;
use glass_lib_contain::contain;
use glass_lib_executor::sync::{Mutex, yield_now};
use glass_lib_executor::{Executor, Unpark};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::rc::Rc;
use std::sync::Arc;

struct Nothing;

impl Unpark for Nothing {
    fn unpark(&self) {}
}

/// What became of `task`, and what was reported of it, after a task beside it has run to its end.
fn run<T: 'static>(task: impl Future<Output = T> + 'static) -> (Result<T, Panicked>, Vec<Panicked>) {
    let executor = Executor::new(Arc::new(Nothing));
    let ended: Rc<RefCell<Option<Result<T, Panicked>>>> = Rc::default();
    let (reported, turns) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(0)));
    let (slot, reports, own) = (ended.clone(), reported.clone(), executor.clone());
    let contained = async move {
        let outcome = contain(task, &own, move |panicked| reports.borrow_mut().push(panicked.clone())).await;
        *slot.borrow_mut() = Some(outcome);
    };
    executor.spawn("contained", contained).unwrap();
    let counted = turns.clone();
    executor
        .spawn("beside", async move {
            for _ in 0..10 {
                counted.set(counted.get() + 1);
                yield_now().await;
            }
        })
        .unwrap();
    while executor.run_ready() > 0 {}
    assert_eq!((executor.task_count(), turns.get()), (0, 10));
    (ended.take().expect("the task has ended"), reported.take())
}

#[test]
fn a_value_is_returned_and_a_panic_is_a_value_too() {
    assert_eq!(run(async { 7 }), (Ok(7), vec![]));
    let index = core::hint::black_box(3);
    for (message, outcome) in [
        ("on purpose", run(async { panic!("on purpose") })),
        ("number 3", run(async move { panic!("number {index}") })),
        ("index out of bounds: the len is 3 but the index is 3", run(async move { _ = [1, 2, 3][index] })),
        ("a value that is no text", run(async { panic_any(5) })),
    ] {
        let panicked = outcome.0.unwrap_err();
        assert_eq!(panicked.message, message);
        let [file, line, _column] = panicked.place.split(':').collect::<Vec<_>>().try_into().unwrap();
        assert!(file.ends_with("lib/contain/tests/all/main.rs") || file == "tests/all/main.rs", "{panicked}");
        assert!(line.parse::<u32>().is_ok_and(|line| line > 40), "{panicked}");
        assert_eq!(outcome.1, [panicked]);
    }
}

#[test]
fn what_it_holds_is_free_again_and_what_it_changed_stays() {
    struct Dropped(Rc<Cell<u32>>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    let (locked, borrowed, drops) = (Rc::new(Mutex::new(1)), Rc::new(RefCell::new(1)), Rc::new(Cell::new(0)));
    let (lock, borrow, dropped) = (locked.clone(), borrowed.clone(), Dropped(drops.clone()));
    let (outcome, _) = run(async move {
        let _own = dropped;
        yield_now().await;
        let (mut number, mut other) = (lock.lock().await, borrow.borrow_mut());
        (*number, *other) = (2, 2);
        if drops_are_counted(&_own.0) {
            panic!("between two changes");
        }
        (*number, *other) = (3, 3);
    });
    fn drops_are_counted(drops: &Cell<u32>) -> bool {
        drops.get() == 0
    }
    assert_eq!(outcome.unwrap_err().message, "between two changes");
    assert_eq!((locked.try_lock().map(|number| *number), *borrowed.borrow()), (Some(2), 2));
    assert_eq!(drops.get(), 1);
}

/// What a task keeps beside its `async` block, as hand-written futures do, is dropped after the panic, and may panic then.
#[test]
fn a_destructor_after_the_panic_may_panic_too() {
    struct Rude(bool);
    impl Future for Rude {
        type Output = ();

        fn poll(self: core::pin::Pin<&mut Self>, _: &mut core::task::Context) -> core::task::Poll<()> {
            assert!(self.0, "at its poll");
            core::task::Poll::Ready(())
        }
    }
    impl Drop for Rude {
        fn drop(&mut self) {
            panic!("at its end");
        }
    }
    assert_eq!(run(Rude(false)).0.unwrap_err().message, "at its poll");
    assert_eq!(run(Rude(true)).0.unwrap_err().message, "at its end");
}

#[test]
fn other_panics_of_the_thread_are_not_taken_for_it() {
    let (outcome, _) = run(async {
        let caught = catch_unwind(AssertUnwindSafe(|| panic!("a first one")));
        assert!(caught.is_err());
        panic!("a second one")
    });
    let outcome: Result<(), Panicked> = outcome;
    assert_eq!(outcome.unwrap_err().message, "a second one");
    let (outcome, reported) = run(async {
        let caught = catch_unwind(AssertUnwindSafe(|| panic!("its own affair")));
        caught.is_err()
    });
    assert_eq!((outcome, reported), (Ok(true), vec![]));
}
