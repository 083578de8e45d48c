//! A durable upload queue over HTTP: clients PUT files, consumers get them in order of completion.
//!
//! ```text
//! service ── routes ──┬─ upload ───┬─ store ── open      what is in the queue, commits
//!                     └─ download ─┘   ├───── changes     items, and changes that are not durable yet
//!                                      ├───── allocator   free blocks, and reservations
//!                                      └───── format      bytes on the disk
//! ```
//! [`serve`] is the service; [`Store`] is the queue without HTTP, over any [`glasshouse::Block`].
//! An upload is answered when it is durable: its data was flushed, then the index that names it was
//! written and flushed. `docs/formats/upload-queue.md` specifies the format; [`limits`] has
//! every bound.
//!
//! Copies per byte: one from the network into a chunk, which the disk writes from; one from the disk
//! into a chunk, which the network sends from. Each byte is also read once for its checksum.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod allocator;
mod changes;
mod config;
mod download;
mod error;
pub mod format;
mod inflight;
pub mod limits;
mod open;
mod pool;
mod routes;
mod service;
mod store;
mod telemetry;
mod upload;
mod watched;

pub use config::{Config, ConfigError};
pub use download::{ChunkRead, Download};
pub use error::{Health, OpenError, Recovery, StoreError};
pub use service::{ServeError, serve};
pub use store::{Store, Usage};
pub use upload::Upload;
