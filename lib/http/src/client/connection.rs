//! One connection to a server: requests out, responses in, one after the other.

use super::Error;
use crate::Limits;
use crate::framing::fields::Fields;
use crate::framing::incoming::Incoming;
use crate::framing::outgoing::Outgoing;
use crate::framing::response_head::{Head, find_end, parse};
use crate::wire::Wire;
use alloc::vec::Vec;
use glass_api::{Clock, Stream};

/// Responses of status 1xx before the one that counts, at most.
const INTERIM_MAX: usize = 16;

pub(crate) struct Connection<S, C> {
    wire: Wire<S, C>,
    /// The body of the response.
    body: Incoming,
    keep_alive: bool,
    /// What is to be sent of the request's body.
    upload: Outgoing,
    /// Some bytes of a response have arrived.
    pub(crate) is_answered: bool,
}

impl<S: Stream, C: Clock> Connection<S, C> {
    pub(crate) fn new(stream: S, clock: C, limits: Limits) -> Connection<S, C> {
        Connection {
            wire: Wire::new(stream, clock, limits),
            body: Incoming::default(),
            keep_alive: true,
            upload: Outgoing::Length(0),
            is_answered: false,
        }
    }

    /// The stream, once nothing of a response is left; `None` if the peer has sent more.
    pub(crate) fn into_stream(self) -> Option<S> {
        self.wire.input.is_empty().then_some(self.wire.link.stream)
    }

    /// Whether another request can be sent now. A server that has closed the connection, or has sent what it should not have, is
    /// noticed.
    pub(crate) async fn is_usable(&mut self) -> bool {
        self.keep_alive
            && self.body_is_over()
            && self.upload.is_over()
            && self.wire.input.is_empty()
            && !self.wire.link.broken
            && self.wire.link.is_quiet().await
    }

    /// Sends a head, and the first bytes of its body.
    pub(crate) async fn send_head(&mut self, head: Vec<u8>, upload: Outgoing, body: &[u8]) -> Result<(), Error> {
        self.is_answered = false;
        self.keep_alive = false;
        self.upload = upload;
        self.wire.link.restart_writing();
        self.wire.output.push_head(head);
        self.send_body(body).await
    }

    /// Sends the next bytes of the body.
    pub(crate) async fn send_body(&mut self, data: &[u8]) -> Result<(), Error> {
        Ok(self.wire.send_body(&mut self.upload, data).await?)
    }

    /// Sends the end of the body, and the fields after it if it has no length.
    pub(crate) async fn end_body(&mut self, trailers: &[(&str, &str)]) -> Result<(), Error> {
        Ok(self.wire.end_body(&mut self.upload, trailers).await?)
    }

    /// The head of the response to a request of `method`.
    pub(crate) async fn read_head(&mut self, method: &str) -> Result<Head, Error> {
        self.wire.link.restart_reading();
        for _ in 0..INTERIM_MAX {
            let head_bytes = self.receive_head().await?;
            let head = parse(&self.wire.input.bytes()[..head_bytes], method)?;
            self.wire.input.consume(head_bytes);
            match head.status.0 {
                101 => return Err(Error::Bad("it switches to a protocol that was not offered")),
                100..200 => continue,
                _ => {}
            }
            self.body = head.body.into();
            self.keep_alive = head.keep_alive && self.upload.is_over();
            return Ok(head);
        }
        Err(Error::Bad("there are too many interim responses"))
    }

    async fn receive_head(&mut self) -> Result<usize, Error> {
        let head_bytes_max = self.wire.link.limits.head_bytes_max;
        let mut searched = 0;
        loop {
            let bytes = self.wire.input.bytes();
            if let Some(end) = find_end(bytes, searched) {
                return Ok(end);
            }
            searched = bytes.len();
            let space = self.wire.input.space(head_bytes_max)?;
            if space.is_empty() {
                return Err(Error::HeadTooLong(head_bytes_max));
            }
            match self.wire.link.receive(space).await? {
                0 => return Err(Error::Cut),
                count => self.wire.input.received(count),
            }
            self.is_answered = true;
        }
    }

    /// Whether the response's body was read to its end.
    pub(crate) fn body_is_over(&self) -> bool {
        self.body.body.is_over()
    }

    /// The next bytes of the response's body; `Ok(0)` at its end (or when `buf` is empty).
    pub(crate) async fn read_body(&mut self, buf: &mut [u8]) -> Result<usize, Error> {
        Ok(self.wire.read_body(&mut self.body, buf).await?)
    }

    /// The fields after the response's body, once it was read.
    pub(crate) fn take_trailers(&mut self) -> Fields {
        core::mem::take(&mut self.body.trailers)
    }
}
