//! An agent for a host of VMs: it finds them, has each recorded by a process of its own, keeps the recordings of the last hours in bounded space,
//! shows them on a local page, counts for Prometheus, and sends profiles to Pyroscope and Parca (decision 56).
//!
//! ```text
//! agent ──► watch      VMs that start and end, and the recorder of each
//!   │  └──► segments   finished recordings in a folder of bounded size
//!   │         └──► spool ──► sink      profiles that are to be sent, and their engines
//!   └─────► server ──► page, metrics
//! ```
#![forbid(unsafe_code)]

mod agent;
mod budget;
mod config;
mod glass;
mod metrics;
mod page;
mod segments;
mod server;
mod sink;
mod spool;
mod state;
mod watch;

pub use agent::run;
pub use config::{Config, Names, SinkConfig, SinkKind};
