//! What the front ends of Xen's devices are made of, over two seams: pages that another domain reaches ([`Frames`]) and
//! notifications ([`Events`]).
//!
//! Nothing here makes a hypercall, blocks, or reads a clock: a platform provides pages and event channels, and calls `poll` when an
//! event came or a deadline has passed. [`FrontRing`] carries requests and responses of fixed size, [`Grants`] lends pages to another domain,
//! [`Store`] is the client of xenstore, [`Console`] the console.
//!
//! The other side may be wrong or hostile. Indices that it writes are copied once and checked against a copy of our own, which it cannot
//! reach; it is a [`BackendViolation`], after which nothing of the ring is used. Only `page.rs` touches memory through pointers.
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod blk;
#[cfg(test)]
mod blk_tests;
mod blk_wire;
mod bus;
mod byte_ring;
mod console;
mod error;
mod grants;
mod net;
#[cfg(test)]
mod net_tests;
mod net_wire;
mod page;
mod ring;
mod store;
#[cfg(test)]
mod store_tests;
mod wire;

/// Devices whose back end a test is, without xenstore.
#[cfg(any(test, feature = "fake"))]
pub mod fake {
    pub use crate::blk::without_bus as blk;
    pub use crate::net::without_bus as net;
    pub use crate::page::SmallNumbers;
}

pub use blk::{Blk, BlkFeatures, BlkLimits};
pub use bus::{BusError, Device, State};
pub use console::Console;
pub use error::BackendViolation;
pub use grants::{Access, Domain, Grant, Grants};
pub use net::{Net, NetOffers, Transmit};
pub use page::{Frames, IdentityFrames, PAGE_BYTES, SharedPages};
pub use ring::{FrontRing, Full, RING_HEADER_BYTES};
pub use store::{Store, StoreError, Transaction, Watch};

/// Notifies the other end of an event channel.
pub trait Events {
    /// Sends an event through our port `port`, and returns at once (`EVTCHNOP_send`).
    fn notify(&self, port: u32);
}
