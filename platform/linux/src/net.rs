//! The host's sockets: TCP, UDP, and vsock in two forms.

use crate::host::Host;
use crate::reactor::{Interest, Role, Watched};
use crate::stream::{HostStream, net_error, port_of};
use crate::sys;
use crate::vsock::{self, HybridPort};
use glass_api::{Address, Clock, Datagrams, Listener, Net, NetError, NetInfo, Port, VsockAddress};
use rustix::io::Errno;
use rustix::net::addr::SocketAddrArg;
use rustix::net::sockopt;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrAny, SocketFlags, SocketType, ipproto};
use std::convert::Infallible;
use std::future::poll_fn;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

/// Connections that the kernel keeps for us until we accept them; it may allow fewer.
const BACKLOG: i32 = 4096;

/// The longest payload of UDP over IPv4.
const DATAGRAM_BYTES_MAX: usize = 65_507;

/// How long accepting rests when the process has no descriptors left.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// Bytes that a connection takes before they are sent. Without a bound the kernel takes up to 4 MB, which costs a millisecond or two, for each
/// client that does not read.
const UNSENT_BYTES: u32 = 512 << 10;

/// A peer that vanished without a word is noticed after 30 + 3 * 10 seconds of silence.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;

/// The host's network.
#[derive(Clone)]
pub struct HostNet {
    pub(crate) host: Rc<Host>,
}

/// Listens on one port: a TCP port of the address of `--bind`, or a vsock port.
pub struct HostListener {
    host: Rc<Host>,
    port: Port,
    source: Connections,
}

/// Where connections come from.
enum Connections {
    /// A socket that listens.
    Socket(Watched),
    /// A port of the unix socket that stands for vsock.
    Hybrid(HybridPort),
}

/// A port that is open for datagrams.
pub struct HostDatagrams {
    socket: Watched,
    port: u16,
    is_ipv6: bool,
}

fn new_socket(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))
}

/// An address of one of the families.
fn address(any: &SocketAddrAny) -> Option<Address> {
    match any.address_family() {
        AddressFamily::VSOCK => vsock::address(any).map(Address::Vsock),
        _ => SocketAddr::try_from(any.clone()).ok().map(|address| Address::Ip(unmapped(address))),
    }
}

/// An IPv4 address as such; a socket for both families has it as an IPv6 address (RFC 4291, section 2.5.5.2).
fn unmapped(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Where to bind, and the same without IPv6 for a host that has none: `::` is every address of both families.
fn places(address: IpAddr, port: u16) -> impl Iterator<Item = SocketAddr> {
    let every = address == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let without = every.then_some(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    [Some(address), without].into_iter().flatten().map(move |address| SocketAddr::new(address, port))
}

/// Calls `open` for the first of these places that the host has.
fn open_first<T>(address: IpAddr, port: u16, open: impl Fn(SocketAddr) -> Result<T, Errno>) -> Result<T, Errno> {
    let mut result = Err(Errno::AFNOSUPPORT);
    for place in places(address, port) {
        result = open(place);
        if !matches!(result, Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL)) {
            break;
        }
    }
    result
}

/// Lets a socket for `::` receive from IPv4 addresses, too, whatever the host's default is.
fn listen_to_both(socket: &OwnedFd, address: SocketAddr) -> Result<(), Errno> {
    if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) { sockopt::set_ipv6_v6only(socket, false) } else { Ok(()) }
}

/// Accepted sockets inherit these from their listener.
fn set_options(socket: &OwnedFd) -> Result<(), Errno> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sys::set_tcp_notsent_lowat(socket, UNSENT_BYTES)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)
}

impl HostNet {
    fn listen_tcp(&self, address: SocketAddr) -> Result<HostListener, Errno> {
        let socket = new_socket(address)?;
        listen_to_both(&socket, address)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        set_options(&socket)?;
        rustix::net::bind(&socket, &address)?;
        let address = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
        self.listen_on(socket, Port::Tcp(address.port()))
    }

