//! An HTTP/1.1 server connection over any [`glass_api::Stream`]. The *head* of a message is its first line and its header fields.
//!
//! [`Connection::next_request`] reads a head, the service reads the body with
//! [`Connection::read_body`] straight into its own memory, answers with [`Connection::respond`] or
//! [`Connection::start`] and [`Connection::write_body`], and reads the next request.
//! [`Connection::serve`] is that loop with every error answered.
//!
//! The head of a request is limited in size, number of fields and time; a body must make progress ([`Limits`]). The length of
//! a body is not limited: check it before you read. Responses need a length; chunked ones and upgrades are not supported. Unusual
//! but legal requests are accepted; requests that two parsers might read differently are refused.
//!
//! A service that strangers can reach bounds its connections by [`Connections`], which also accepts them, and what costs it memory by
//! [`Slots`]: clients that do nothing, or are slow while others wait, make room.
//!
//! Copies: a head is copied once out of the connection's buffer, with as much of a body as arrived
//! in the same read; the rest of a body is read into the caller's memory. Response bodies are not
//! copied, except that one of up to 4 KiB joins its head so that one write sends both.
#![no_std]
#![forbid(unsafe_code)]
// One core runs one executor, so the futures need not be `Send`, and the lint does not apply.
#![allow(async_fn_in_trait)]

extern crate alloc;

mod accept;
mod chunked;
mod connection;
mod connections;
mod date;
mod error;
mod head;
mod input;
mod limits;
mod link;
mod request;
mod response;
mod slots;
mod timing;

pub use connection::Connection;
pub use connections::{Connected, Connections};
pub use error::HttpError;
pub use head::HEADERS_MAX;
pub use limits::Limits;
pub use request::{Method, Request, RequestBody, Version};
pub use response::{Response, Status};
pub use slots::{Slot, SlotLimits, Slots};
