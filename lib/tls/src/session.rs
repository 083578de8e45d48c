//! One connection as a state machine without I/O: records in, plain bytes and records out.

use crate::TlsError;
use alloc::vec::Vec;
use core::mem;
use glass_api::NetError;
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus};

/// Plain bytes of a record at most (RFC 8446, section 5.1).
pub(crate) const RECORD_BYTES: usize = 1 << 14;
/// What a record is longer than its plain bytes, with space for messages that rustls sends before it.
const OVERHEAD_BYTES: usize = 128;
/// Bytes of records that wait for the rest of a message at most: one of 64 KiB, which rustls bounds, in records of reasonable sizes.
const INCOMING_BYTES_MAX: usize = 96 << 10;

pub(crate) enum Side {
    Server(UnbufferedServerConnection),
    Client(UnbufferedClientConnection),
}

impl Side {
    /// Whether rustls has something to be sent.
    fn wants_write(&self) -> bool {
        match self {
            Side::Server(server) => server.wants_write(),
            Side::Client(client) => client.wants_write(),
        }
    }
}

/// A connection.
pub(crate) struct Session {
    side: Side,
    /// Records that have not been processed: part of one, or of a message in several.
    incoming: Vec<u8>,
    /// Received plain bytes, and how many of them were taken.
    plain: Vec<u8>,
    plain_taken: usize,
    /// Records to be sent.
    outgoing: Vec<u8>,
    is_established: bool,
    /// The peer has announced the end of its data.
    peer_ended: bool,
    /// We have announced ours.
    is_closed: bool,
    failure: Option<TlsError>,
}

/// How a call of rustls ended.
enum Step {
    /// Call it again.
    Again,
    /// It needs more bytes.
    Blocked,
    /// Data can be sent.
    Ready,
    Failed(TlsError),
}

/// Where plain bytes go to.
struct Plain<'a> {
    /// The caller's memory, and how much of it is filled.
    direct: &'a mut [u8],
    filled: usize,
    /// What does not fit.
    rest: &'a mut Vec<u8>,
}

impl Plain<'_> {
    fn take(&mut self, bytes: &[u8]) {
        let space = if self.rest.is_empty() { self.direct.len() - self.filled } else { 0 };
        let (now, later) = bytes.split_at(space.min(bytes.len()));
        self.direct[self.filled..self.filled + now.len()].copy_from_slice(now);
        self.filled += now.len();
        self.rest.extend_from_slice(later);
    }
}

impl Session {
    pub(crate) fn new(side: Side) -> Session {
        let mut session = Session {
            side,
            incoming: Vec::new(),
            plain: Vec::new(),
            plain_taken: 0,
            outgoing: Vec::new(),
            is_established: false,
            peer_ended: false,
            is_closed: false,
            failure: None,
        };
        // A client's first message.
        session.advance(&mut [], Write::Nothing);
        session
    }

    /// Whether the handshake is complete.
    pub(crate) fn is_established(&self) -> bool {
        self.is_established
    }

    /// Why the connection has failed.
    pub(crate) fn failure(&self) -> Option<&TlsError> {
        self.failure.as_ref()
    }

    /// Ends the connection for the first such reason.
    pub(crate) fn fail(&mut self, error: TlsError) {
        self.failure.get_or_insert(error);
    }

    /// The peer's certificates, its own first; empty if it has presented none.
    pub(crate) fn peer_certificates(&self) -> impl Iterator<Item = &[u8]> {
        let chain = match &self.side {
            Side::Server(server) => server.peer_certificates(),
            Side::Client(client) => client.peer_certificates(),
        };
        chain.unwrap_or_default().iter().map(|certificate| &certificate[..])
    }

    /// The protocol that both have agreed on by ALPN.
    pub(crate) fn protocol(&self) -> Option<&[u8]> {
        match &self.side {
            Side::Server(server) => server.alpn_protocol(),
            Side::Client(client) => client.alpn_protocol(),
        }
    }

    /// Whether the handshake continued an earlier session.
    pub(crate) fn is_resumed(&self) -> bool {
        let kind = match &self.side {
            Side::Server(server) => server.handshake_kind(),
            Side::Client(client) => client.handshake_kind(),
        };
        kind == Some(rustls::HandshakeKind::Resumed)
    }

    /// Plain bytes into `buf`: 0 when the peer has ended; `None` if there are none yet.
    pub(crate) fn take(&mut self, buf: &mut [u8]) -> Option<Result<usize, NetError>> {
        let waiting = &self.plain[self.plain_taken..];
        if !waiting.is_empty() {
            let count = waiting.len().min(buf.len());
            buf[..count].copy_from_slice(&waiting[..count]);
            self.plain_taken += count;
            if self.plain_taken == self.plain.len() {
                (self.plain, self.plain_taken) = (Vec::new(), 0);
            }
            return Some(Ok(count));
        }
        match &self.failure {
            _ if self.peer_ended || buf.is_empty() => Some(Ok(0)),
            Some(error) => Some(Err(error.of_stream())),
            None => None,
        }
    }

    /// Takes bytes that were received, none at the end of the stream. The first plain bytes go to `direct`, if nothing waits; returns how
    /// many.
    pub(crate) fn receive(&mut self, bytes: &[u8], direct: &mut [u8]) -> usize {
        if bytes.is_empty() && !self.peer_ended {
            self.fail(TlsError::Net(if self.is_established { NetError::Truncated } else { NetError::Reset }));
        }
        if self.failure.is_some() || self.peer_ended {
            return 0;
        }
        if self.incoming.len() + bytes.len() > INCOMING_BYTES_MAX {
            let (class, reason) = (
                "the peer violated the protocol",
                "a message of the handshake is too long, or its records are too short".into(),
            );
            self.fail(TlsError::Refused { class, reason });
            return 0;
        }
        self.incoming.extend_from_slice(bytes);
        self.advance(direct, Write::Nothing)
    }

