//! HTTP/1.1 over any [`glass_api::Stream`]: a server's connection, and a client in [`client`]. The *head* of a message is its first line and its header fields.
//!
//! [`Connection::next_request`] reads a head, the service reads the body with
//! [`Connection::read_body`] straight into its own memory, answers with [`Connection::respond`] or
//! [`Connection::start`] and [`Connection::write_body`], and reads the next request.
//! [`Connection::serve`] is that loop with every error answered.
//!
//! The folder `framing` has the bytes of messages, without I/O and time; `wire.rs` and `link.rs` move them over a stream that must make progress;
//! `server` and [`client`] are the two ends.
//!
//! The head of a request is limited in size, number of fields and time; a body must make progress ([`Limits`]). The length of
//! a body is not limited: check it before you read. A response whose length is unknown is streamed ([`Connection::start_streamed`]), also
//! as server-sent events ([`Connection::start_events`]). Upgrades are not supported. Unusual
//! but legal requests are accepted; requests that two parsers might read differently are refused.
//!
//! A response that is not finished, because the service has failed or its client is too slow, ends in a reset: no client takes it for whole.
//!
//! A service that strangers can reach bounds its connections by [`Connections`], which also accepts them, and what costs it memory by
//! [`Slots`]: clients that do nothing, or are slow while others wait, make room.
//!
//! A service that is part of a trace across services has its place in it from a request, and passes it on with its own ([`TraceContext`]).
//!
//! Copies: a head is copied once out of the connection's buffer, with as much of a body as arrived
//! in the same read; the rest of a body is read into the caller's memory. Response bodies are not
//! copied, except that one of up to 4 KiB joins its head so that one write sends both.
#![no_std]
#![forbid(unsafe_code)]
// One core runs one executor, so the futures need not be `Send`, and the lint does not apply.
#![allow(async_fn_in_trait)]

extern crate alloc;

pub mod client;
mod error;
mod framing;
mod limits;
mod link;
mod server;
mod timing;
mod trace_context;
mod wire;

pub use error::HttpError;
pub use framing::event::Event;
pub use framing::fields::Fields;
pub use framing::head::HEADERS_MAX;
pub use framing::request::{Method, Request, RequestBody, Version};
pub use framing::response::{Response, Status};
pub use limits::Limits;
pub use server::{Connected, Connection, Connections, Exchange, Slot, SlotLimits, Slots};
pub use trace_context::TraceContext;
