//! A durable upload queue over HTTP: clients PUT files, a consumer takes them in order of completion.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod allocator;
mod config;
mod download;
mod error;
pub mod format;
mod inflight;
pub mod limits;
mod places;
mod pool;
mod routes;
mod service;
mod store;
mod upload;

pub use config::{Config, ConfigError};
pub use download::{ChunkRead, Download};
pub use error::{OpenError, Recovery, StoreError};
pub use service::{ServeError, serve};
pub use store::{Store, Usage};
pub use upload::Upload;
