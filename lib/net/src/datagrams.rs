//! UDP: ports that are open for datagrams, with bounded queues both ways.
//!
//! What is received goes through smoltcp's socket of the port; what is sent, through a queue of ours and one more socket, which sends one
//! datagram. Datagrams for a neighbour whose hardware address is unknown wait in `neighbours.rs`, and no other one waits behind them.

use crate::stack::Watched;
use crate::state::{State, to_smoltcp};
use crate::trace::{RECEIVE_DATAGRAM, SEND_DATAGRAM};
use alloc::vec;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::task::{Context, Poll, Waker};
use glass_api::NetError;
use glass_lib_trace::BlockKind;
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::phy::Device;
use smoltcp::socket::udp::{PacketBuffer, PacketMetadata, RecvError, Socket};
use smoltcp::wire::{IpAddress, IpEndpoint};

/// Ports that may be open for datagrams at once.
const PORTS_MAX: usize = 16;
/// Datagrams in each direction's queue.
const DATAGRAMS_MAX: usize = 512;
/// Datagrams that a port sends in one poll at most.
const DATAGRAMS_PER_POLL: usize = 256;
/// Headers of UDP over IPv4 and IPv6.
const HEADERS_BYTES: [usize; 2] = [20 + 8, 40 + 8];

/// A port that is open for datagrams.
pub(crate) struct Port {
    id: u64,
    pub(crate) port: u16,
    /// Where it receives, among the sockets that are not connections.
    receive: SocketHandle,
    outgoing: PacketBuffer<'static>,
    /// Its only socket sends one datagram.
    exit: SocketSet<'static>,
    exit_handle: SocketHandle,
    /// Where the datagram in it goes.
    loaded: Option<IpAddress>,
    sender: Option<Waker>,
}

fn buffer(count: usize, bytes: usize) -> PacketBuffer<'static> {
    PacketBuffer::new(vec![PacketMetadata::EMPTY; count], vec![0; bytes])
}

impl Port {
    fn exit_socket(&mut self) -> &mut Socket<'static> {
        self.exit.get_mut(self.exit_handle)
    }

    /// Puts the next datagram into the exit, unless one is there. Returns where it goes.
    fn load(&mut self) -> Option<IpAddress> {
        while self.loaded.is_none() {
            let (meta, data) = self.outgoing.dequeue().ok()?;
            // It fails for one that smoltcp never takes, which `State::poll_send_to` has excluded.
            let socket = self.exit.get_mut::<Socket>(self.exit_handle);
            self.loaded = socket.send_slice(data, meta).ok().map(|()| meta.endpoint.addr);
            self.wake();
        }
        self.loaded
    }

    fn wake(&mut self) {
        if let Some(sender) = self.sender.take() {
            sender.wake();
        }
    }

    fn has_work(&self) -> bool {
        !self.outgoing.is_empty() || self.loaded.is_some()
    }
}

fn exit_socket(port: u16, bytes: usize) -> Socket<'static> {
    let mut socket = Socket::new(buffer(1, 1), buffer(1, bytes));
    socket.bind(port).expect("the port is not 0 and the socket is new");
    socket
}

impl State {
    /// Opens a port for datagrams and returns its id and number.
    pub(crate) fn bind(&mut self, port: u16) -> Result<(u64, u16), NetError> {
        if self.ports.len() == PORTS_MAX {
            return Err(NetError::TooMany);
        }
        let port = match port {
            0 => self.free_port().ok_or(NetError::TooMany)?,
            port if self.ports.iter().any(|open| open.port == port) => return Err(NetError::PortInUse(port.into())),
            port => port,
        };
        let mut socket = Socket::new(buffer(DATAGRAMS_MAX, self.config.datagram_bytes), buffer(1, 1));
        socket.bind(port).map_err(|_| NetError::PortInUse(port.into()))?;
        let mut exit = SocketSet::new(Vec::with_capacity(1));
        let exit_handle = exit.add(exit_socket(port, self.mtu));
        self.ports_made += 1;
        let id = self.ports_made;
        self.ports.push(Port {
            id,
            port,
            receive: self.control.add(socket),
            outgoing: buffer(DATAGRAMS_MAX, self.config.datagram_bytes),
            exit,
            exit_handle,
            loaded: None,
            sender: None,
        });
        Ok((id, port))
    }

