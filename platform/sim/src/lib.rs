//! The traits of `api`, implemented by a deterministic simulation: the same seed gives the same run.
//!
//! A [`World`] has a clock that jumps to the next event, so code takes no simulated time; nodes
//! ([`Node`]) that implement [`glass_api::Platform`], a network between them that loses, delays,
//! repeats and reorders frames, vsock between them, and disks ([`SimBlock`]) that lose unflushed data when their
//! power is cut. All randomness is derived from the seed, so a failure can be
//! reproduced; each failure prints its seed.
//!
//! ```
//! use core::time::Duration;
//! use glass_api::{Listener, Net, Platform, Stream};
//! use glass_platform_sim::{NodeConfig, World};
//!
//! let mut world = World::new(7);
//! let server = world.node("server", NodeConfig::default());
//! let client = world.node("client", NodeConfig::default());
//!
//! let net = server.net();
//! server.run("server", async move {
//!     let mut listener = net.listen(80_u16).await.unwrap();
//!     let mut stream = listener.accept().await.unwrap();
//!     stream.write_all(b"hello").await.unwrap();
//!     stream.close().await.unwrap();
//! });
//!
//! let (net, remote) = (client.net(), server.endpoint(80));
//! let greeting = world.complete(&client, Duration::from_secs(30), async move {
//!     let mut stream = net.connect(remote).await.unwrap();
//!     let mut greeting = Vec::new();
//!     let mut buf = [0; 100];
//!     loop {
//!         match stream.read(&mut buf).await.unwrap() {
//!             0 => return greeting,
//!             count => greeting.extend_from_slice(&buf[..count]),
//!         }
//!     }
//! });
//! assert_eq!(greeting.unwrap(), b"hello");
//! ```
#![forbid(unsafe_code)]
// One core runs one executor, so the futures need not be `Send`, and the lint does not apply.
#![allow(async_fn_in_trait)]

pub mod certificates;
mod chance;
mod clock;
mod disk;
mod disk_memory;
mod files;
mod log;
mod network;
mod node;
mod trace;
mod vsock;
mod world;

pub use chance::{Chance, for_seeds};
pub use disk::{DiskConfig, DiskCounters, Faults, SimBlock};
pub use files::{SimFile, SimFiles};
pub use network::{LinkConfig, NetworkCounters};
pub use node::{Node, NodeConfig, SimCore};
pub use world::{SimError, SimFailure, World};
