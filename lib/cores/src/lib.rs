//! What crosses from one core to another: values, closures, wake-ups, and memory on its way home.
//!
//! | type | for |
//! |---|---|
//! | [`channel`] | values from one task to one on another core, in order |
//! | [`Mailboxes`] | the inboxes of a machine's cores, by which a platform implements [`glass_api::Cores`] |
//! | [`List`] | what many cores push and one takes: inboxes, and freed memory |
//!
//! Nothing here blocks or takes a lock. The unsafe code is in `sys`; `tests/ring.rs` runs all of it under loom
//! ([decision 19](../../../docs/decisions/0019-cores.md)).
#![no_std]
#![deny(unsafe_code)]
// A task stays on its core, so its future need not be `Send`, and the lint does not apply.
#![allow(async_fn_in_trait)]

extern crate alloc;

mod channel;
mod end;
#[cfg(not(loom))]
mod forward;
#[cfg(not(loom))]
mod mailboxes;
#[allow(unsafe_code)]
mod sys;
#[cfg(not(loom))]
mod task;
mod wait;

pub use channel::{Receiver, Sender, channel, channel_named};
pub use end::End;
/// For [`forward_to_core`].
#[doc(hidden)]
#[cfg(not(loom))]
pub use glass_api as api;
#[cfg(not(loom))]
pub use mailboxes::{Mailboxes, WAITING_MAX};
pub use sys::{Full, Inbox, Link, List, Once, WakerCell};
