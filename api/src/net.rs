//! Byte streams and datagrams between machines.

use crate::{Address, Buf, Port, VsockAddress};
use alloc::vec::Vec;
use core::convert::Infallible;
use core::fmt;
use core::net::{IpAddr, SocketAddr};

/// Connections over TCP, and over vsock between a VM and its host. Handles are cheap to clone.
pub trait Net: Clone + 'static {
    /// Accepts connections on one port.
    type Listener: Listener<Stream = Self::Stream>;
    /// One connection.
    type Stream: Split;
    /// A port that is open for datagrams.
    type Datagrams: Datagrams;
    /// Accepts connections of messages on one port.
    type MessageListener: MessageListener<Messages = Self::Messages>;
    /// One connection of messages.
    type Messages: Messages;

    /// Waits until the network has an address (DHCP may take a while) and returns it: the IPv4 address where there is one. An IPv6
    /// address may be there later; until then, connections to IPv6 addresses fail with [`NetError::NoNetwork`]. So does this when there is
    /// no network device.
    async fn up(&self) -> Result<NetInfo, NetError>;

    /// Listens on a TCP port (a `u16` is one) of every address of the platform, or of a process on the one that `--bind` names, or on a
    /// vsock port; 0 picks a free port. Fails with [`NetError::NoVsock`] when there is no vsock.
    async fn listen(&self, port: impl Into<Port>) -> Result<Self::Listener, NetError>;

    /// Opens `port` of every address for datagrams (UDP); 0 picks a free port.
    async fn bind(&self, port: u16) -> Result<Self::Datagrams, NetError>;

    /// The addresses of a host name, by the name servers of the network (DNS), at least one; an address in text form is its own answer.
    /// Answers are not kept. Fails with [`NetError::InvalidName`], [`NetError::NoSuchName`], [`NetError::NoAddress`],
    /// [`NetError::NoNameServer`], [`NetError::NameServerFailed`] or, when no server answers, [`NetError::TimedOut`]. (In a process, the
    /// host's resolver does not report all of them.) Dropping the future ends the query.
    ///
    /// ```
    /// # use core::net::SocketAddr;
    /// # use glass_api::{Net, NetError};
    /// async fn connect<N: Net>(net: &N, name: &str, port: u16) -> Result<N::Stream, NetError> {
    ///     let mut error = NetError::NoSuchName;
    ///     for address in net.resolve(name).await? {
    ///         match net.connect(SocketAddr::new(address, port)).await {
    ///             Ok(stream) => return Ok(stream),
    ///             Err(failed) => error = failed,
    ///         }
    ///     }
    ///     Err(error)
    /// }
    /// ```
    async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, NetError>;

    /// Opens a connection over TCP. Dropping the future abandons it.
    async fn connect(&self, remote: SocketAddr) -> Result<Self::Stream, NetError> {
        self.connect_to(remote.into()).await
    }

    /// Opens a connection over TCP or vsock. Dropping the future abandons it.
    async fn connect_to(&self, remote: Address) -> Result<Self::Stream, NetError>;

    /// Listens on a vsock port for connections of messages; 0 picks a free port. Fails with [`NetError::NoMessages`] where vsock has
    /// streams only, as in a process and with `vhost-device-vsock`.
    async fn listen_messages(&self, port: u32) -> Result<Self::MessageListener, NetError>;

    /// Opens a connection of messages. Fails as [`Net::listen_messages`]. Dropping the future abandons it.
    async fn connect_messages(&self, remote: VsockAddress) -> Result<Self::Messages, NetError>;
}

/// Properties of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetInfo {
    /// Our address.
    pub address: IpAddr,
    /// Maximum number of connections, including those being opened or closed; `usize::MAX` if the limit is unknown (a process).
    pub connections_max: usize,
}

/// Accepts connections. Dropping it closes the port; open streams continue.
pub trait Listener: 'static {
    /// One connection.
    type Stream: Stream;

    /// The next connection. An error concerns one connection; the listener remains usable, and pauses by itself when there are too
    /// many connections. Cancel safe.
    async fn accept(&mut self) -> Result<Self::Stream, NetError>;

    /// The port listened on.
    fn port(&self) -> Port;
}

/// What [`Stream::write_with`] makes at once where it cannot be made in place.
const MADE_BYTES_MAX: usize = 16 << 10;

