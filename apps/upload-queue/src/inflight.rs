//! Device requests in flight, in the order of their submission.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::future::poll_fn;
use core::pin::Pin;
use core::task::{Context, Poll};

/// A first-in first-out set of futures, all of which make progress whenever one is waited for.
pub(crate) struct InFlight<T> {
    requests: VecDeque<Request<T>>,
}

enum Request<T> {
    Running(Pin<Box<dyn Future<Output = T>>>),
    Done(T),
}

impl<T> InFlight<T> {
    pub(crate) fn new() -> InFlight<T> {
        InFlight { requests: VecDeque::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Starts `request`: it has been polled when this returns.
    pub(crate) async fn push(&mut self, request: impl Future<Output = T> + 'static) {
        self.requests.push_back(Request::Running(Box::pin(request)));
        poll_fn(|context| {
            self.poll_all(context);
            Poll::Ready(())
        })
        .await;
    }

    /// Waits for the oldest request; `None` when there is none.
    pub(crate) async fn pop(&mut self) -> Option<T> {
        poll_fn(|context| {
            self.poll_all(context);
            match self.requests.pop_front() {
                None => Poll::Ready(None),
                Some(Request::Done(value)) => Poll::Ready(Some(value)),
                Some(running) => {
                    self.requests.push_front(running);
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Never completes; lets the requests make progress beside something else.
    pub(crate) async fn drive(&mut self) {
        poll_fn(|context| {
            self.poll_all(context);
            Poll::Pending
        })
        .await
    }

    fn poll_all(&mut self, context: &mut Context) {
        for request in &mut self.requests {
            if let Request::Running(future) = request
                && let Poll::Ready(value) = future.as_mut().poll(context)
            {
                *request = Request::Done(value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use embassy_futures::{block_on, poll_once};
    use glasshouse::sync::Notify;

    #[test]
    fn results_come_in_order_whatever_finishes_first() {
        block_on(async {
            let (first, mut set) = (Notify::new(), InFlight::new());
            let notified = first.notified();
            set.push(async move {
                notified.await;
                1
            })
            .await;
            set.push(async { 2 }).await;
            assert!(poll_once(set.pop()).is_pending());
            assert!(poll_once(set.drive()).is_pending());
            first.notify_all();
            assert_eq!((set.pop().await, set.pop().await, set.pop().await), (Some(1), Some(2), None));
        });
    }
}