    /// Processes what was received, and sends `write`. Returns how many plain bytes went to `direct`.
    fn advance(&mut self, direct: &mut [u8], write: Write<'_>) -> usize {
        let mut plain = Plain { direct, filled: 0, rest: &mut self.plain };
        // After a failure only what there is to be sent is processed, the alert for the peer: rustls must not see the input again.
        while self.failure.is_none() || self.side.wants_write() {
            let (outgoing, peer_ended) = (&mut self.outgoing, &mut self.peer_ended);
            let (discard, step) = match &mut self.side {
                Side::Server(server) => {
                    handle(server.process_tls_records(&mut self.incoming), write, &mut plain, outgoing, peer_ended)
                }
                Side::Client(client) => {
                    handle(client.process_tls_records(&mut self.incoming), write, &mut plain, outgoing, peer_ended)
                }
            };
            self.incoming.drain(..discard);
            match step {
                Step::Again => {}
                Step::Blocked => break,
                Step::Ready => {
                    self.is_established = true;
                    break;
                }
                Step::Failed(error) => _ = self.failure.get_or_insert(error),
            }
        }
        if self.incoming.is_empty() {
            // An idle connection keeps no buffer.
            self.incoming = Vec::new();
        }
        plain.filled
    }

    /// Encrypts as much of `data` as fits into a record, and returns how much.
    pub(crate) fn encrypt(&mut self, data: &[u8]) -> Result<usize, NetError> {
        if let Some(error) = &self.failure {
            return Err(error.of_stream());
        }
        if self.is_closed {
            return Err(NetError::Reset);
        }
        let data = &data[..data.len().min(RECORD_BYTES)];
        self.advance(&mut [], Write::Data(data));
        self.failure.as_ref().map_or(Ok(data.len()), |error| Err(error.of_stream()))
    }

    /// Announces the end of our data (`close_notify`), once.
    pub(crate) fn close(&mut self) {
        if self.is_established && self.failure.is_none() && !mem::replace(&mut self.is_closed, true) {
            self.advance(&mut [], Write::Close);
        }
    }

    /// Records to be sent, which the caller sends in this order; `buffer`, which is empty, becomes the next one to collect them in.
    pub(crate) fn take_outgoing(&mut self, buffer: &mut Vec<u8>) {
        mem::swap(&mut self.outgoing, buffer);
    }
}

/// What is to be sent once data can be sent.
#[derive(Clone, Copy)]
enum Write<'a> {
    Nothing,
    /// At most [`RECORD_BYTES`].
    Data(&'a [u8]),
    Close,
}

/// Handles one state of a connection. Returns how many bytes of what was received were processed.
fn handle<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    write: Write<'_>,
    plain: &mut Plain<'_>,
    outgoing: &mut Vec<u8>,
    peer_ended: &mut bool,
) -> (usize, Step) {
    let UnbufferedStatus { mut discard, state } = status;
    let step = match state {
        Ok(ConnectionState::ReadTraffic(mut traffic)) => {
            // In memory that rustls has allocated: it is copied once.
            while let Some(Ok(record)) = traffic.next_record() {
                discard += record.discard;
                plain.take(record.payload);
            }
            Step::Again
        }
        Ok(ConnectionState::EncodeTlsData(mut message)) => append(outgoing, 0, |space| {
            message.encode(space).map_err(|error| match error {
                EncodeError::InsufficientSize(size) => Some(size),
                EncodeError::AlreadyEncoded => None,
            })
        }),
        Ok(ConnectionState::TransmitTlsData(sent)) => {
            // It is in `outgoing`, which is sent in order.
            sent.done();
            Step::Again
        }
        Ok(ConnectionState::PeerClosed) => {
            *peer_ended = true;
            Step::Again
        }
        Ok(ConnectionState::WriteTraffic(mut traffic)) => {
            let size = |error| if let EncryptError::InsufficientSize(size) = error { Some(size) } else { None };
            match write {
                Write::Nothing => {}
                Write::Data(data) => {
                    append(outgoing, data.len(), |space| traffic.encrypt(data, space).map_err(size));
                }
                Write::Close => {
                    append(outgoing, 0, |space| traffic.queue_close_notify(space).map_err(size));
                }
            }
            Step::Ready
        }
        // Early data is switched off in every context.
        Ok(_) => Step::Blocked,
        Err(error) => Step::Failed(TlsError::refused(&error)),
    };
    (discard, step)
}

/// Has `encode` write a message behind `outgoing`: with space for `data_bytes` in a record, and again with what it then requires.
fn append(
    outgoing: &mut Vec<u8>,
    data_bytes: usize,
    mut encode: impl FnMut(&mut [u8]) -> Result<usize, Option<InsufficientSizeError>>,
) -> Step {
    let start = outgoing.len();
    let mut space_bytes = data_bytes + OVERHEAD_BYTES;
    for _ in 0..2 {
        outgoing.resize(start + space_bytes, 0);
        match encode(&mut outgoing[start..]) {
            Ok(count) => {
                outgoing.truncate(start + count);
                return Step::Again;
            }
            Err(Some(size)) => space_bytes = size.required_size,
            Err(None) => break,
        }
    }
    outgoing.truncate(start);
    let (class, reason) = ("the connection has sent as much as its keys allow", "open another one".into());
    Step::Failed(TlsError::Refused { class, reason })
}
