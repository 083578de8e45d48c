//! The loop that records a guest: what `glass record`, `trace` and `top` have in common.
//!
//! [`target::open`] finds a guest and chooses a way to sample it. A [`Session`] collects what the guest's [`Sources`]
//! deliver, for as long as it is to last, and passes it on to a [`Sink`], which works on a thread of its own:
//! [`Recording`] writes a file, the table of `glass top` is another. What the user sees meanwhile is up to the caller,
//! which gets a [`Status`] ten times a second.
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
