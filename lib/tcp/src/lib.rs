//! TCP: one connection as a state machine (RFC 9293), without I/O, without a clock and without randomness.
//!
//! Segments and the time go in; segments and a deadline come out.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod congestion;
