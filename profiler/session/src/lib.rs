//! The loop that records a guest: what `glass record`, `trace` and `top` have in common.
//!
//! [`target::open`] finds a guest and chooses a way to sample it. A [`Session`] collects what the guest's [`Sources`]
//! deliver, for as long as it is to last, and passes it on to a [`Sink`], which works on a thread of its own:
//! [`Recording`] writes a file, the table of `glass top` is another. What the user sees meanwhile is up to the caller,
//! which gets a [`Status`] ten times a second.
//!
//! [`Session::announce`] collects what the sources have at their start; an error until then costs no earlier recording.
//! [`Session::start`] starts the sink's thread and the one that reads the guest's trace. [`Running::run`] collects until the
//! duration has passed, the guest ends, the sink fails or the caller requests the end; then it detaches. [`Ended::finish`] has the
//! sink write its end, which can be slow and is therefore apart: the guest runs without a profiler by then.
#![forbid(unsafe_code)]

mod feed;
mod queue;
mod recording;
mod session;
mod sink;
pub mod target;
mod tracer;

pub use feed::Feed;
pub use recording::{Recording, Written};
pub use session::{End, Ended, Outcome, Running, Session, Sources, Status, TraceStatus, Wish};
pub use sink::Sink;
pub use tracer::Tracing;
