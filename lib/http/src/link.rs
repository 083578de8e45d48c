//! A stream that must make progress.

use crate::timing::{Progress, before};
use crate::{HttpError, Limits};
use core::future::poll_fn;
use core::pin::pin;
use core::task::Poll;
use core::time::Duration;
use glass_api::{Clock, Instant, NetError, Stream};

pub(crate) struct Link<S, C> {
    pub(crate) stream: S,
    pub(crate) clock: C,
    pub(crate) limits: Limits,
    reading: Progress,
    writing: Progress,
    /// The peer sends nothing more.
    pub(crate) peer_ended: bool,
    /// Nothing more can be sent.
    pub(crate) broken: bool,
}

impl<S: Stream, C: Clock> Link<S, C> {
    pub(crate) fn new(stream: S, clock: C, limits: Limits) -> Link<S, C> {
        let (reading, writing) = (Progress::default(), Progress::default());
        Link { stream, clock, limits, reading, writing, peer_ended: false, broken: false }
    }

    /// The time of day since 1970, if the platform has it.
    pub(crate) fn since_epoch(&self) -> Option<Duration> {
        self.clock.wall().map(|wall| wall.since_epoch)
    }

    /// A new request's body starts.
    pub(crate) fn restart_reading(&mut self) {
        self.reading.restart();
    }

    /// A new response starts.
    pub(crate) fn restart_writing(&mut self) {
        self.writing.restart();
    }

    /// Reads some bytes, 0 when the peer has ended its half, while the peer makes progress.
    pub(crate) async fn receive(&mut self, buf: &mut [u8]) -> Result<usize, HttpError> {
        let read = self.reading.watch(&self.clock, &self.limits, self.stream.read(buf)).await;
        if matches!(read, Err(HttpError::Net(_))) {
            self.broken = true;
        }
        read
    }

    /// Reads some bytes before a deadline, `None` if it passed first. A connection that breaks looks
    /// like one that ends.
    pub(crate) async fn receive_before(
        &mut self,
        buf: &mut [u8],
        deadline: impl FnOnce(Instant) -> Instant,
    ) -> Option<usize> {
        let read = before(&self.clock, deadline, self.stream.read(buf)).await?;
        Some(self.noted(read))
    }

    /// Reads some bytes, however long it takes. A connection that breaks looks like one that ends.
    pub(crate) async fn receive_sometime(&mut self, buf: &mut [u8]) -> usize {
        let read = self.stream.read(buf).await;
        self.noted(read)
    }

    /// Remembers the end that was read, if it was one.
    fn noted(&mut self, read: Result<usize, NetError>) -> usize {
        match read {
            Ok(0) => self.peer_ended = true,
            Ok(count) => return count,
            Err(_) => self.broken = true,
        }
        0
    }

    /// Reads bytes that have arrived; 0 if there are none, or when the connection ends or breaks, which is not
    /// remembered.
    pub(crate) async fn receive_now(&mut self, buf: &mut [u8]) -> usize {
        let mut read = pin!(self.stream.read(buf));
        let polled = poll_fn(|context| Poll::Ready(read.as_mut().poll(context))).await;
        let Poll::Ready(read) = polled else { return 0 };
        read.unwrap_or(0)
    }

    /// Whether the peer has neither sent anything nor ended.
    pub(crate) async fn is_quiet(&mut self) -> bool {
        let mut byte = [0];
        let mut read = pin!(self.stream.read(&mut byte));
        poll_fn(|context| Poll::Ready(read.as_mut().poll(context).is_pending())).await
    }

    /// Queues some bytes while the peer makes progress.
    pub(crate) async fn send(&mut self, data: &[u8]) -> Result<usize, HttpError> {
        let sent = self.writing.watch(&self.clock, &self.limits, self.stream.write(data)).await;
        if sent.is_err() {
            self.broken = true;
        }
        sent
    }

    /// Ends our half; false when that did not work before the deadline.
    pub(crate) async fn close(&mut self, deadline: impl FnOnce(Instant) -> Instant) -> bool {
        matches!(before(&self.clock, deadline, self.stream.close()).await, Some(Ok(())))
    }
}
