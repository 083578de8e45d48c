//! Deadlines for futures, which cost nothing while the future is ready at once.

use crate::{HttpError, Limits};
use core::future::poll_fn;
use core::pin::pin;
use core::task::Poll;
use core::time::Duration;
use glass_api::{Clock, Instant, NetError};

/// Runs `future` until `deadline`; `None` when that came first. Neither the clock is read nor a
/// timer made before the future has to wait: `deadline` is asked for the moment then.
pub(crate) async fn before<F: Future>(
    clock: &impl Clock,
    deadline: impl FnOnce(Instant) -> Instant,
    future: F,
) -> Option<F::Output> {
    let mut future = pin!(future);
    if let Poll::Ready(output) = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await {
        return Some(output);
    }
    let mut sleep = pin!(clock.sleep_until(deadline(clock.now())));
    // The future has just said that it waits. Asking again at once would undo its yielding to others.
    let mut asked = true;
    poll_fn(|context| {
        if !core::mem::take(&mut asked)
            && let Poll::Ready(output) = future.as_mut().poll(context)
        {
            return Poll::Ready(Some(output));
        }
        sleep.as_mut().poll(context).map(|()| None)
    })
    .await
}

/// Watches that one direction of a connection moves: in each window of time that was spent
/// waiting, a minimum of bytes.
#[derive(Default)]
pub(crate) struct Progress {
    waited: Duration,
    bytes: u64,
}

impl Progress {
    /// Forgets the past: a new body begins.
    pub(crate) fn restart(&mut self) {
        *self = Progress::default();
    }

    /// Waits for `transfer`, which tells how many bytes it moved.
    pub(crate) async fn watch(
        &mut self,
        clock: &impl Clock,
        limits: &Limits,
        transfer: impl Future<Output = Result<usize, NetError>>,
    ) -> Result<usize, HttpError> {
        let left = limits.progress_window.saturating_sub(self.waited);
        let mut began = None;
        let outcome = before(
            clock,
            |now| {
                began = Some(now);
                now + left
            },
            transfer,
        )
        .await;
        let stalled = HttpError::Stalled { bytes_min: limits.progress_bytes_min, window: limits.progress_window };
        let moved = outcome.ok_or(stalled)??;
        self.bytes = self.bytes.saturating_add(moved as u64);
        if self.bytes >= limits.progress_bytes_min {
            self.restart();
        } else if let Some(began) = began {
            self.waited += clock.now() - began;
        }
        Ok(moved)
    }
}
