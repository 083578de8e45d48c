//! A connection as a stream over a stream.

use crate::TlsError;
use crate::session::{RECORD_BYTES, Session, Side};
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::future::poll_fn;
use core::pin::pin;
use core::task::Poll;
use core::time::Duration;
use embassy_futures::select::{Either, select};
use glass_api::{Address, Clock, Instant, NetError, ReadHalf, Split, Stream, WriteHalf};
use glass_lib_executor::sync::Notify;
use glass_lib_trace::Name;

static SESSION: Name = Name::new("tls session");

/// Bytes that are read from the stream below at once: a record with its header and tag.
const READ_BYTES: usize = RECORD_BYTES + 256;

/// A TLS connection over the stream `S`. The handshake happens with the first read or write, or by [`TlsStream::handshake`], within the
/// context's time limit.
///
/// The peer's end without `close_notify` is [`NetError::Truncated`]: what was received may not be all. [`Stream::close`] ends our half;
/// the peer may send more, which can be read. Records are checked one by one: after the first that is not valid, reads and writes fail.
///
/// Copies: what is written is copied into a record of up to 16 KiB and encrypted there, then copied into the stream below; what is read is
/// copied four times. [`Stream::write`] returns before its record is in the stream below, if that has no room: the next call
/// sends the rest, also a read. [`Stream::write_all`] waits for it. Each connection has at most 110 KiB, or 300 while a message of the
/// handshake of up to 64 KiB arrives in many records; an idle one has about 28.
pub struct TlsStream<S: Split, C> {
    reader: TlsReadHalf<S::ReadHalf, C>,
    writer: TlsWriteHalf<S::WriteHalf, C>,
}

/// What both halves use.
struct Shared<C> {
    session: RefCell<Session>,
    /// A handshake that has advanced, bytes to be sent, a failure.
    changed: Notify,
    clock: C,
    deadline: Instant,
}

/// The half of a [`TlsStream`] that reads.
pub struct TlsReadHalf<R, C> {
    shared: Rc<Shared<C>>,
    stream: R,
    buffer: Box<[u8]>,
}

/// The half of a [`TlsStream`] that writes.
pub struct TlsWriteHalf<W, C> {
    shared: Rc<Shared<C>>,
    stream: W,
    /// Records, and how many of their bytes are in the stream.
    sending: Vec<u8>,
    sent: usize,
}

impl<S: Split, C: Clock + 'static> TlsStream<S, C> {
    pub(crate) fn new(stream: S, side: Side, clock: C, handshake_timeout: Duration) -> TlsStream<S, C> {
        let (session, changed) = (RefCell::new(Session::new(side)), Notify::of_resource(&SESSION));
        let deadline = clock.now() + handshake_timeout;
        let shared = Rc::new(Shared { session, changed, clock, deadline });
        let (reader, writer) = stream.split();
        TlsStream {
            reader: TlsReadHalf { shared: shared.clone(), stream: reader, buffer: vec![0; READ_BYTES].into() },
            writer: TlsWriteHalf { shared, stream: writer, sending: Vec::new(), sent: 0 },
        }
    }

    /// Completes the handshake, if it is not complete. Cancel safe. After an error the peer gets the reason, as far as that works at
    /// once.
    pub async fn handshake(&mut self) -> Result<(), TlsError> {
        let (reader, writer) = (&mut self.reader, &mut self.writer);
        let shared = writer.shared.clone();
        let done = async {
            let established = async {
                reader.establish().await?;
                Ok(())
            };
            match select(writer.send_always(), established).await {
                Either::First(outcome) | Either::Second(outcome) => outcome,
            }
        };
        if shared.session.borrow().is_established() {
            return Ok(());
        }
        let outcome = match shared.clock.timeout_at(shared.deadline, done).await {
            Ok(Ok(())) => writer.send_now().await,
            Ok(Err(error)) => Err(error),
            Err(_) => {
                shared.session.borrow_mut().fail(TlsError::TimedOut);
                Err(NetError::TimedOut)
            }
        };
        if outcome.is_err() {
            writer.end_now().await;
        }
        let session = shared.session.borrow();
        match session.failure() {
            Some(error) => Err(error.clone()),
            None => outcome.map_err(TlsError::Net),
        }
    }

    /// The certificates that the peer has presented, its own first, in DER; empty before the handshake and if it has presented
    /// none.
    pub fn peer_certificates(&self) -> Vec<Vec<u8>> {
        self.reader.shared.session.borrow().peer_certificates().map(<[u8]>::to_vec).collect()
    }

    /// The protocol that both have agreed on (ALPN), after the handshake.
    pub fn protocol(&self) -> Option<Vec<u8>> {
        self.reader.shared.session.borrow().protocol().map(<[u8]>::to_vec)
    }

    /// Whether the handshake has continued an earlier session, by a ticket.
    pub fn is_resumed(&self) -> bool {
        self.reader.shared.session.borrow().is_resumed()
    }

    /// Runs `operation` of one half after the handshake.
    async fn ready(&mut self) -> Result<(), NetError> {
        if self.reader.shared.session.borrow().is_established() {
            return Ok(());
        }
        self.handshake().await.map_err(|error| error.of_stream())
    }
}

