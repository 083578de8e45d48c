//! A future whose panic is a value, for the platforms of the host: where the standard library unwinds. A VM has none of it
//! (decision 59).
#![forbid(unsafe_code)]

mod place;

use core::any::Any;
use core::pin::Pin;
use core::task::{Context, Poll};
use glass_api::Panicked;
use glass_lib_executor::Executor;
use glass_lib_trace::Counter;
use pin_project_lite::pin_project;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tracing::warn;

/// Panics that ended a part of the service, and not the whole.
static CONTAINED: Counter = Counter::new("panics contained");

pin_project! {
    /// A future and, once it has panicked, its panic. What is left of it is dropped before its value is returned.
    pub struct Contained<F, R> {
        #[pin]
        future: Option<F>,
        executor: Executor,
        report: R,
    }
}

/// Completes with the value of `future`, or with its panic, of which the hook for panics has printed message and place by then. `executor` polls it.
/// `report` is called for the panic.
///
/// With `panic = "abort"` a panic ends the process, as ever.
pub fn contain<F: Future, R: Fn(&Panicked)>(future: F, executor: &Executor, report: R) -> Contained<F, R> {
    place::watch();
    Contained { future: Some(future), executor: executor.clone(), report }
}

impl<F: Future, R: Fn(&Panicked)> Future for Contained<F, R> {
    type Output = Result<F::Output, Panicked>;

    fn poll(self: Pin<&mut Self>, context: &mut Context) -> Poll<Self::Output> {
        let mut this = self.project();
        let future = &mut this.future;
        // What a panic leaves half changed outside of the future is the caller's to judge; as `Spawn::contain` documents.
        let polled = catch_unwind(AssertUnwindSafe(|| {
            let polled = future.as_mut().as_pin_mut().expect("a future is not polled after its end").poll(context);
            if polled.is_ready() {
                future.set(None);
            }
            polled.map(Ok)
        }));
        polled.unwrap_or_else(|payload| {
            let panicked = Panicked { message: message(&*payload), place: place::last() };
            CONTAINED.add(1);
            let task = this.executor.current_task().unwrap_or("none");
            warn!(target: "panic", "the task {task} has panicked at {}; the service continues", panicked.place);
            (this.report)(&panicked);
            // Its destructors may panic too.
            if catch_unwind(AssertUnwindSafe(|| this.future.set(None))).is_err() {
                warn!(target: "panic", "what the task {task} left has panicked at {}", place::last());
            }
            Poll::Ready(Err(panicked))
        })
    }
}

/// The text that a panic was given.
fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref().cloned()).unwrap_or_else(|| "a value that is no text".to_owned())
}
