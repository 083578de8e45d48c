//! The traits that a Glasshouse service is written against.
//!
//! A service is one async function over an `impl` [`Platform`]. The same function runs as a Linux
//! process, as a virtual machine and in a simulation; it contains no code for one of them. A task stays on
//! its core: futures are never sent between threads, so no trait requires `Send`. [`Cores`] starts tasks on other cores.
//!
//! A future is called *cancel safe* if it can be dropped before it completes, in a `select` for example, without losing
//! data or events.
//!
//! Start with [`Platform`], then the concept you need: [`Block`], [`Files`], [`Net`], [`Clock`], [`Console`],
//! [`Random`], [`Spawn`]. Memory that a device may touch is a [`Buf`].
#![no_std]
#![forbid(unsafe_code)]
// One core runs one executor, so the futures need not be `Send`, and the lint's reason is void.
#![allow(async_fn_in_trait)]

extern crate alloc;

mod address;
mod block;
mod buf;
mod clock;
mod cores;
mod files;
mod net;
mod platform;
mod spawn;
mod wall;

pub use address::{Address, Machine, NotAPort, Port, VsockAddress};
pub use block::{Block, BlockError, BlockInfo, check_change, check_request, write_zeroes_as_bytes};
pub use buf::{Buf, OutOfMemory, zeroed_bytes};
pub use clock::{Clock, Instant, TimedOut};
pub use cores::{CoreHandle, Cores, SpawnOnError};
pub use files::{
    DirectoryEntry, ENTRIES_MAX, File, FileError, FileKind, Files, Metadata, NAME_BYTES_MAX, Open, PATH_BYTES_MAX,
    check_path, path_names,
};
pub use net::{
    Datagrams, Listener, MessageListener, Messages, Net, NetError, NetInfo, ReadHalf, Split, Stream, WriteHalf,
    check_host_name,
};
pub use platform::{Console, MemoryUse, Platform, Random};
pub use spawn::{Cancelled, JoinHandle, JoinTask, Panicked, Spawn, SpawnError};
pub use wall::{HttpDate, WallSource, WallTime};