impl<S: Split, C: Clock + 'static> Stream for TlsStream<S, C> {
    async fn read(&mut self, buf: &mut [u8]) -> Result<usize, NetError> {
        self.ready().await?;
        // What a write has left is sent meanwhile.
        let read = match select(self.reader.read(buf), self.writer.send_always()).await {
            Either::First(read) => read,
            // Sending has failed; what has arrived can be read.
            Either::Second(_) => self.reader.read(buf).await,
        };
        if let Err(NetError::Tls(_)) = read {
            self.writer.end_now().await;
        }
        read
    }

    async fn write(&mut self, data: &[u8]) -> Result<usize, NetError> {
        self.ready().await?;
        self.writer.write(data).await
    }

    async fn close(&mut self) -> Result<(), NetError> {
        self.writer.close().await
    }

    fn peer(&self) -> Address {
        self.reader.peer()
    }

    async fn write_all(&mut self, data: &[u8]) -> Result<(), NetError> {
        self.ready().await?;
        self.writer.write_all(data).await
    }
}

impl<S: Split, C: Clock + 'static> Split for TlsStream<S, C> {
    type ReadHalf = TlsReadHalf<S::ReadHalf, C>;
    type WriteHalf = TlsWriteHalf<S::WriteHalf, C>;

    /// Await [`TlsStream::handshake`] first, unless both halves are used at once: the handshake takes both.
    fn split(self) -> (Self::ReadHalf, Self::WriteHalf) {
        (self.reader, self.writer)
    }
}

impl<C: Clock> Shared<C> {
    /// Runs `operation`, before the handshake is complete only until its deadline.
    async fn in_time<T>(&self, operation: impl Future<Output = Result<T, NetError>>) -> Result<T, NetError> {
        let mut operation = pin!(operation);
        if !self.session.borrow().is_established()
            && let Ok(outcome) = self.clock.timeout_at(self.deadline, operation.as_mut()).await
        {
            return outcome;
        }
        if self.session.borrow().is_established() {
            return operation.await;
        }
        self.session.borrow_mut().fail(TlsError::TimedOut);
        Err(NetError::TimedOut)
    }

    fn check(&self) -> Result<(), NetError> {
        self.session.borrow().failure().map_or(Ok(()), |error| Err(error.of_stream()))
    }
}

impl<R: ReadHalf, C: Clock> TlsReadHalf<R, C> {
    /// Reads records until the handshake is complete.
    async fn establish(&mut self) -> Result<(), NetError> {
        while !self.shared.session.borrow().is_established() {
            self.shared.check()?;
            self.receive(&mut []).await?;
        }
        Ok(())
    }

