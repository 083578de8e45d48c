//! Durable ordered maps and logs on a [`Block`](glass_api::Block): what was answered survives a power cut.
//!
//! A [`Store`] has the whole disk. In it are up to seven named [`Map`]s and [`Log`]s. Changes that belong together are a [`Batch`],
//! which is stored completely or not at all; batches that wait at the same time share one flush. A [`Snapshot`] sees one
//! state while others change the store. Every page has a checksum, so damage is reported, never returned as data.
//!
//! ```
//! use glass_lib_store::{Batch, Options, Store, StoreError};
//! # use glass_api::{Block, Spawn};
//!
//! # async fn example(disk: impl Block, platform: impl Spawn) -> Result<(), Box<dyn core::error::Error>> {
//! let (store, recovery) = Store::open(disk, &platform, Options::default()).await?;
//! println!("{recovery}");
//! let (links, visits) = (store.map("links")?, store.log("visits")?);
//! links.put(b"glass", b"https://example.org/").await?;
//! assert_eq!(links.get(b"glass").await?.as_deref(), Some(&b"https://example.org/"[..]));
//!
//! // Both or neither, with one flush.
//! let mut batch = Batch::new();
//! batch.insert(&links, b"house", b"https://example.com/");
//! batch.append(&visits, b"house was made");
//! match store.commit(batch).await {
//!     Ok(_) => println!("house is stored"),
//!     Err(StoreError::Refused) => println!("house was there before"),
//!     Err(error) => return Err(error.into()),
//! }
//!
//! let mut scan = links.prefix(b"g");
//! while let Some((key, value)) = scan.next().await? {
//!     println!("{} bytes at {key:?}", value.len());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The format on the disk is `docs/formats/store.md`; why it is a copy-on-write tree of ours is decision 52. Memory: the cache
//! of [`Options::cache_bytes`], a bit for each 4096 bytes of the disk, and the batches that wait.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
// One core runs one executor, so the futures need not be `Send`, and the lint does not apply.
#![allow(async_fn_in_trait)]

extern crate alloc;

mod batch;
mod commit;
mod error;
mod format;
mod open;
mod page;
mod pages;
mod rewrite;
mod scan;
mod space;
mod store;
mod value;
mod walk;

pub use batch::{Batch, Refused};
pub use error::{Dropped, OpenError, Recovery, StoreError};
pub use format::{KEY_BYTES_MAX, NAME_BYTES_MAX, TREES_MAX};
pub use scan::{LogScan, Scan};
pub use store::{BATCH_BYTES_MAX, Committed, Log, Map, Options, Snapshot, Store, Usage, VALUE_BYTES_MAX};
