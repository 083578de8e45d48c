//! TCP: one connection as a state machine (RFC 9293), without I/O, without a clock and without randomness.
//!
//! Segments and the time go in; segments and a deadline come out. The owner parses headers with [`Segment::parse`], finds the
//! [`Connection`] or the [`HalfOpen`] handshake, and gives it the segment. Then, and whenever it has read, written or slept until
//! [`Connection::next_deadline`], it calls [`Connection::poll_transmit`] until that returns `None`, and for each segment writes
//! the header and copies [`Connection::payload`] behind it: a byte is copied once from the buffer into the frame.
//!
//! # Parts
//! * `wire.rs`: headers and options; `number.rs`: sequence numbers as positions that do not wrap;
//! * `connection.rs`, `incoming.rs`, `outgoing.rs`, `half_open.rs`: the states;
//! * `receiver.rs`, `holes.rs`: what has arrived; `ring.rs`: buffers that grow as they are needed;
//! * `sender.rs`, `transmit.rs`: what is sent; `scoreboard.rs`, `rack.rs`, `recovery.rs`, `prr.rs`, `rtt.rs`, `path_mtu.rs`: what is lost and retransmitted;
//! * `congestion`, `rate.rs`, `pacing.rs`: how much and how fast.
//!
//! # Limits
//! 1024 ranges out of order, 4096 ranges in flight, buffers of the sizes in [`Settings`].
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod congestion;
mod connection;
mod demand;
mod half_open;
mod holes;
mod incoming;
mod number;
mod outgoing;
mod pacing;
mod path_mtu;
mod prr;
mod rack;
mod rate;
mod receiver;
mod recovery;
mod ring;
mod rtt;
mod scoreboard;
mod sender;
mod transmit;
pub mod wire;

pub use connection::{Connection, End, Settings, State};
pub use half_open::{HalfOpen, Reply};
pub use number::initial_number;
pub use outgoing::Transmit;
pub use wire::{Header, Segment};