/// One connection. Dropping it without [`Stream::close`] resets it.
pub trait Stream: 'static {
    /// Reads at least one byte into `buf`; `Ok(0)` when the peer has finished sending (or `buf` is
    /// empty). Cancel safe.
    async fn read(&mut self, buf: &mut [u8]) -> Result<usize, NetError>;

    /// Drops at least one received byte and at most `max_bytes`, without a copy where the transport can, and returns how many; `Ok(0)`
    /// when the peer has finished sending (or `max_bytes` is 0). Cancel safe.
    async fn skip(&mut self, max_bytes: usize) -> Result<usize, NetError> {
        let mut dropped = [0; 512];
        let count = max_bytes.min(dropped.len());
        self.read(&mut dropped[..count]).await
    }

    /// Queues at least one byte of `data` for sending and returns how many. Cancel safe: a future that is dropped has queued
    /// nothing.
    async fn write(&mut self, data: &[u8]) -> Result<usize, NetError>;

    /// Queues at least one byte and at most `max_bytes` that `fill` makes in place, in the transport's own memory where that is possible,
    /// and returns how many. `fill` is called once, with the room that there is; it has to write all of it, because bytes that it
    /// leaves as they are can be data of another connection. `Ok(0)` when `max_bytes` is 0. Not cancel safe: whether a dropped future has
    /// queued something is unknown.
    async fn write_with(&mut self, max_bytes: usize, fill: impl FnOnce(&mut [u8])) -> Result<usize, NetError> {
        let mut made = alloc::vec![0; max_bytes.min(MADE_BYTES_MAX)];
        fill(&mut made);
        self.write_all(&made).await?;
        Ok(made.len())
    }

    /// [`Stream::write`] without a copy where the transport can send from the buffer, which is then shared until it was sent.
    async fn write_buf(&mut self, data: &Buf) -> Result<usize, NetError> {
        self.write(data).await
    }

    /// Shuts down the sending half: sends queued data, then FIN. The receiving half stays readable. Returns when the FIN is queued;
    /// the peer may not have received everything yet.
    async fn close(&mut self) -> Result<(), NetError>;

    /// The other end.
    fn peer(&self) -> Address;

    /// Queues all of `data`. Not cancel safe: how much a dropped future has queued is unknown.
    async fn write_all(&mut self, mut data: &[u8]) -> Result<(), NetError> {
        while !data.is_empty() {
            let written = self.write(data).await?;
            data = &data[written..];
        }
        Ok(())
    }
}

/// A stream whose halves two tasks can use.
///
/// ```
/// # use glass_api::{NetError, ReadHalf, Spawn, SpawnError, Split, WriteHalf};
/// /// Sends while it receives, and returns how many bytes it received.
/// async fn exchange(platform: impl Spawn, stream: impl Split) -> Result<usize, SpawnError> {
///     let (mut reader, mut writer) = stream.split();
///     platform.spawn("sender", async move {
///         writer.write_all(b"hello\n").await?;
///         writer.close().await
///     })?;
///     let (mut total, mut buf) = (0, [0; 1000]);
///     while let Ok(count @ 1..) = reader.read(&mut buf).await {
///         total += count;
///     }
///     Ok(total)
/// }
/// ```
pub trait Split: Stream {
    /// What reads.
    type ReadHalf: ReadHalf;
    /// What writes.
    type WriteHalf: WriteHalf;

    /// Splits the stream. Dropping the write half without [`WriteHalf::close`] resets the connection; dropping the read half has no
    /// effect on the other half.
    fn split(self) -> (Self::ReadHalf, Self::WriteHalf);
}

/// The half of a [`Stream`] that reads.
pub trait ReadHalf: 'static {
    /// See [`Stream::read`].
    async fn read(&mut self, buf: &mut [u8]) -> Result<usize, NetError>;

    /// The other end.
    fn peer(&self) -> Address;
}

/// The half of a [`Stream`] that writes. Dropping it without [`WriteHalf::close`] resets the connection, so that neither
/// the peer nor the task with the other half waits for data that will not be sent.
pub trait WriteHalf: 'static {
    /// See [`Stream::write`].
    async fn write(&mut self, data: &[u8]) -> Result<usize, NetError>;

    /// See [`Stream::close`].
    async fn close(&mut self) -> Result<(), NetError>;

    /// The other end.
    fn peer(&self) -> Address;

    /// Queues all of `data`. Not cancel safe: how much a dropped future has queued is unknown.
    async fn write_all(&mut self, mut data: &[u8]) -> Result<(), NetError> {
        while !data.is_empty() {
            let written = self.write(data).await?;
            data = &data[written..];
        }
        Ok(())
    }
}

/// Sends and receives datagrams on one port. A datagram arrives whole or not at all, perhaps late, twice or after a later one; which
/// of these has happened is not reported. Both queues are bounded: what is received while they are full is lost. One task may send while
/// another receives. Dropping it closes the port.
pub trait Datagrams: 'static {
    /// Queues `data` for `remote` as one datagram, and waits while there is no room for it. Dropping the future before it completes queues
    /// nothing. Fails with [`NetError::TooLong`] where the network cannot carry so much in one.
    async fn send_to(&self, data: &[u8], remote: SocketAddr) -> Result<(), NetError>;

    /// The next datagram: its length and sender. Of a longer one than `buf` the rest is dropped. Dropping the future loses nothing.
    async fn recv_from(&self, buf: &mut [u8]) -> Result<(usize, SocketAddr), NetError>;

    /// The port.
    fn port(&self) -> u16;
}

/// Accepts connections of messages. Dropping it closes the port; open connections continue.
pub trait MessageListener: 'static {
    /// One connection.
    type Messages: Messages;

    /// The next connection. Cancel safe.
    async fn accept(&mut self) -> Result<Self::Messages, NetError>;

    /// The port listened on.
    fn port(&self) -> u32;
}

