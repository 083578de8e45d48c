//! Connections to QEMU: a unix or TCP socket with a bound on each wait.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use crate::sys::{self, Endpoint, connect_socket, open_socket};

/// The address of a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SocketAddress {
    /// A unix socket.
    Unix(PathBuf),
    /// Host and port.
    Tcp(String, u16),
}

impl fmt::Display for SocketAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SocketAddress::Unix(path) => write!(f, "{}", path.display()),
            SocketAddress::Tcp(host, port) => write!(f, "{host}:{port}"),
        }
    }
}

impl SocketAddress {
    /// The addresses to connect to: several if a host's name has several addresses.
    pub(crate) fn endpoints(&self) -> io::Result<Vec<Endpoint>> {
        match self {
            SocketAddress::Unix(path) => Ok(vec![Endpoint::Unix(path.clone())]),
            SocketAddress::Tcp(host, port) => {
                Ok((host.as_str(), *port).to_socket_addrs()?.map(Endpoint::Tcp).collect())
            }
        }
    }
}

/// A connection.
pub(crate) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    /// Connects; no read or write will take longer than `timeout`.
    pub(crate) fn connect(address: &SocketAddress, timeout: Duration) -> io::Result<Stream> {
        let mut last = io::Error::other("the name has no address");
        for endpoint in address.endpoints()? {
            let socket = open_socket(&endpoint)?;
            match connect_socket(&socket, &endpoint, timeout) {
                Ok(()) => return Stream::of(socket, &endpoint, timeout),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// A socket that was connected to `endpoint`.
    pub(crate) fn of(socket: OwnedFd, endpoint: &Endpoint, timeout: Duration) -> io::Result<Stream> {
        let stream = match endpoint {
            Endpoint::Unix(_) => Stream::Unix(UnixStream::from(socket)),
            Endpoint::Tcp(_) => {
                let stream = TcpStream::from(socket);
                stream.set_nodelay(true)?;
                Stream::Tcp(stream)
            }
        };
        match &stream {
            Stream::Unix(unix) => unix.set_write_timeout(Some(timeout))?,
            Stream::Tcp(tcp) => tcp.set_write_timeout(Some(timeout))?,
        }
        stream.set_read_timeout(timeout)?;
        Ok(stream)
    }

    /// Whether there is something to read, waiting for it at most this long.
    pub(crate) fn can_read(&self, at_most: Duration) -> bool {
        match self {
            Stream::Unix(unix) => sys::can_read(unix, at_most),
            Stream::Tcp(tcp) => sys::can_read(tcp, at_most),
        }
    }

    /// Bounds each later read.
    pub(crate) fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Stream::Unix(unix) => unix.set_read_timeout(Some(timeout)),
            Stream::Tcp(tcp) => tcp.set_read_timeout(Some(timeout)),
        }
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Stream::Unix(unix) => unix.as_raw_fd(),
            Stream::Tcp(tcp) => tcp.as_raw_fd(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(unix) => unix.read(into),
            Stream::Tcp(tcp) => tcp.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(unix) => unix.write(bytes),
            Stream::Tcp(tcp) => tcp.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
