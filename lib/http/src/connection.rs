//! Requests in, responses out, on one stream.

use crate::chunked::{Chunks, LINE_BYTES_MAX};
use crate::date::DateField;
use crate::head::{HeadScan, parse_head};
use crate::input::Input;
use crate::link::Link;
use crate::{HttpError, Limits, Method, Request, RequestBody, Response, Status, Version};
use alloc::format;
use alloc::vec::Vec;
use core::future::pending;
use glass_api::{Address, Clock, Instant, Stream};

/// A first piece of a body of up to this size is copied after its head, so that one write sends both.
const JOIN_BYTES_MAX: usize = 4096;

/// Line ends that may precede a request line. Some old clients send one after a body.
const BLANK_BYTES_MAX: usize = 16;

/// One connection of a server. Requests are answered one after the other, in order; pipelined requests stay in the buffers of the
/// connection and the stream.
///
/// Dropping a connection resets it; [`Connection::close`] ends it so that the peer gets everything.
pub struct Connection<S, C> {
    link: Link<S, C>,
    input: Input,
    /// Heads that wait to be sent.
    output: Vec<u8>,
    output_sent: usize,
    request: RequestState,
    response: ResponseState,
    date: DateField,
    /// The connection ends after this response.
    last: bool,
}

#[derive(Default)]
struct RequestState {
    body_left: u64,
    /// Where a chunked body is.
    chunks: Option<Chunks>,
    length_unknown: bool,
    expects_continue: bool,
    is_head: bool,
    is_http10: bool,
    /// The client announced that it sends nothing more.
    is_last: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum ResponseState {
    /// No request is open.
    Idle,
    /// A request has no answer yet.
    Awaited,
    /// The head was built; so many bytes of the body are to come, and not to be sent if `discard`.
    Body { left: u64, discard: bool },
}

impl<S: Stream, C: Clock> Connection<S, C> {
    /// Takes over an accepted stream.
    pub fn new(stream: S, clock: C, limits: Limits) -> Connection<S, C> {
        Connection {
            link: Link::new(stream, clock, limits),
            input: Input::default(),
            output: Vec::new(),
            output_sent: 0,
            request: RequestState::default(),
            response: ResponseState::Idle,
            date: DateField::default(),
            last: false,
        }
    }

    /// Answers requests with `handler` until the connection ends. When a request is malformed or
    /// the handler fails, the peer is answered with [`Connection::refuse`], and the error returned. So a handler turns errors of the
    /// service into responses, and returns only errors of the connection. Not cancel safe: drop the connection too.
    pub async fn serve(
        mut self,
        mut handler: impl AsyncFnMut(&mut Connection<S, C>, Request) -> Result<(), HttpError>,
    ) -> Result<(), HttpError> {
        let outcome = loop {
            let handled = match self.next_request().await {
                Ok(Some(request)) => handler(&mut self, request).await,
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
            ResponseState::Body { left: 1.., .. } => return Err(self.cut_short()),
            _ => self.flush().await?,
        }
        if self.last || self.link.broken || self.body_is_in_progress() {
            self.last = true;
            return Ok(None);
        }
        self.input.consume(self.request.body_left as usize);
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
            if self.input.bytes() != b"\r"
                && let Some(bytes) = scan.find_end(self.input.bytes(), &self.link.limits)?
            {
                break bytes;
            }
            let idle = self.input.is_empty();
            let limits = self.link.limits;
            let until = |now| match idle {
                true => now + limits.idle_timeout,
                false => *deadline.get_or_insert(now + limits.head_timeout),
            };
            let space = self.input.space(limits.head_bytes_max)?;
            match self.link.receive_before(space, until).await {
                Some(count @ 1..) => self.input.received(count),
                _ if idle => return Ok(None),
                Some(_) => return Err(HttpError::HeadCut),
                None => return Err(HttpError::HeadTimeout(limits.head_timeout)),
            }
        };
        let request = parse_head(&self.input.bytes()[..head_bytes])?;
        self.input.consume(head_bytes);
        self.begin(&request);
        Ok(Some(request))
    }

