//! Requests in, on one stream, from its start to its end; `responses.rs` has the way out.

use crate::framing::chunked::Chunks;
use crate::framing::date::DateField;
use crate::framing::head::{HeadScan, parse_head};
use crate::framing::incoming::{Body, Incoming};
use crate::framing::outgoing::Outgoing;
use crate::wire::Wire;
use crate::{Fields, HttpError, Limits, Method, Request, RequestBody, Status, Version};
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::fmt;
use core::future::pending;
use glass_api::{Address, Clock, Instant, Spawn, Stream};

/// Line ends that may precede a request line. Some old clients send one after a body.
const BLANK_BYTES_MAX: usize = 16;

/// A request and its answer, as far as they got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Exchange {
    /// The status of the answer, once it was started.
    pub status: Option<Status>,
    /// Bytes of the request's body that the service has read, without those of chunks.
    pub received_bytes: u64,
    /// Bytes of the answer's body that were queued in the stream, without those of chunks.
    pub sent_bytes: u64,
}

/// One connection of a server. Requests are answered one after the other, in order; pipelined requests stay in the buffers of the
/// connection and the stream.
///
/// Dropping a connection resets it; [`Connection::close`] ends it so that the peer gets everything.
pub struct Connection<S, C> {
    pub(super) wire: Wire<S, C>,
    pub(super) request: RequestState,
    pub(super) response: ResponseState,
    pub(super) date: DateField,
    /// The connection ends after this response.
    pub(super) last: bool,
    /// A panic of the handler ends the service.
    ends_by_panic: bool,
}

#[derive(Default)]
pub(super) struct RequestState {
    pub(super) body: Incoming,
    pub(super) length_unknown: bool,
    pub(super) is_head: bool,
    pub(super) is_http10: bool,
    /// The client announced that it sends nothing more.
    is_last: bool,
    pub(super) exchange: Exchange,
    /// What the answer has in addition.
    pub(super) fields: Vec<(&'static str, String)>,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum ResponseState {
    /// No request is open.
    Idle,
    /// A request has no answer yet.
    Awaited,
    /// The head was built; this body is to come, and not to be sent if `discard`.
    Body { body: Outgoing, discard: bool },
}

impl<S: Stream, C: Clock> Connection<S, C> {
    /// Takes over an accepted stream.
    pub fn new(stream: S, clock: C, limits: Limits) -> Connection<S, C> {
        Connection {
            wire: Wire::new(stream, clock, limits),
            request: RequestState::default(),
            response: ResponseState::Idle,
            date: DateField::default(),
            last: false,
            ends_by_panic: false,
        }
    }

    /// A panic of the handler of [`Connection::serve`] ends the service, as that of any task does: for a service whose state a panic may
    /// leave half changed, and which recovers from its disk instead.
    pub fn ended_by_panics(mut self) -> Connection<S, C> {
        self.ends_by_panic = true;
        self
    }

    /// Answers requests with `handler` until the connection ends. When a request is malformed or
    /// the handler fails, the peer is answered with [`Connection::refuse`], and the error returned. So a handler turns errors of the
    /// service into responses, and returns only errors of the connection. Not cancel safe: drop the connection too.
    ///
    /// A handler that panics is [contained](Spawn::contain) where that is possible, in a process and in a simulation: its client gets
    /// 500 if no response was started, else a reset, the connection ends with [`HttpError::Panicked`], and others continue. What handlers share must bear that
    /// one of them stops anywhere; [`Connection::ended_by_panics`] is for those that cannot.
    pub async fn serve(
        mut self,
        mut handler: impl AsyncFnMut(&mut Connection<S, C>, Request) -> Result<(), HttpError>,
    ) -> Result<(), HttpError>
    where
        C: Spawn + Clone,
    {
        let platform = self.wire.link.clock.clone();
        let outcome = loop {
            let handled = match self.next_request().await {
                Ok(Some(request)) if self.ends_by_panic => handler(&mut self, request).await,
                Ok(Some(request)) => {
                    let contained = platform.contain(handler(&mut self, request)).await;
                    contained.unwrap_or(Err(HttpError::Panicked))
                }
                Ok(None) => break Ok(()),
                Err(error) => Err(error),
            };
            if let Err(error) = handled {
                self.refuse(&error).await;
                break Err(error);
            }
        };
        self.close().await;
        outcome
    }

