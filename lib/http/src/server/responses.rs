//! The responses of a connection: whole ones, those whose body follows in pieces, events, and interim ones.

use super::connection::{Connection, ResponseState};
use crate::framing::event::HEARTBEAT;
use crate::framing::outgoing::Outgoing;
use crate::{Event, HttpError, Response, Status};
use alloc::format;
use glass_api::{Clock, Stream};

impl<S: Stream, C: Clock> Connection<S, C> {
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
    pub async fn start(&mut self, response: Response, body_bytes: u64) -> Result<(), HttpError> {
        self.start_body(response, Outgoing::Length(body_bytes)).await
    }

    /// [`Connection::start`] of a body whose length is unknown: each piece is a chunk, and [`Connection::end_body`] ends it. A client of
    /// HTTP/1.0, which has no chunks, gets a body that ends with the connection.
    ///
    /// A service that cannot make the rest of the body returns an error, as with a known length: the connection is reset, and the
    /// client does not take the part for the whole.
    ///
    /// ```
    /// # use glass_api::{Clock, Stream};
    /// # use glass_lib_http::{Connection, HttpError, Response, Status};
    /// async fn count<S: Stream, C: Clock>(connection: &mut Connection<S, C>) -> Result<(), HttpError> {
    ///     connection.start_streamed(Response::new(Status::OK).header("Content-Type", "text/plain")).await?;
    ///     for number in 0..1000 {
    ///         connection.write_body(format!("{number}\n").as_bytes()).await?;
    ///     }
    ///     connection.end_body().await
    /// }
    /// ```
    ///
    /// # Panics
    /// As [`Connection::start`].
    pub async fn start_streamed(&mut self, response: Response) -> Result<(), HttpError> {
        let body = if self.request.is_http10 { Outgoing::UntilClose } else { Outgoing::Chunked };
        self.last |= body == Outgoing::UntilClose;
        self.start_body(response, body).await
    }

    async fn start_body(&mut self, mut response: Response, body: Outgoing) -> Result<(), HttpError> {
        assert!(!matches!(self.response, ResponseState::Body { .. }), "a request has one response");
        assert!(response.status().0 >= 200, "an interim response is no answer");
        for (name, value) in core::mem::take(&mut self.request.fields) {
            response = response.header(name, value);
        }
        if response.is_bad() {
            return Err(HttpError::BadResponseHeader);
        }
        self.request.exchange.status = Some(response.status());
        self.last |= self.body_is_in_progress() || self.response == ResponseState::Idle;
        self.wire.expects_continue = false;
        if let Some(since_epoch) = self.wire.link.since_epoch() {
            response.field("Date", self.date.at(since_epoch));
        }
        let forbidden = response.status().forbids_body();
        match body {
            Outgoing::Length(bytes) if !forbidden => response.field("Content-Length", bytes),
            Outgoing::Chunked if !forbidden => response.field("Transfer-Encoding", "chunked"),
            _ => {}
        }
        if self.last {
            response.field("Connection", "close");
        } else if self.request.is_http10 {
            response.field("Connection", "keep-alive");
        }
        self.wire.output.push_head(response.into_bytes());
        let discard = self.request.is_head || forbidden;
        self.response = ResponseState::Body { body, discard };
        self.wire.link.restart_writing();
        if body.is_over() || discard { self.flush().await } else { Ok(()) }
    }

    /// Sends a response before the one that answers the request: 103 with fields that the client can use early, for example (RFC 9110,
    /// section 15.2). Clients of HTTP/1.0 do not get it. `100 Continue` is sent by [`Connection::read_body`].
    ///
    /// # Panics
    /// When the request has a response already, or the status is not between 102 and 199.
    pub async fn inform(&mut self, response: Response) -> Result<(), HttpError> {
        assert!(self.response == ResponseState::Awaited, "an interim response comes before the response");
        assert!((102..200).contains(&response.status().0), "this is no interim response");
        if response.is_bad() {
            return Err(HttpError::BadResponseHeader);
        }
        if !self.request.is_http10 {
            self.wire.output.push_head(response.into_bytes());
        }
        self.flush().await
    }

    /// Sends the next bytes of the response's body. Returns when they are queued in the stream. Fails
    /// with [`HttpError::WrongLength`] when they are more than was declared. When the future is
    /// dropped, the number of sent bytes is unknown: drop the connection too.
    pub async fn write_body(&mut self, data: &[u8]) -> Result<(), HttpError> {
        let ResponseState::Body { mut body, discard } = self.response else {
            return Err(HttpError::NoResponse);
        };
        let written = match discard {
            true => body.without(data.len()).map(|rest| body = rest),
            false => self.wire.send_body(&mut body, data).await,
        };
        match &written {
            Ok(()) if !discard => self.request.exchange.sent_bytes += data.len() as u64,
            Err(HttpError::WrongLength { .. }) => self.wire.link.broken = true,
            _ => {}
        }
        self.response = ResponseState::Body { body, discard };
        written
    }

