//! The api on a Linux process: the host's sockets, files or devices as disks, a thread of tasks for each core.
//!
//! A service becomes a process through [`main`]. What it does runs on the thread that called it, the first core, unless it
//! starts tasks on others; disk requests are carried out by a few threads, because Linux has no other way to wait for a
//! file that always works, and the console has a thread because a terminal may stop reading.
//!
//! ```text
//! service tasks ── executor ── reactor (epoll) ── sockets
//!                      │
//!                      ├── disk threads ── pread, pwrite, fdatasync
//!                      └── console thread ── standard output
//! ```
//! Cost: a ready socket is found by one `epoll_wait` for many, read by one `recv` into the caller's
//! memory and never registered twice (edge-triggered). A disk request costs two thread switches,
//! about 20 us.
#![deny(unsafe_code)]
// One core runs one executor, so the futures need not be `Send`, and the lint's reason is void.
#![allow(async_fn_in_trait)]

mod console;
mod cores;
mod disk;
mod files;
mod functions;
mod host;
mod log;
mod memory;
mod names;
mod net;
mod options;
mod platform;
mod reactor;
mod requests;
mod service;
mod signals;
mod spin;
mod stream;
#[allow(unsafe_code)]
mod sys;
mod trace;
mod vsock;
mod workers;

pub use cores::LinuxCore;
pub use disk::{Disk, DiskError};
pub use files::{HostFile, HostFiles};
pub use net::{HostListener, HostNet};
pub use options::{DiskOption, Options, OptionsError, ShareOption, parse_bytes};
pub use platform::{LinuxPlatform, StartError};
pub use service::main;
pub use stream::{HostReadHalf, HostStream, HostWriteHalf};
