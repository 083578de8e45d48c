//! Streams and messages between a VM and its host: the connections of virtio-vsock (virtio 1.2, section 5.10), over whatever moves packets.
//!
//! [`Stack`] is the state of all connections, without a device, a clock or tasks:
//! * a driver hands it each packet that was received ([`Stack::receive`]) and takes the packets to send
//!   ([`Stack::next_packet`]);
//! * a service's streams and listeners call its `poll_` functions.
//!
//! [`Sockets`] is a stack that a driver and the service share, and [`Joined`] a machine's whole network, TCP/IP and vsock.
//!
//! # Copies
//! A received packet stays in the device's buffer until it is read, so its bytes are copied once, into the reader's memory, and not at
//! all by [`Stack::poll_read_buf`]. Small packets are the exception: they are copied out at once, because a peer that sends
//! single bytes would otherwise hold a whole device buffer with each. A byte that is written is copied once, into the packet.
//!
//! # Credit
//! Each side grants the other a window of [`Config::buffer_bytes`] for each connection; both count all bytes ever sent and consumed,
//! modulo 2^32 (section 5.10.6.3). A peer that sends more than it was granted is reset.
//!
//! # Messages
//! Connections of messages (SEQPACKET) differ in this: a packet's flag ends a message, a message is sent once the peer has room for all of
//! it, and each message that was read grants its bytes at once. A peer that sends a message longer than the window is reset, and so is one
//! with more messages that wait than the window has words.
#![no_std]
#![forbid(unsafe_code)]
// One core runs one executor, so the futures need not be `Send`, and the lint does not apply.
#![allow(async_fn_in_trait)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod config;
mod connection;
mod header;
mod joined;
mod messages;
#[cfg(test)]
mod messages_tests;
mod received;
mod sockets;
mod stack;
#[cfg(test)]
mod stack_tests;
mod stream;
mod trace;

pub use config::Config;
pub use header::{Ends, HEADER_BYTES, Header, Operation, Type};
pub use joined::{Either, Joined};
pub use messages::{MessageListener, Messages};
pub use sockets::{Listener, Sockets};
pub use stack::{ConnectionId, Counters, ListenerId, Packet, Stack};
pub use stream::{ReadHalf, Stream, WriteHalf};