    /// Closes a port. What was not sent is dropped.
    pub(crate) fn close_port(&mut self, id: u64) {
        if let Some(index) = self.ports.iter().position(|port| port.id == id) {
            let port = self.ports.remove(index);
            self.control.remove(port.receive);
        }
    }

    /// Queues a datagram.
    pub(crate) fn poll_send_to(
        &mut self,
        id: u64,
        data: &[u8],
        remote: SocketAddr,
        context: &mut Context,
    ) -> Poll<Result<(), NetError>> {
        let bytes_max = self.mtu.saturating_sub(HEADERS_BYTES[usize::from(remote.is_ipv6())]);
        if data.len() > bytes_max {
            return Poll::Ready(Err(NetError::TooLong { bytes: data.len(), bytes_max }));
        }
        let remote = IpEndpoint::from(remote);
        if !self.can_reach(remote.addr) || remote.port == 0 || remote.addr.is_unspecified() {
            return Poll::Ready(Err(NetError::NoNetwork));
        }
        let Some(port) = self.ports.iter_mut().find(|port| port.id == id) else {
            return Poll::Ready(Err(NetError::NoNetwork));
        };
        match port.outgoing.enqueue(data.len(), remote.into()) {
            Ok(place) => {
                place.copy_from_slice(data);
                Poll::Ready(Ok(()))
            }
            Err(_) => {
                port.sender = Some(context.waker().clone());
                glass_lib_trace::block(BlockKind::Send, &SEND_DATAGRAM, port.port.into());
                Poll::Pending
            }
        }
    }

    /// Takes the next datagram.
    pub(crate) fn poll_recv_from(
        &mut self,
        id: u64,
        buf: &mut [u8],
        context: &mut Context,
    ) -> Poll<Result<(usize, SocketAddr), NetError>> {
        let Some(port) = self.ports.iter_mut().find(|port| port.id == id) else {
            return Poll::Ready(Err(NetError::NoNetwork));
        };
        let socket = self.control.get_mut::<Socket>(port.receive);
        match socket.recv() {
            Ok((data, meta)) => {
                let count = data.len().min(buf.len());
                buf[..count].copy_from_slice(&data[..count]);
                Poll::Ready(Ok((count, SocketAddr::new(meta.endpoint.addr.into(), meta.endpoint.port))))
            }
            Err(RecvError::Exhausted | RecvError::Truncated) => {
                socket.register_recv_waker(context.waker());
                glass_lib_trace::block(BlockKind::Receive, &RECEIVE_DATAGRAM, port.port.into());
                Poll::Pending
            }
        }
    }

    /// Sends queued datagrams of every port. Returns whether it sent one.
    pub(crate) fn send_datagrams<D: Device>(&mut self, device: &mut Watched<'_, D>) -> bool {
        let mut moved = false;
        for port in &mut self.ports {
            for _ in 0..DATAGRAMS_PER_POLL {
                if device.blocked {
                    break;
                }
                device.remote = port.load();
                if device.remote.is_none() {
                    break;
                }
                self.interface.poll_egress(to_smoltcp(self.now), device, &mut port.exit);
                // The exit has room when it has no datagram.
                if port.exit_socket().can_send() {
                    port.loaded = None;
                    moved = true;
                }
            }
        }
        device.remote = None;
        moved
    }

    /// Whether a port may have something to send.
    pub(crate) fn has_datagrams(&self) -> bool {
        self.ports.iter().any(Port::has_work)
    }

    /// Whether a port is open for datagrams.
    pub(crate) fn has_port(&self, port: u16) -> bool {
        self.ports.iter().any(|open| open.port == port)
    }
}
