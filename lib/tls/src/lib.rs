//! TLS 1.3 (RFC 8446) over any [`glass_api::Split`] stream, on every platform: a [`Server`] or a [`Client`] makes a [`TlsStream`] of a
//! stream, which is a stream again.
//!
//! The protocol is rustls, the cryptography is ring (decision 51). Both are behind this crate's types: no type of theirs is in its
//! interface. Randomness and the time of day are the platform's, so a simulation's connections follow from its seed.
//!
//! Older versions of TLS are refused, and so is early data (0-RTT), which an attacker could repeat.
#![no_std]
#![forbid(unsafe_code)]
// One core runs one executor, so the futures need not be `Send`, and the lint does not apply.
#![allow(async_fn_in_trait)]

extern crate alloc;

mod agreement;
mod client;
mod credentials;
mod entropy;
mod error;
mod fixed_random;
mod provider;
mod resumption;
mod server;
mod session;
mod signing;
mod stream;

pub use client::{Client, ClientOptions};
pub use credentials::{Identity, Roots};
pub use error::TlsError;
pub use server::{Server, ServerOptions, TlsListener};
pub use stream::{TlsReadHalf, TlsStream, TlsWriteHalf};
