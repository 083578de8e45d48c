//! A durable upload queue over HTTP: clients PUT files, consumers get them in order of completion.
//!
//! ```text
//! service ── routes ──┬─ put ───── upload ───┬─ store ── open      what is in the queue
//!                     ├─ resume ── session ──┤   ├───── commit      groups of changes become durable
//!                     │                      │   ├───── journal     the log, and the pages that are written behind it
//!                     │                      │   ├───── changes     changes that are not durable yet
//!                     │                      │   ├───── index       what it has
//!                     ├─ get ───── download ─┤   ├───── allocator   free blocks, and reservations
//!                     └─ consume ─ leases    │   └───── format      bytes on the disk
//!                                 resumable ─┘
//! ```
//! `items` stands between requests and where the items are: this disk, or `engine`, which several queues share (decision 71).
//! `access` decides who may do what, by `tokens`; `account` counts what uploaders have and send; `tls` has the streams of connections;
//! `scrub` reads items that wait again. `log` writes a line for each request; `cors` lets pages of other origins in; `settings` reads `config`, also again.
//!
//! [`serve`] is the service; [`Store`] is the queue without HTTP, over any [`glasshouse::Block`].
//! An upload is answered when it is durable: its data was flushed, then the log of the index with its entry was
//! written and flushed. `docs/formats/upload-queue.md` specifies the format; [`limits`] has
//! every bound.
//!
//! Copies per byte: one from the network into a chunk, which the disk writes from; one from the disk
//! into a chunk, which the network sends from. Each byte is also read once for its checksum.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod access;
mod account;
mod allocator;
mod append;
mod boxed;
mod changes;
mod commit;
mod config;
mod consume;
mod cors;
mod digest;
mod download;
#[cfg_attr(any(glass_vm, not(target_arch = "x86_64")), path = "no_engine.rs")]
mod engine;
mod error;
mod get;
mod health;
mod index;
mod inflight;
mod items;
mod journal;
mod json;
mod leases;
pub mod limits;
mod log;
mod metrics;
mod open;
mod operator;
mod pool;
mod problem;
mod put;
mod range;
mod recover;
mod reload;
mod resumable;
mod resume;
mod routes;
mod scrub;
mod service;
mod session;
mod settings;
mod status;
mod store;
mod telemetry;
#[cfg_attr(not(target_arch = "x86_64"), path = "no_tls.rs")]
mod tls;
mod tokens;
mod upload;
mod watched;

pub use config::{Config, ConfigError};
pub use digest::{Algorithm, Digests};
pub use download::{ChunkRead, Download};
pub use error::{Health, OpenError, Recovery, StoreError};
pub use glass_formats_queue as format;
pub use resumable::Resumable;
pub use service::{ServeError, serve};
pub use store::{Store, Usage};
pub use upload::Upload;