    /// The next request's head; `None` when the connection has ended: the peer closed it or sent
    /// nothing for [`Limits::idle_timeout`], or the last response had `Connection: close`.
    ///
    /// An unread body of the previous request is dropped if all of it has arrived. After an
    /// error only [`Connection::refuse`] and [`Connection::close`] may be called. Cancel safe.
    pub async fn next_request(&mut self) -> Result<Option<Request>, HttpError> {
        match self.response {
            ResponseState::Awaited => return Err(HttpError::NoResponse),
            ResponseState::Body { body, .. } if !body.is_over() => {
                self.wire.link.broken = true;
                return Err(body.cut());
            }
            _ => self.flush().await?,
        }
        if self.last || self.wire.link.broken || self.body_is_in_progress() {
            self.last = true;
            return Ok(None);
        }
        self.wire.input.consume(self.request.body.length_left() as usize);
        self.wire.expects_continue = false;
        self.request = RequestState::default();
        self.response = ResponseState::Idle;
        let head = self.read_head().await;
        if !matches!(head, Ok(Some(_))) {
            self.last = true;
        }
        head
    }

    async fn read_head(&mut self) -> Result<Option<Request>, HttpError> {
        let mut scan = HeadScan::default();
        let mut deadline = None;
        let mut blank_bytes = 0;
        let head_bytes = loop {
            blank_bytes += self.skip_blank_lines();
            if blank_bytes > BLANK_BYTES_MAX {
                return Err(HttpError::Bad("there are empty lines instead of a request"));
            }
            // A carriage return alone may be the first half of one more.
            if self.wire.input.bytes() != b"\r"
                && let Some(bytes) = scan.find_end(self.wire.input.bytes(), &self.wire.link.limits)?
            {
                break bytes;
            }
            let idle = self.wire.input.is_empty();
            let limits = self.wire.link.limits;
            let until = |now| match idle {
                true => now + limits.idle_timeout,
                false => *deadline.get_or_insert(now + limits.head_timeout),
            };
            let space = self.wire.input.space(limits.head_bytes_max)?;
            match self.wire.link.receive_before(space, until).await {
                Some(count @ 1..) => self.wire.input.received(count),
                _ if idle => return Ok(None),
                Some(_) => return Err(HttpError::HeadCut),
                None => return Err(HttpError::HeadTimeout(limits.head_timeout)),
            }
        };
        let request = parse_head(&self.wire.input.bytes()[..head_bytes])?;
        self.wire.input.consume(head_bytes);
        self.begin(&request);
        Ok(Some(request))
    }

    fn skip_blank_lines(&mut self) -> usize {
        let mut skipped = 0;
        loop {
            let blank = match self.wire.input.bytes() {
                [b'\r', b'\n', ..] => 2,
                [b'\n', ..] => 1,
                _ => return skipped,
            };
            self.wire.input.consume(blank);
            skipped += blank;
        }
    }

    fn begin(&mut self, request: &Request) {
        let body = match request.body {
            RequestBody::Length(bytes) => Body::Length(bytes),
            RequestBody::Chunked => Body::Chunked(Chunks::Size),
            RequestBody::None | RequestBody::UnknownLength => Body::Length(0),
        };
        self.wire.expects_continue = request.expects_continue;
        self.request = RequestState {
            body: body.into(),
            length_unknown: request.body == RequestBody::UnknownLength,
            is_head: request.method() == Method::Head,
            is_http10: request.version() == Version::Http10,
            is_last: !request.keep_alive,
            ..RequestState::default()
        };
        self.response = ResponseState::Awaited;
        self.last = !request.keep_alive;
        self.wire.link.restart_reading();
    }

    /// Bytes of the request's body that were not read yet; 0 for a chunked body, whose length is unknown.
    pub fn body_left(&self) -> u64 {
        self.request.body.length_left()
    }

    /// Reads at least one byte of the request's body into `buf`; `Ok(0)` at its end (or when `buf`
    /// is empty). A client that waits for `100 Continue` gets it now, if no answer was started.
    ///
    /// Fails with [`HttpError::BodyCut`] when the body ends early, with [`HttpError::Stalled`] when
    /// it makes too little progress, with [`HttpError::LengthRequired`] when it has a transfer coding other than chunked.
    /// Cancel safe.
    pub async fn read_body(&mut self, buf: &mut [u8]) -> Result<usize, HttpError> {
        if self.request.length_unknown {
            return Err(HttpError::LengthRequired);
        }
        let count = self.wire.read_body(&mut self.request.body, buf).await?;
        self.request.exchange.received_bytes += count as u64;
        Ok(count)
    }