    fn bind_to(&self, address: SocketAddr) -> Result<HostDatagrams, Errno> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, Some(ipproto::UDP))?;
        listen_to_both(&socket, address)?;
        rustix::net::bind(&socket, &address)?;
        let port = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?.port();
        let socket = self.host.core.reactor().watch(socket, Role::Datagrams(port), true)?;
        Ok(HostDatagrams { socket, port, is_ipv6: address.is_ipv6() })
    }

    fn listen_vsock(&self, port: u32) -> Result<HostListener, NetError> {
        if let Some(hybrid) = &self.host.hybrid {
            let source = hybrid.listen(&self.host.core, port)?;
            return Ok(HostListener {
                host: self.host.clone(),
                port: Port::Vsock(source.number()),
                source: Connections::Hybrid(source),
            });
        }
        let (socket, port) = vsock::bind(port)?;
        self.listen_on(socket, Port::Vsock(port)).map_err(net_error)
    }

    fn listen_on(&self, socket: OwnedFd, port: Port) -> Result<HostListener, Errno> {
        rustix::net::listen(&socket, BACKLOG)?;
        let socket = self.host.core.reactor().watch(socket, Role::Listener(number(port)), false)?;
        Ok(HostListener { host: self.host.clone(), port, source: Connections::Socket(socket) })
    }

    async fn connect_tcp(&self, remote: SocketAddr) -> Result<HostStream, Errno> {
        let socket = new_socket(remote)?;
        set_options(&socket)?;
        self.connect_to(socket, &remote, remote.into()).await
    }

    async fn connect_vsock(&self, remote: VsockAddress) -> Result<HostStream, NetError> {
        if let Some(hybrid) = &self.host.hybrid {
            let (socket, path) = hybrid.socket_to(remote.port)?;
            return self.connect_to(socket, &path, remote.into()).await.map_err(|errno| match errno {
                // The host has no such socket, or nothing listens there.
                Errno::NOENT => NetError::Reset,
                other => net_error(other),
            });
        }
        let socket = vsock::new_socket()?;
        self.connect_to(socket, &vsock::SocketAddress::new(remote), remote.into()).await.map_err(net_error)
    }

    async fn connect_to(
        &self,
        socket: OwnedFd,
        remote: &impl SocketAddrArg,
        peer: Address,
    ) -> Result<HostStream, Errno> {
        let begun = rustix::net::connect(&socket, remote);
        let connected = match begun {
            Ok(()) => true,
            Err(Errno::INPROGRESS | Errno::INTR) => false,
            Err(error) => return Err(error),
        };
        let socket = self.host.core.reactor().watch(socket, Role::Connection, connected)?;
        let established = |socket: &Watched| sockopt::socket_error(socket.fd())?;
        poll_fn(|context| socket.poll(Interest::Write, context, || established(&socket))).await?;
        let local = rustix::net::getsockname(socket.fd()).ok().and_then(|local| address(&local));
        Ok(HostStream::new(socket, local.map_or(0, port_of), peer))
    }
}

fn number(port: Port) -> u32 {
    match port {
        Port::Tcp(port) => port.into(),
        Port::Vsock(port) => port,
    }
}

impl Net for HostNet {
    type Listener = HostListener;
    type Stream = HostStream;
    type Datagrams = HostDatagrams;
    type MessageListener = Infallible;
    type Messages = Infallible;

