//! One connection of the host's sockets, whole or in halves.

use crate::reactor::{Interest, Watched};
use glass_api::{Address, Machine, NetError, ReadHalf, Split, Stream, WriteHalf};
use glass_lib_trace::Presence;
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

/// Bytes that one call drops at most.
const SKIPPED_BYTES_MAX: usize = 64 << 10;
/// What a service makes for one [`Stream::write_with`], at most.
const MADE_BYTES_MAX: usize = 64 << 10;

thread_local! {
    /// Where the kernel puts received bytes that are dropped, if it puts them anywhere.
    static SKIPPED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// Where a service makes what it sends; taken while it is sent.
    static MADE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// One connection.
pub struct HostStream {
    socket: Watched,
    local_port: u32,
    peer: Address,
    /// Our half ended in order, so a drop need not reset.
    closed: Cell<bool>,
}

pub(crate) fn net_error(errno: Errno) -> NetError {
    match errno {
        Errno::CONNRESET | Errno::CONNREFUSED | Errno::CONNABORTED | Errno::PIPE | Errno::NOTCONN => NetError::Reset,
        Errno::TIMEDOUT | Errno::HOSTUNREACH => NetError::TimedOut,
        Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::NOSPC => NetError::TooMany,
        other => NetError::Host(other.raw_os_error()),
    }
}

pub(crate) fn port_of(address: Address) -> u32 {
    match address {
        Address::Ip(address) => address.port().into(),
        Address::Vsock(address) => address.port,
    }
}

impl HostStream {
    pub(crate) fn new(socket: Watched, local_port: u32, peer: Address) -> HostStream {
        let stream = HostStream { socket, local_port, peer, closed: Cell::new(false) };
        stream.trace(Presence::Begins);
        stream
    }

    /// The connection begins, or ends.
    fn trace(&self, presence: Presence) {
        let remote = if let Machine::Ip(IpAddr::V4(address)) = self.peer.machine() { address.to_bits() } else { 0 };
        // The trace has 16 bits for a port.
        let ports = (self.local_port as u16, port_of(self.peer) as u16);
        glass_lib_trace::connection(self.socket.number(), presence, remote, ports.0, ports.1);
    }

    async fn receive(&self, buf: &mut [u8]) -> Result<usize, NetError> {
        self.receive_by(buf.len(), |socket| rustix::net::recv(socket.fd(), &mut *buf, RecvFlags::empty())).await
    }

    /// Has `receive` receive up to `max_bytes` bytes as soon as there are some.
    async fn receive_by(
        &self,
        max_bytes: usize,
        mut receive: impl FnMut(&Watched) -> rustix::io::Result<(usize, usize)>,
    ) -> Result<usize, NetError> {
        if max_bytes == 0 {
            return Ok(0);
        }
        let socket = &self.socket;
        let mut receive = || receive(socket).map(|(count, _)| count);
        let count = poll_fn(|context| socket.poll(Interest::Read, context, &mut receive)).await.map_err(net_error)?;
        if count < max_bytes {
            self.socket.exhausted(Interest::Read);
        }
        Ok(count)
    }

    async fn send(&self, data: &[u8]) -> Result<usize, NetError> {
        if data.is_empty() {
            return Ok(0);
        }
        let socket = &self.socket;
        let send = || rustix::net::send(socket.fd(), data, SendFlags::NOSIGNAL);
        let count = poll_fn(|context| socket.poll(Interest::Write, context, send)).await.map_err(net_error)?;
        if count < data.len() {
            self.socket.exhausted(Interest::Write);
        }
        Ok(count)
    }

    fn end(&self) -> Result<(), NetError> {
        rustix::net::shutdown(self.socket.fd(), Shutdown::Write).map_err(net_error)?;
        self.closed.set(true);
        Ok(())
    }
}

impl Stream for HostStream {
    async fn read(&mut self, buf: &mut [u8]) -> Result<usize, NetError> {
        self.receive(buf).await
    }

    async fn skip(&mut self, max_bytes: usize) -> Result<usize, NetError> {
        let count = max_bytes.min(SKIPPED_BYTES_MAX);
        // With this flag Linux drops what a TCP socket received instead of copying it (tcp(7)).
        let receive = |socket: &Watched, buffer: &mut Vec<u8>| {
            buffer.resize(SKIPPED_BYTES_MAX, 0);
            rustix::net::recv(socket.fd(), &mut buffer[..count], RecvFlags::TRUNC)
        };
        self.receive_by(count, |socket| SKIPPED.with_borrow_mut(|buffer| receive(socket, buffer))).await
    }

    async fn write(&mut self, data: &[u8]) -> Result<usize, NetError> {
        self.send(data).await
    }

    async fn write_with(&mut self, max_bytes: usize, fill: impl FnOnce(&mut [u8])) -> Result<usize, NetError> {
        let mut made = MADE.take();
        made.resize(MADE_BYTES_MAX, 0);
        let count = max_bytes.min(MADE_BYTES_MAX);
        fill(&mut made[..count]);
        let sent = self.write_all(&made[..count]).await;
        MADE.set(made);
        sent.map(|()| count)
    }

    async fn close(&mut self) -> Result<(), NetError> {
        self.end()
    }

    fn peer(&self) -> Address {
        self.peer
    }
}

/// What reads of a [`HostStream`] in halves.
pub struct HostReadHalf {
    stream: Rc<HostStream>,
}

/// What writes of a [`HostStream`] in halves.
pub struct HostWriteHalf {
    stream: Rc<HostStream>,
}

impl Split for HostStream {
    type ReadHalf = HostReadHalf;
    type WriteHalf = HostWriteHalf;

    fn split(self) -> (HostReadHalf, HostWriteHalf) {
        let stream = Rc::new(self);
        (HostReadHalf { stream: stream.clone() }, HostWriteHalf { stream })
    }
}

impl ReadHalf for HostReadHalf {
    async fn read(&mut self, buf: &mut [u8]) -> Result<usize, NetError> {
        self.stream.receive(buf).await
    }

    fn peer(&self) -> Address {
        self.stream.peer
    }
}

impl WriteHalf for HostWriteHalf {
    async fn write(&mut self, data: &[u8]) -> Result<usize, NetError> {
        self.stream.send(data).await
    }

    async fn close(&mut self) -> Result<(), NetError> {
        self.stream.end()
    }

    fn peer(&self) -> Address {
        self.stream.peer
    }
}

impl Drop for HostWriteHalf {
    fn drop(&mut self) {
        if !self.stream.closed.get() {
            // What fails here was broken before. For TCP: dissolving the association sends a reset at once, and wakes the task with
            // the other half (`tcp_disconnect` in Linux). Other sockets have no such call.
            let _ = match self.stream.peer {
                Address::Ip(_) => rustix::net::connect_unspec(self.stream.socket.fd()),
                Address::Vsock(_) => rustix::net::shutdown(self.stream.socket.fd(), Shutdown::Both),
            };
        }
    }
}

impl Drop for HostStream {
    fn drop(&mut self) {
        self.trace(Presence::Ends);
        if !self.closed.get() {
            // Closing with a linger time of zero sends a reset; a unix socket has none, and its peer sees an end. If this fails, so did the connection.
            let _ = sockopt::set_socket_linger(self.socket.fd(), Some(Duration::ZERO));
        }
    }
}
