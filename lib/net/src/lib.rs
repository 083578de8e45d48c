//! TCP/IP for a service, over any device that moves Ethernet frames.
//!
//! Two halves share one state on one core:
//! * a platform owns the [`Stack`]: it gives it a [`smoltcp::phy::Device`], which [`FrameDevice`] makes of any [`Card`], calls
//!   [`Stack::poll`] and sleeps until [`Stack::next_deadline`];
//! * a service holds [`Sockets`], which implements [`glass_api::Net`], and the [`Listener`]s and
//!   [`Stream`]s that come from it.
//!
//! `lib/tcp` implements TCP, and smoltcp IP, ICMP, UDP and the clients of DHCP and DNS. This crate adds sockets that exist only while a
//! connection does (buffers are allocated when a handshake is done, not when a port is opened, and grow as they are needed), bounds on
//! connections and on handshakes, connections that outlive their [`Stream`] until
//! their data is delivered, peers that vanish, addresses by DHCP and from IPv6 routers, and host names by DNS.
//!
//! # Copies
//! A byte that is received is copied once from the frame into the socket's ring and once from there
//! into the reader's buffer; a byte that is sent, once into the ring and once into the frame. Nothing
//! else touches it, except the checksum where the device does not compute it. (The driver of a virtio card copies
//! a received frame once more, out of the device's reach.) Reads and writes allocate nothing.
//!
//! # The loop of a platform
//! ```text
//! loop {
//!     executor.fire_timers(now());
//!     stack.set_time(now());
//!     executor.run_ready();
//!     let progress = stack.poll(now());
//!     // here: one notify of the device for everything that was queued
//!     if !progress && !executor.has_ready() && !stack.has_work() {
//!         // arm the device's interrupt, poll once more, then
//!         // sleep until the earlier of executor.next_deadline() and stack.next_deadline(now())
//!     }
//! }
//! ```
#![no_std]
#![forbid(unsafe_code)]
// One core runs one executor, so the futures need not be `Send`, and the lint does not apply.
#![allow(async_fn_in_trait)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod arp;
mod autoconf;
mod card;
mod config;
mod connections;
mod datagrams;
mod dhcp;
mod discovery;
mod dns;
mod handshakes;
mod icmp;
mod ingress;
mod link;
mod listeners;
mod names;
mod neighbours;
mod numbers;
mod routes;
mod segment;
mod sockets;
mod stack;
mod state;
mod stream;
mod table;
mod trace;

pub use autoconf::Notice;
pub use card::{Card, CardLimits, CardTransmit, FrameDevice};
pub use config::{Address, Config, ConfigError, Congestion, Ipv6};
pub use smoltcp;
pub use sockets::{Datagrams, Listener, Sockets};
pub use stack::Stack;
pub use state::Counters;
pub use stream::{ReadHalf, Stream, WriteHalf};
