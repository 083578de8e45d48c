//! A queue of items in NATS JetStream, which several programs share: chunks of data in one stream, the state of each item in another.
//!
//! ```text
//! Engine ──┬─ upload, download   chunks of items
//!          ├─ change             a state replaces exactly the one that was seen: leases with fencing, removals
//!          ├─ mirror             what the stream of items has, in memory, in order
//!          ├─ follow             keeps the mirror, from the connection's start to its end
//!          ├─ sweep              removes what interrupted uploads and removals left
//!          └─ link, setup        requests to the server; the streams
//! ```
//! `docs/formats/upload-queue-jetstream.md` has the subjects and the states. What was answered is as durable as the server makes it: it has
//! to have `sync_interval: always`, or three replicas.
//!
//! The client of NATS runs on one thread of its own; the futures of [`Engine`] may be awaited by any executor.
#![forbid(unsafe_code)]

mod address;
mod change;
mod download;
mod engine;
mod error;
mod follow;
mod link;
mod mirror;
mod record;
mod setup;
mod sweep;
mod upload;

pub use address::{Address, AddressError};
pub use change::{Lease, LeaseError};
pub use download::Download;
pub use engine::Engine;
pub use error::EngineError;
pub use mirror::{Changed, Item, Place};
pub use upload::Upload;
