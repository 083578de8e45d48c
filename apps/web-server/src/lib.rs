//! A static web server: the files of a directory over HTTP, over TCP and vsock.
//!
//! ```text
//! service ── site ──┬─ path          which file a URL names
//!                   ├─ conditional   entity tags, dates and ranges of a request
//!                   ├─ media_type    the type of a file, and whether it may be compressed
//!                   ├─ listing       the page of a directory
//!                   ├─ cache         files in bounded memory
//!                   └─ body          a file to a client, in pieces
//! ```
//! A response is one version of a file. One that was replaced by rename, or removed, is sent to its end from the open file. A file that is
//! changed in place while it is sent ends the connection with a reset, because its entity tag would name another content; one that has changed moments ago has no entity tag, as it may change again without a new time.
//!
//! Memory is bounded: [`limits`] has the numbers.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod body;
mod cache;
mod conditional;
mod config;
pub mod limits;
mod listing;
mod media_type;
mod path;
mod service;
mod site;

pub use config::{Config, ConfigError};
pub use service::{ServeError, serve};