    fn skip_blank_lines(&mut self) -> usize {
        let mut skipped = 0;
        loop {
            let blank = match self.input.bytes() {
                [b'\r', b'\n', ..] => 2,
                [b'\n', ..] => 1,
                _ => return skipped,
            };
            self.input.consume(blank);
            skipped += blank;
        }
    }

    fn begin(&mut self, request: &Request) {
        let body_left = if let RequestBody::Length(bytes) = request.body { bytes } else { 0 };
        self.request = RequestState {
            body_left,
            chunks: (request.body == RequestBody::Chunked).then_some(Chunks::Size),
            length_unknown: request.body == RequestBody::UnknownLength,
            expects_continue: request.expects_continue,
            is_head: request.method() == Method::Head,
            is_http10: request.version() == Version::Http10,
            is_last: !request.keep_alive,
        };
        self.response = ResponseState::Awaited;
        self.last = !request.keep_alive;
        self.link.restart_reading();
    }

    /// Bytes of the request's body that were not read yet; 0 for a chunked body, whose length is unknown.
    pub fn body_left(&self) -> u64 {
        self.request.body_left
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
        if let Some(chunks) = self.request.chunks {
            return self.read_chunks(chunks, buf).await;
        }
        let wanted = buf.len().min(usize::try_from(self.request.body_left).unwrap_or(usize::MAX));
        if wanted == 0 {
            return Ok(0);
        }
        let buf = &mut buf[..wanted];
        let count = if self.input.is_empty() { self.receive(buf).await? } else { self.input.take(buf) };
        self.request.body_left -= count as u64;
        Ok(count)
    }

    async fn read_chunks(&mut self, mut chunks: Chunks, buf: &mut [u8]) -> Result<usize, HttpError> {
        loop {
            match chunks {
                _ if buf.is_empty() => return Ok(0),
                Chunks::Over => return Ok(0),
                Chunks::Data(left) => {
                    let wanted = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    let buf = &mut buf[..wanted];
                    let count = if self.input.is_empty() { self.receive(buf).await? } else { self.input.take(buf) };
                    let left = left - count as u64;
                    self.request.chunks = Some(if left == 0 { Chunks::DataEnd } else { Chunks::Data(left) });
                    return Ok(count);
                }
                Chunks::Size | Chunks::DataEnd | Chunks::Trailer(_) => {
                    let line_bytes = self.receive_line().await?;
                    chunks = chunks.after(&self.input.bytes()[..line_bytes])?;
                    self.input.consume(line_bytes);
                    self.request.chunks = Some(chunks);
                }
            }
        }
    }

