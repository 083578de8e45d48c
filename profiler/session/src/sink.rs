//! Where the events of a session go.

use std::io;

use glass_profiler_core::event::Event;
use glass_profiler_core::model::Cost;
use glass_profiler_core::recorder::Progress;

/// Takes what a session collects, on a thread of its own: the guest is not waited for while it works, nor does it wait.
/// An error of any of its functions ends the session.
pub trait Sink: Send + 'static {
    /// What remains at the end.
    type Output: Send + 'static;

    /// Takes an event; events come in order of time.
    fn event(&mut self, event: Event) -> io::Result<()>;

    /// What it has counted so far. Called after each few dozen events.
    fn progress(&self) -> Progress;

    /// Takes note of the overhead so far, about once a second. Of `cost` only what the session itself counts is filled in:
    /// samples expected, lost and late, and CPU time.
    fn checkpoint(&mut self, _cost: &Cost) -> io::Result<()> {
        Ok(())
    }

    /// Ends; nothing comes any more. `cost` is as in [`checkpoint`](Sink::checkpoint); `end_ns` is the end of the
    /// session, `CLOCK_MONOTONIC` in nanoseconds.
    fn finish(self, cost: &Cost, end_ns: u64) -> io::Result<Self::Output>;
}