    /// Receives some bytes of records; returns how many plain bytes are in `buf` at once. Cancel safe.
    async fn receive(&mut self, buf: &mut [u8]) -> Result<usize, NetError> {
        let read = self.stream.read(&mut self.buffer).await;
        let mut session = self.shared.session.borrow_mut();
        let count = match read {
            Ok(count) => session.receive(&self.buffer[..count], buf),
            Err(error) => {
                session.fail(TlsError::Net(error));
                0
            }
        };
        drop(session);
        self.shared.changed.notify_all();
        Ok(count)
    }
}

impl<R: ReadHalf, C: Clock + 'static> ReadHalf for TlsReadHalf<R, C> {
    async fn read(&mut self, buf: &mut [u8]) -> Result<usize, NetError> {
        let shared = self.shared.clone();
        shared
            .in_time(async {
                loop {
                    let taken = self.shared.session.borrow_mut().take(buf);
                    if let Some(taken) = taken {
                        return taken;
                    }
                    match self.receive(buf).await? {
                        0 => {}
                        count => return Ok(count),
                    }
                }
            })
            .await
    }

    fn peer(&self) -> Address {
        self.stream.peer()
    }
}

impl<W: WriteHalf, C: Clock> TlsWriteHalf<W, C> {
    /// Hands all records to the stream below. Cancel safe.
    async fn send(&mut self) -> Result<(), NetError> {
        loop {
            if self.sent == self.sending.len() {
                self.sending.clear();
                self.sent = 0;
                self.shared.session.borrow_mut().take_outgoing(&mut self.sending);
                if self.sending.is_empty() {
                    // An idle connection keeps no buffer.
                    self.sending = Vec::new();
                    return Ok(());
                }
            }
            self.sent += self.stream.write(&self.sending[self.sent..]).await?;
        }
    }

    /// The same as far as it works at once.
    async fn send_now(&mut self) -> Result<(), NetError> {
        let mut send = pin!(self.send());
        match poll_fn(|context| Poll::Ready(send.as_mut().poll(context))).await {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => Ok(()),
        }
    }

    /// Sends the alert of a failure and ends our half, as far as that works at once: after a reset the peer might not see the alert.
    async fn end_now(&mut self) {
        let _ = self.send_now().await;
        let mut close = pin!(self.stream.close());
        let _ = poll_fn(|context| Poll::Ready(close.as_mut().poll(context))).await;
    }

    /// Sends what there is to be sent, until it fails.
    async fn send_always(&mut self) -> Result<(), NetError> {
        loop {
            let changed = self.shared.changed.notified();
            self.send().await?;
            changed.await;
        }
    }

    /// Waits until data can be sent, and sends what comes before it.
    async fn ready(&mut self) -> Result<(), NetError> {
        let shared = self.shared.clone();
        shared
            .in_time(async {
                loop {
                    let changed = self.shared.changed.notified();
                    self.send().await?;
                    self.shared.check()?;
                    if self.shared.session.borrow().is_established() {
                        return Ok(());
                    }
                    changed.await;
                }
            })
            .await
    }
}

impl<W: WriteHalf, C: Clock + 'static> WriteHalf for TlsWriteHalf<W, C> {
    async fn write(&mut self, data: &[u8]) -> Result<usize, NetError> {
        if data.is_empty() {
            return Ok(0);
        }
        self.ready().await?;
        let count = self.shared.session.borrow_mut().encrypt(data)?;
        self.send_now().await?;
        Ok(count)
    }

    async fn close(&mut self) -> Result<(), NetError> {
        self.shared.session.borrow_mut().close();
        self.send().await?;
        self.stream.close().await
    }

    fn peer(&self) -> Address {
        self.stream.peer()
    }

    async fn write_all(&mut self, mut data: &[u8]) -> Result<(), NetError> {
        while !data.is_empty() {
            let written = self.write(data).await?;
            data = &data[written..];
        }
        self.send().await
    }
}
