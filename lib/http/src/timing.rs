//! Deadlines for futures, which cost nothing if the future is ready immediately.

use crate::{HttpError, Limits};
use core::future::poll_fn;
use core::pin::pin;
use core::task::Poll;
use core::time::Duration;
use glass_api::{Clock, Instant, NetError};

/// Runs `future` until `deadline`; `None` when that passed first. The clock is read and the timer
/// created only when the future has to wait: only then is `deadline` called.
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
    // The future has just returned pending. Polling it again immediately would undo its yielding to others.
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

/// Checks the progress of one direction of a connection: a minimum of bytes in each window of time
/// spent waiting.
#[derive(Default)]
pub(crate) struct Progress {
    waited: Duration,
    bytes: u64,
}

impl Progress {
    /// Starts again for a new body.
    pub(crate) fn restart(&mut self) {
        *self = Progress::default();
    }

    /// Waits for `transfer`, which returns how many bytes it transferred.
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
