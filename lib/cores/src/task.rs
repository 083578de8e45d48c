//! A task that one core starts on another, and its handle.

use crate::end::End;
use crate::sys::{AtomicBool, Once, Ordering, WakerCell};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::pin::Pin;
use core::task::{Context, Poll};
use glass_api::{Cancelled, CoreHandle, JoinTask, Spawn};
use glass_lib_trace::{BlockKind, Name, block};
use pin_project_lite::pin_project;

static END: Name = Name::new("end of a task on another core");

/// What a core does for another one, with its own handle.
pub(crate) type Message<C> = Box<dyn FnOnce(&C) + Send>;

/// What a task shares with its handle.
struct Shared<T> {
    value: Once<T>,
    /// The task is dropped, and its value is in its place if it had one.
    end: End,
    is_cancelled: AtomicBool,
    /// The task, for a wake-up when it is cancelled.
    task: WakerCell,
}

/// The message that starts a task, and the task's handle.
pub(crate) fn start<C, T, F>(
    name: &'static str,
    start: impl FnOnce(C) -> F + Send + 'static,
) -> (Message<C>, CoreHandle<T>)
where
    C: Spawn + Clone + 'static,
    T: Send + 'static,
    F: Future<Output = T> + 'static,
{
    let shared = Arc::new(Shared {
        value: Once::new(),
        end: End::new(),
        is_cancelled: AtomicBool::new(false),
        task: WakerCell::new(),
    });
    let reporter = Reporter(shared.clone());
    let message = move |core: &C| {
        let own = core.clone();
        let future = async move { start(own).await };
        // One that is refused is dropped, which ends it.
        let _ = core.spawn(name, Remote { future, is_registered: false, reporter });
    };
    (Box::new(message), CoreHandle::new(shared))
}

impl<T> JoinTask<T> for Shared<T> {
    fn poll_join(&self, context: &mut Context) -> Poll<Result<T, Cancelled>> {
        if !self.end.is_reported_to(context.waker()) {
            block(BlockKind::Notify, &END, 0);
            return Poll::Pending;
        }
        Poll::Ready(self.value.take().ok_or(Cancelled))
    }

    fn cancel(&self) {
        // Relaxed: the fences of the cell order it.
        self.is_cancelled.store(true, Ordering::Relaxed);
        self.task.wake();
    }

    fn is_finished(&self) -> bool {
        self.end.is_reported()
    }
}

pin_project! {
    /// The task's future on its core.
    struct Remote<F: Future> {
        #[pin]
        future: F,
        is_registered: bool,
        reporter: Reporter<F::Output>,
    }
}

impl<F: Future> Future for Remote<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context) -> Poll<()> {
        let this = self.project();
        let shared = &this.reporter.0;
        // Once: a task has one waker.
        if !core::mem::replace(this.is_registered, true) {
            shared.task.register(context.waker());
        }
        if shared.is_cancelled.load(Ordering::Relaxed) {
            return Poll::Ready(());
        }
        this.future.poll(context).map(|value| shared.value.put(value))
    }
}

/// Reports the end of the task when it is dropped, which is after its future was.
struct Reporter<T>(Arc<Shared<T>>);

impl<T> Drop for Reporter<T> {
    fn drop(&mut self) {
        self.0.end.report();
    }
}