/// One connection that carries messages over vsock: each arrives whole, once and in order. Dropping it without [`Messages::close`] resets
/// it.
pub trait Messages: 'static {
    /// Queues a message, which may be empty, once the peer has room for all of it. Cancel safe: a future that is dropped has queued
    /// nothing. Fails with [`NetError::TooLong`] for one that is longer than the peer's whole window.
    async fn send(&mut self, message: &[u8]) -> Result<(), NetError>;

    /// The next message; `None` when the peer has finished sending. Cancel safe.
    async fn receive(&mut self) -> Result<Option<Buf>, NetError>;

    /// Shuts down the sending half after what was queued. The receiving half stays readable.
    async fn close(&mut self) -> Result<(), NetError>;

    /// The other end.
    fn peer(&self) -> VsockAddress;
}

/// The connections of a network that has none of messages.
impl Messages for Infallible {
    async fn send(&mut self, _message: &[u8]) -> Result<(), NetError> {
        match *self {}
    }

    async fn receive(&mut self) -> Result<Option<Buf>, NetError> {
        match *self {}
    }

    async fn close(&mut self) -> Result<(), NetError> {
        match *self {}
    }

    fn peer(&self) -> VsockAddress {
        match *self {}
    }
}

impl MessageListener for Infallible {
    type Messages = Infallible;

    async fn accept(&mut self) -> Result<Infallible, NetError> {
        match *self {}
    }

    fn port(&self) -> u32 {
        match *self {}
    }
}

/// The longest host name (RFC 1035, section 2.3.4, as text), and the longest part between two dots.
const NAME_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;

/// Whether a text is a host name that a name server can be queried for, with or without a dot at its end; otherwise
/// [`NetError::InvalidName`]. Underscores are allowed, because names have them.
pub fn check_host_name(name: &str) -> Result<(), NetError> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let is_label = |label: &str| {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=LABEL_BYTES_MAX).contains(&label.len()) && label.bytes().all(is_allowed)
    };
    let is_name = name.len() <= NAME_BYTES_MAX && name.split('.').all(is_label);
    if is_name { Ok(()) } else { Err(NetError::InvalidName) }
}

/// Why a network operation failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NetError {
    /// There is no network device.
    NoNetwork,
    /// There is no vsock device.
    NoVsock,
    /// Vsock has streams only here.
    NoMessages,
    /// The port is taken.
    PortInUse(Port),
    /// The peer refused or reset the connection, or it broke.
    Reset,
    /// The peer did not answer in time.
    TimedOut,
    /// No memory or no slot for another socket.
    TooMany,
    /// A datagram is longer than the network carries, or a message than the peer's window.
    TooLong {
        /// Its length.
        bytes: usize,
        /// The longest that is possible.
        bytes_max: usize,
    },
    /// A text is no host name.
    InvalidName,
    /// There is no host of this name.
    NoSuchName,
    /// A name is known, without an address that a host can have.
    NoAddress,
    /// A name server reported a failure of its own, or its answer is invalid.
    NameServerFailed,
    /// The network has no name server.
    NoNameServer,
    /// A secure connection was refused, by us or by the peer; the text states why.
    Tls(&'static str),
    /// The peer ended a secure connection without announcing it: what was received may not be all.
    Truncated,
    /// An error of the host's network; the number is its errno.
    Host(i32),
}

impl fmt::Display for NetError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            NetError::NoNetwork => write!(f, "there is no network device"),
            NetError::NoVsock => write!(f, "there is no vsock device: start the service with --vsock"),
            NetError::NoMessages => {
                write!(f, "vsock has no messages (SEQPACKET) here: use a stream, or a device that offers them")
            }
            NetError::PortInUse(port) => write!(f, "{port} is in use"),
            NetError::Reset => write!(f, "the connection was reset"),
            NetError::TimedOut => write!(f, "the peer did not answer in time"),
            NetError::TooMany => write!(f, "too many open connections"),
            NetError::TooLong { bytes, bytes_max } => {
                write!(f, "a message of {bytes} bytes is too long: at most {bytes_max} can be sent")
            }
            NetError::InvalidName => write!(
                f,
                "this is no host name: it may have ASCII letters, digits, hyphens, underscores and dots, and up to 63 characters between two dots"
            ),
            NetError::NoSuchName => write!(f, "there is no host of this name"),
            NetError::NoAddress => write!(f, "this name has no address of a host"),
            NetError::NameServerFailed => write!(f, "the name server failed to find out the address: try again later"),
            NetError::NoNameServer => write!(f, "there is no name server: start the service with --dns ADDRESS"),
            NetError::Tls(reason) => write!(f, "TLS: {reason}"),
            NetError::Truncated => write!(f, "the peer's data ended without `close_notify`: some may be missing"),
            NetError::Host(errno) => write!(f, "the host's network reported error {errno}"),
        }
    }
}

impl core::error::Error for NetError {}
