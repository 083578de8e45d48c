//! A task whose panic is not caught, where nothing unwinds.

use core::pin::Pin;
use core::task::{Context, Poll};
use glass_api::Panicked;
use pin_project_lite::pin_project;

pin_project! {
    /// [`Spawn::contain`](glass_api::Spawn::contain) of a platform on which a panic ends the service. An `async` block would have a second
    /// place for the future.
    pub struct Uncontained<F> {
        #[pin]
        future: F,
    }
}

impl<F> Uncontained<F> {
    /// Completes with what `future` does.
    pub fn new(future: F) -> Uncontained<F> {
        Uncontained { future }
    }
}

impl<F: Future> Future for Uncontained<F> {
    type Output = Result<F::Output, Panicked>;

    fn poll(self: Pin<&mut Self>, context: &mut Context) -> Poll<Self::Output> {
        self.project().future.poll(context).map(Ok)
    }
}