    /// Ends the body of a response that was started by [`Connection::start_streamed`]. Other bodies end with their last byte.
    pub async fn end_body(&mut self) -> Result<(), HttpError> {
        self.end_body_with(&[]).await
    }

    /// [`Connection::end_body`] with fields after the body (trailers), such as its digest. Only chunks can have them: they are left out
    /// for clients of HTTP/1.0, and many clients ignore them. Fails with [`HttpError::BadResponseHeader`] for a field about how to
    /// read the message (RFC 9110, section 6.5.1).
    pub async fn end_body_with(&mut self, trailers: &[(&str, &str)]) -> Result<(), HttpError> {
        let ResponseState::Body { mut body, discard } = self.response else {
            return Err(HttpError::NoResponse);
        };
        if discard && !matches!(body, Outgoing::Length(_)) {
            body = Outgoing::Length(0);
        }
        self.wire.end_body(&mut body, trailers).await?;
        self.response = ResponseState::Body { body, discard };
        Ok(())
    }

    /// Starts a stream of server-sent events, which [`Connection::send_event`] sends, and sends its head. `Last-Event-ID` of the request is
    /// where a client that connects again continues. [`Connection::end_body`] ends the stream; browsers connect again then.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use glass_api::{Clock, Stream};
    /// # use glass_lib_http::{Connection, Event, HttpError};
    /// # use glass_lib_executor::sync::Notify;
    /// use embassy_futures::select::{Either3, select3};
    ///
    /// /// Sends an event for each change, until the client is gone.
    /// async fn watch<S: Stream, C: Clock>(connection: &mut Connection<S, C>, clock: &C, changed: &Notify) -> Result<(), HttpError> {
    ///     connection.start_events().await?;
    ///     loop {
    ///         let pause = clock.sleep(Duration::from_secs(15));
    ///         match select3(changed.notified(), pause, connection.wait_gone()).await {
    ///             Either3::First(()) => connection.send_event(&Event::new("changed")).await?,
    ///             Either3::Second(()) => connection.send_heartbeat().await?,
    ///             Either3::Third(()) => return connection.end_body().await,
    ///         }
    ///     }
    /// }
    /// ```
    ///
    /// # Panics
    /// As [`Connection::start`].
    pub async fn start_events(&mut self) -> Result<(), HttpError> {
        let response = Response::new(Status::OK).header("Content-Type", "text/event-stream");
        self.start_streamed(response.header("Cache-Control", "no-store")).await?;
        self.flush().await
    }

    /// Sends an event of a stream. Fails with [`HttpError::BadEvent`] when its name or id has a line end.
    pub async fn send_event(&mut self, event: &Event<'_>) -> Result<(), HttpError> {
        self.write_body(event.text()?.as_bytes()).await
    }

    /// Sends a line that clients ignore: proxies do not take the stream for dead, and a client that is gone without a word is noticed.
    pub async fn send_heartbeat(&mut self) -> Result<(), HttpError> {
        self.write_body(HEARTBEAT).await
    }

    /// Leaves out the body of a response to a HEAD, which is not sent. Without effect on other responses.
    pub fn omit_body(&mut self) {
        if let ResponseState::Body { body, discard: true } = &mut self.response {
            *body = Outgoing::Length(0);
        }
    }

    /// Whether an answer to the request was started.
    pub fn is_answered(&self) -> bool {
        matches!(self.response, ResponseState::Body { .. })
    }

    /// Sends the buffered head. Only a service that lets time pass between
    /// [`Connection::start`] and the first byte of the body needs it.
    pub async fn flush(&mut self) -> Result<(), HttpError> {
        self.wire.flush().await
    }

    /// Answers with the status of `error`, if no answer was started and the peer can receive one. The
    /// connection ends after it: call [`Connection::close`].
    pub async fn refuse(&mut self, error: &HttpError) {
        self.last = true;
        let answered = matches!(self.response, ResponseState::Body { .. });
        let Some(status) = error.status() else { return };
        if !answered && !self.wire.link.broken {
            // When this fails too, the peer is gone.
            let _ = self.respond_text(status, &format!("{error}\n")).await;
        }
    }
}
