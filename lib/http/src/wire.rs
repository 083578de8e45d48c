//! Messages over a stream, whichever end it is: bytes that have arrived, bytes that wait to be sent, and bodies in both directions.

use crate::framing::chunked::LINE_BYTES_MAX;
use crate::framing::incoming::{Incoming, Step};
use crate::framing::input::Input;
use crate::framing::outgoing::{Outgoing, Output, last_chunk};
use crate::link::Link;
use crate::{HttpError, Limits};
use glass_api::{Clock, Stream};

/// A piece of a body of up to this size is copied after what waits before it, so that one write sends both.
const JOIN_BYTES_MAX: usize = 4096;

pub(crate) struct Wire<S, C> {
    pub(crate) link: Link<S, C>,
    pub(crate) input: Input,
    pub(crate) output: Output,
    /// The peer waits for `100 Continue` before it sends its body.
    pub(crate) expects_continue: bool,
}

impl<S: Stream, C: Clock> Wire<S, C> {
    pub(crate) fn new(stream: S, clock: C, limits: Limits) -> Wire<S, C> {
        let (input, output) = (Input::default(), Output::default());
        Wire { link: Link::new(stream, clock, limits), input, output, expects_continue: false }
    }

    /// Sends what waits. After an error nothing does: a peer that receives nothing more may still send.
    pub(crate) async fn flush(&mut self) -> Result<(), HttpError> {
        while !self.output.is_empty() {
            match self.link.send(self.output.unsent()).await {
                Ok(count) => self.output.sent(count),
                Err(error) => {
                    self.output = Output::default();
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Sends what waits and `data`.
    async fn send(&mut self, mut data: &[u8]) -> Result<(), HttpError> {
        if !self.output.is_empty() && data.len() <= JOIN_BYTES_MAX {
            self.output.push(data);
            data = &[];
        }
        self.flush().await?;
        while !data.is_empty() {
            let count = self.link.send(data).await?;
            data = &data[count..];
        }
        Ok(())
    }

    /// Sends the next bytes of a body, in chunks as one. `body` changes once they are queued: a body whose sending was given up has
    /// not ended.
    pub(crate) async fn send_body(&mut self, body: &mut Outgoing, data: &[u8]) -> Result<(), HttpError> {
        let rest = body.without(data.len())?;
        if *body == Outgoing::Chunked && !data.is_empty() {
            self.output.push(alloc::format!("{:x}\r\n", data.len()).as_bytes());
            if data.len() <= JOIN_BYTES_MAX {
                self.output.push(data);
            } else {
                self.send(data).await?;
            }
            self.output.push(b"\r\n");
        } else if !data.is_empty() {
            self.send(data).await?;
        }
        self.flush().await?;
        *body = rest;
        Ok(())
    }

    /// Ends a body. Fields after it are sent with chunks only.
    pub(crate) async fn end_body(&mut self, body: &mut Outgoing, trailers: &[(&str, &str)]) -> Result<(), HttpError> {
        match body {
            Outgoing::Length(1..) => return Err(body.cut()),
            Outgoing::Length(0) | Outgoing::UntilClose => {}
            Outgoing::Chunked => self.output.push(&last_chunk(trailers)?),
        }
        self.flush().await?;
        *body = Outgoing::Length(0);
        Ok(())
    }

    /// The next bytes of a body; `Ok(0)` at its end (or when `buf` is empty). Cancel safe.
    pub(crate) async fn read_body(&mut self, body: &mut Incoming, buf: &mut [u8]) -> Result<usize, HttpError> {
        loop {
            match body.next(&mut self.input, buf)? {
                Step::Done(count) => return Ok(count),
                Step::Receive(count) => {
                    self.before_receiving().await?;
                    let count = self.link.receive(&mut buf[..count]).await?;
                    if count == 0 {
                        body.ended()?;
                    }
                    body.received(count);
                    return Ok(count);
                }
                Step::ReceiveLine => {
                    self.before_receiving().await?;
                    match self.link.receive(self.input.space(LINE_BYTES_MAX)?).await? {
                        0 => body.ended()?,
                        count => self.input.received(count),
                    }
                }
            }
        }
    }

    async fn before_receiving(&mut self) -> Result<(), HttpError> {
        if core::mem::take(&mut self.expects_continue) {
            self.output.push(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        self.flush().await
    }
}