    async fn up(&self) -> Result<NetInfo, NetError> {
        if !self.host.bind.is_unspecified() {
            return Ok(NetInfo { address: self.host.bind, connections_max: usize::MAX });
        }
        // The address that the host would use towards the rest of the world (192.0.2.0/24 and
        // 2001:db8::/32 are for documents). Connecting a UDP socket looks up a route and sends nothing.
        let far = [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))];
        let address = far.into_iter().find_map(|far| {
            let any = if far.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
            let socket = UdpSocket::bind((any, 0)).ok()?;
            socket.connect((far, 9)).ok()?;
            Some(socket.local_addr().ok()?.ip())
        });
        Ok(NetInfo { address: address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)), connections_max: usize::MAX })
    }

    async fn listen(&self, port: impl Into<Port>) -> Result<HostListener, NetError> {
        match port.into() {
            Port::Vsock(port) => self.listen_vsock(port),
            Port::Tcp(port) => {
                open_first(self.host.bind, port, |at| self.listen_tcp(at)).map_err(|errno| match errno {
                    Errno::ADDRINUSE => NetError::PortInUse(Port::Tcp(port)),
                    other => net_error(other),
                })
            }
        }
    }

    async fn bind(&self, port: u16) -> Result<HostDatagrams, NetError> {
        open_first(self.host.bind, port, |at| self.bind_to(at)).map_err(|errno| match errno {
            Errno::ADDRINUSE => NetError::PortInUse(port.into()),
            other => net_error(other),
        })
    }

    async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, NetError> {
        self.host.names.resolve(name).await
    }

    async fn connect_to(&self, remote: Address) -> Result<HostStream, NetError> {
        match remote {
            Address::Ip(remote) => self.connect_tcp(remote).await.map_err(net_error),
            Address::Vsock(remote) => self.connect_vsock(remote).await,
        }
    }

    async fn listen_messages(&self, _port: u32) -> Result<Infallible, NetError> {
        Err(NetError::NoMessages)
    }

    async fn connect_messages(&self, _remote: VsockAddress) -> Result<Infallible, NetError> {
        Err(NetError::NoMessages)
    }
}

impl Datagrams for HostDatagrams {
    async fn send_to(&self, data: &[u8], remote: SocketAddr) -> Result<(), NetError> {
        let socket = &self.socket;
        let remote = match remote.ip() {
            IpAddr::V4(address) if self.is_ipv6 => SocketAddr::new(address.to_ipv6_mapped().into(), remote.port()),
            _ => remote,
        };
        let send = || rustix::net::sendto(socket.fd(), data, SendFlags::NOSIGNAL, &remote);
        match poll_fn(|context| socket.poll(Interest::Write, context, send)).await {
            Ok(_) => Ok(()),
            Err(Errno::MSGSIZE) => Err(NetError::TooLong { bytes: data.len(), bytes_max: DATAGRAM_BYTES_MAX }),
            Err(error) => Err(net_error(error)),
        }
    }

    async fn recv_from(&self, buf: &mut [u8]) -> Result<(usize, SocketAddr), NetError> {
        let socket = &self.socket;
        let mut receive = || {
            let (count, _, remote) = rustix::net::recvfrom(socket.fd(), &mut *buf, RecvFlags::empty())?;
            Ok((count, remote.and_then(|remote| SocketAddr::try_from(remote).ok().map(unmapped))))
        };
        loop {
            // One without a sender cannot be answered.
            if let (count, Some(remote)) =
                poll_fn(|context| socket.poll(Interest::Read, context, &mut receive)).await.map_err(net_error)?
            {
                return Ok((count, remote));
            }
        }
    }

    fn port(&self) -> u16 {
        self.port
    }
}

impl HostListener {
    async fn accept_one(&self, listener: &Watched) -> Result<HostStream, Errno> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let accept = || rustix::net::acceptfrom_with(listener.fd(), flags);
        let (socket, peer) = poll_fn(|context| listener.poll(Interest::Read, context, accept)).await?;
        let unknown = match self.port {
            Port::Tcp(_) => SocketAddr::new(self.host.bind, 0).into(),
            Port::Vsock(_) => VsockAddress { cid: u32::MAX, port: u32::MAX }.into(),
        };
        let peer = peer.as_ref().and_then(address).unwrap_or(unknown);
        let socket = self.host.core.reactor().watch(socket, Role::Connection, true)?;
        Ok(HostStream::new(socket, number(self.port), peer))
    }
}

impl Listener for HostListener {
    type Stream = HostStream;

    async fn accept(&mut self) -> Result<HostStream, NetError> {
        let accepted = match &self.source {
            Connections::Socket(socket) => self.accept_one(socket).await.map_err(net_error),
            Connections::Hybrid(port) => Ok(port.accept().await),
        };
        match accepted {
            Err(NetError::TooMany) => {
                // Without a pause we would fail again at once, for as long as the connection waits.
                self.host.core.sleep(EXHAUSTED_PAUSE).await;
                Err(NetError::TooMany)
            }
            outcome => outcome,
        }
    }

    fn port(&self) -> Port {
        self.port
    }
}