    /// Receives until a whole line has arrived and returns its length.
    async fn receive_line(&mut self) -> Result<usize, HttpError> {
        loop {
            let bytes = self.input.bytes();
            let end = bytes.iter().take(LINE_BYTES_MAX).position(|&byte| byte == b'\n');
            if let Some(end) = end {
                return Ok(end + 1);
            }
            if bytes.len() >= LINE_BYTES_MAX {
                return Err(HttpError::Bad("a line of a chunked body is too long"));
            }
            self.before_receiving().await?;
            let space = self.input.space(LINE_BYTES_MAX)?;
            match self.link.receive(space).await? {
                0 => return Err(self.cut()),
                count => self.input.received(count),
            }
        }
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

    async fn receive(&mut self, buf: &mut [u8]) -> Result<usize, HttpError> {
        self.before_receiving().await?;
        match self.link.receive(buf).await {
            Ok(0) => Err(self.cut()),
            read => read,
        }
    }

    async fn before_receiving(&mut self) -> Result<(), HttpError> {
        if core::mem::take(&mut self.request.expects_continue) {
            self.output.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        self.flush().await
    }

    /// The peer ended before the body did.
    fn cut(&self) -> HttpError {
        match self.request.chunks {
            Some(_) => HttpError::Bad("the body ended before its last chunk"),
            None => HttpError::BodyCut { missing_bytes: self.request.body_left },
        }
    }

    /// Sends a whole response. The body is not sent in answer to a HEAD, or when the status forbids
    /// one. Not cancel safe: drop the connection too.
    pub async fn respond(&mut self, response: Response, body: &[u8]) -> Result<(), HttpError> {
        self.start(response, body.len() as u64).await?;
        if body.is_empty() { Ok(()) } else { self.write_body(body).await }
    }

    /// Responds with `text` as `text/plain; charset=utf-8`. No line end is added.
    pub async fn respond_text(&mut self, status: Status, text: &str) -> Result<(), HttpError> {
        self.respond(Response::new(status).header("Content-Type", "text/plain; charset=utf-8"), text.as_bytes()).await
    }

    /// Starts a response whose body of `body_bytes` follows through [`Connection::write_body`]. It gets a field Date where the platform
    /// has the time of day. The head is buffered: it is sent with the first bytes of the body or by [`Connection::flush`].
    ///
    /// If the request's body has not arrived completely, the response gets `Connection: close` and the connection ends after it.
    /// Read the body first to keep the connection.
    ///
    /// # Panics
    /// When the request has a response already, or the status is below 200.
    pub async fn start(&mut self, mut response: Response, body_bytes: u64) -> Result<(), HttpError> {
        assert!(!matches!(self.response, ResponseState::Body { .. }), "a request has one response");
        assert!(response.status().0 >= 200, "an interim response is no answer");
        if response.is_bad() {
            return Err(HttpError::BadResponseHeader);
        }
        self.last |= self.body_is_in_progress() || self.response == ResponseState::Idle;
        self.request.expects_continue = false;
        if let Some(since_epoch) = self.link.since_epoch() {
            response.field("Date", self.date.at(since_epoch));
        }
        let forbidden = response.status().forbids_body();
        if !forbidden {
            response.field("Content-Length", body_bytes);
        }
        if self.last {
            response.field("Connection", "close");
        } else if self.request.is_http10 {
            response.field("Connection", "keep-alive");
        }
        let head = response.into_bytes();
        if self.output.is_empty() {
            self.output = head;
        } else {
            self.output.extend_from_slice(&head);
        }
        let discard = self.request.is_head || forbidden;
        self.response = ResponseState::Body { left: body_bytes, discard };
        self.link.restart_writing();
        if body_bytes == 0 || discard { self.flush().await } else { Ok(()) }
    }

    /// Sends the next bytes of the response's body. Returns when they are queued in the stream. Fails
    /// with [`HttpError::WrongLength`] when they are more than was declared. When the future is
    /// dropped, the number of sent bytes is unknown: drop the connection too.
    pub async fn write_body(&mut self, mut data: &[u8]) -> Result<(), HttpError> {
        let ResponseState::Body { left, discard } = self.response else {
            return Err(HttpError::NoResponse);
        };
        let Some(left) = left.checked_sub(data.len() as u64) else {
            self.link.broken = true;
            return Err(HttpError::WrongLength { missing_bytes: 0 });
        };
        if !discard {
            if !self.output.is_empty() && data.len() <= JOIN_BYTES_MAX {
                self.output.extend_from_slice(data);
                data = &[];
            }
            self.flush().await?;
            while !data.is_empty() {
                let count = self.link.send(data).await?;
                data = &data[count..];
            }
        }
        self.response = ResponseState::Body { left, discard };
        Ok(())
    }

    /// Leaves out the body of a response to a HEAD, which is not sent. Without effect on other responses.
    pub fn omit_body(&mut self) {
        if let ResponseState::Body { left, discard: true } = &mut self.response {
            *left = 0;
        }
    }

    /// Whether an answer to the request was started.
    pub fn is_answered(&self) -> bool {
        matches!(self.response, ResponseState::Body { .. })
    }

    /// Sends the buffered head. Only a service that lets time pass between
    /// [`Connection::start`] and the first byte of the body needs it.
    pub async fn flush(&mut self) -> Result<(), HttpError> {
        while self.output_sent < self.output.len() {
            self.output_sent += self.link.send(&self.output[self.output_sent..]).await?;
        }
        self.output.clear();
        self.output_sent = 0;
        Ok(())
    }

    /// Completes when the peer has shut down its sending half, closed or reset the connection. While [`Connection::is_broken`] is
    /// false, the peer may still read a response. A service that makes its client wait can race this against its own wait. Pipelined
    /// requests are kept, up to [`Limits::head_bytes_max`]; after more than that, a close is not detected. Cancel safe.
    pub async fn wait_gone(&mut self) {
        while !self.link.broken {
            match self.input.space(self.link.limits.head_bytes_max) {
                Ok(space) if !space.is_empty() => match self.link.receive_sometime(space).await {
                    0 => return,
                    count => self.input.received(count),
                },
                _ => pending().await,
            }
        }
    }

    /// Whether nothing can be sent any more.
    pub fn is_broken(&self) -> bool {
        self.link.broken
    }

    /// Answers with the status of `error`, if no answer was started and the peer can receive one. The
    /// connection ends after it: call [`Connection::close`].
    pub async fn refuse(&mut self, error: &HttpError) {
        self.last = true;
        let answered = matches!(self.response, ResponseState::Body { .. });
        let Some(status) = error.status() else { return };
        if !answered && !self.link.broken {
            // When this fails too, the peer is gone.
            let _ = self.respond_text(status, &format!("{error}\n")).await;
        }
    }

    /// Makes the next response the connection's last.
    pub fn close_after_response(&mut self) {
        self.last = true;
    }

    /// The peer's address.
    pub fn peer(&self) -> Address {
        self.link.stream.peer()
    }

    /// Closes gracefully (lingering close): shuts down the sending half, then discards incoming data for
    /// [`Limits::linger_timeout`], so that no reset destroys the response. Returns at once if the client sent `Connection: close`
    /// and its whole request. If a response is incomplete or the connection broken, resets it.
    pub async fn close(mut self) {
        let cut = matches!(self.response, ResponseState::Body { left: 1.., .. });
        if cut || self.link.broken || self.flush().await.is_err() {
            return;
        }
        let limits = self.link.limits;
        let mut deadline = None;
        let mut until = move |now| *deadline.get_or_insert(now + limits.linger_timeout);
        if !self.link.close(&mut until).await {
            return;
        }
        self.linger(until).await;
    }

    /// Discards data from the peer until it ends or the limits are reached.
    async fn linger(&mut self, mut until: impl FnMut(Instant) -> Instant) {
        let limits = self.link.limits;
        let announced = self.request.is_last && self.input.is_empty() && !self.body_is_in_progress();
        let mut dropped_bytes = 0;
        while !self.link.peer_ended && dropped_bytes < limits.linger_bytes_max {
            self.input.consume(self.input.len());
            let Ok(space) = self.input.space(limits.head_bytes_max) else { return };
            let count = if announced && dropped_bytes == 0 {
                // Some old clients send a line end after a body, which would be enough for a reset.
                self.link.receive_now(space).await
            } else {
                self.link.receive_before(space, &mut until).await.unwrap_or(0)
            };
            if count == 0 {
                return;
            }
            dropped_bytes += count as u64;
        }
    }

    /// Whether a part of the request's body was neither read nor is in our buffer.
    fn body_is_in_progress(&self) -> bool {
        let is_chunked = self.request.chunks.is_some_and(|chunks| chunks != Chunks::Over);
        is_chunked || self.request.length_unknown || self.request.body_left > self.input.len() as u64
    }

    /// The service stopped within a response's body.
    fn cut_short(&mut self) -> HttpError {
        self.link.broken = true;
        let missing_bytes = if let ResponseState::Body { left, .. } = self.response { left } else { 0 };
        HttpError::WrongLength { missing_bytes }
    }
}