    /// The fields after a chunked body (trailers); none before it was read to its end.
    pub fn trailers(&self) -> &Fields {
        &self.request.body.trailers
    }

    /// Fills `buf` from the request's body; returns fewer bytes only at the end of the body. Dropping the
    /// future loses what was read.
    pub async fn fill_from_body(&mut self, buf: &mut [u8]) -> Result<usize, HttpError> {
        let mut filled = 0;
        while filled < buf.len() {
            match self.read_body(&mut buf[filled..]).await? {
                0 => break,
                count => filled += count,
            }
        }
        Ok(filled)
    }

    /// Completes when the peer has shut down its sending half, closed or reset the connection. While [`Connection::is_broken`] is
    /// false, the peer may still read a response. A service that makes its client wait can race this against its own wait. Pipelined
    /// requests are kept, up to [`Limits::head_bytes_max`]; after more than that, a close is not detected. Cancel safe.
    pub async fn wait_gone(&mut self) {
        while !self.wire.link.broken {
            match self.wire.input.space(self.wire.link.limits.head_bytes_max) {
                Ok(space) if !space.is_empty() => match self.wire.link.receive_sometime(space).await {
                    0 => return,
                    count => self.wire.input.received(count),
                },
                _ => pending().await,
            }
        }
    }

    /// How far the request and its answer have got.
    pub fn exchange(&self) -> Exchange {
        self.request.exchange
    }

    /// Adds a field to the answer of this request, whatever answers it. A value that no field may have makes the answer fail with
    /// [`HttpError::BadResponseHeader`].
    pub fn add_field(&mut self, name: &'static str, value: impl fmt::Display) {
        self.request.fields.push((name, value.to_string()));
    }

    /// Whether nothing can be sent any more.
    pub fn is_broken(&self) -> bool {
        self.wire.link.broken
    }

    /// Makes the next response the connection's last.
    pub fn close_after_response(&mut self) {
        self.last = true;
    }

    /// The peer's address.
    pub fn peer(&self) -> Address {
        self.wire.link.stream.peer()
    }

    /// Closes gracefully (lingering close): shuts down the sending half, then discards incoming data for
    /// [`Limits::linger_timeout`], so that no reset destroys the response. Returns at once if the client sent `Connection: close`
    /// and its whole request. If a response is incomplete or the connection broken, resets it.
    pub async fn close(mut self) {
        let cut = matches!(self.response, ResponseState::Body { body, .. } if !body.is_over());
        if cut || self.wire.link.broken || self.flush().await.is_err() {
            return;
        }
        let limits = self.wire.link.limits;
        let mut deadline = None;
        let mut until = move |now| *deadline.get_or_insert(now + limits.linger_timeout);
        if !self.wire.link.close(&mut until).await {
            return;
        }
        self.linger(until).await;
    }

    /// Discards data from the peer until it ends or the limits are reached.
    async fn linger(&mut self, mut until: impl FnMut(Instant) -> Instant) {
        let limits = self.wire.link.limits;
        let announced = self.request.is_last && self.wire.input.is_empty() && !self.body_is_in_progress();
        let mut dropped_bytes = 0;
        while !self.wire.link.peer_ended && dropped_bytes < limits.linger_bytes_max {
            self.wire.input.consume(self.wire.input.len());
            let Ok(space) = self.wire.input.space(limits.head_bytes_max) else { return };
            let count = if announced && dropped_bytes == 0 {
                // Some old clients send a line end after a body, which would be enough for a reset.
                self.wire.link.receive_now(space).await
            } else {
                self.wire.link.receive_before(space, &mut until).await.unwrap_or(0)
            };
            if count == 0 {
                return;
            }
            dropped_bytes += count as u64;
        }
    }

    /// Whether a part of the request's body was neither read nor is in our buffer.
    pub(super) fn body_is_in_progress(&self) -> bool {
        self.request.length_unknown
            || match self.request.body.body {
                Body::Length(left) => left > self.wire.input.len() as u64,
                body => !body.is_over(),
            }
    }
}
