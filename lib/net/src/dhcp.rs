//! Our IPv4 address from a DHCP server (RFC 2131), by smoltcp's client.
//!
//! The client needs an interface of Ethernet, which no other socket has. To renew a lease it sends to the server alone, so that interface
//! requests the server's hardware address; it gets it from our table of neighbours.

use crate::arp;
use crate::ingress::Frame;
use crate::link::{ETHERNET_BYTES, Link, Nowhere, Shape};
use crate::routes::{Route, classless_routes};
use crate::state::to_smoltcp;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use glass_api::Instant;
use smoltcp::iface::{self, Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, TxToken};
use smoltcp::socket::dhcpv4;
use smoltcp::time;
use smoltcp::wire::{
    DhcpPacket, EthernetAddress, HardwareAddress, IpAddress, IpCidr, Ipv4Address, Ipv4Cidr, Ipv4Packet, UdpPacket,
};

/// What we request of a server: a mask, routes, a router and name servers (RFC 3442 has the routes before the router).
const OPTION_ROUTES: u8 = 121;
const OPTIONS: &[u8] = &[1, OPTION_ROUTES, 3, 6];

/// What a server has given us.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) address: Option<Ipv4Cidr>,
    pub(crate) router: Option<Ipv4Address>,
    pub(crate) routes: Vec<Route>,
    pub(crate) name_servers: Vec<IpAddress>,
}

/// The client.
pub(crate) struct Dhcp {
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    mac: EthernetAddress,
    /// The server whose hardware address the client needs.
    wanted: Cell<Option<Ipv4Address>>,
    /// What a server has given us, or taken away, since the last poll.
    news: Option<Lease>,
}

impl Dhcp {
    pub(crate) fn new(mac: EthernetAddress, capabilities: DeviceCapabilities, seed: u64, now: Instant) -> Dhcp {
        let mut socket = dhcpv4::Socket::new();
        let mut retry = dhcpv4::RetryConfig::default();
        // A local network answers in milliseconds; the defaults (10 s, 5 s) would let one lost
        // frame delay a start by seconds.
        retry.discover_timeout = time::Duration::from_secs(1);
        retry.initial_request_timeout = time::Duration::from_secs(1);
        socket.set_retry_config(retry);
        socket.set_parameter_request_list(OPTIONS);
        let mut settings = iface::Config::new(HardwareAddress::Ethernet(mac));
        settings.random_seed = seed;
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let handle = sockets.add(socket);
        let interface = Interface::new(settings, &mut Shape(capabilities), to_smoltcp(now));
        Dhcp { interface, sockets, handle, mac, wanted: Cell::new(None), news: None }
    }

    /// Sends what is due. Returns whether it sent something.
    pub(crate) fn send(&mut self, now: Instant, device: &mut impl Device, link: &RefCell<Link>) -> bool {
        if let (Some(server), Some(IpCidr::Ipv4(own))) = (self.wanted.get(), self.interface.ip_addrs().first().copied())
            && let Some(mac) = link.borrow_mut().lookup(now, server.into())
        {
            self.wanted.set(None);
            self.receive(now, &arp::reply((mac, server), (self.mac, own.address())));
        }
        let mut device = Client { device, wanted: &self.wanted };
        let result = self.interface.poll_egress(to_smoltcp(now), &mut device, &mut self.sockets);
        self.take_event(&[]);
        result == PollResult::SocketStateChanged
    }

    /// Takes a frame of a server.
    pub(crate) fn receive(&mut self, now: Instant, frame: &[u8]) {
        self.interface.poll_ingress_single(to_smoltcp(now), &mut Whole(Some(frame)), &mut self.sockets);
        self.take_event(frame);
    }

    /// What a server has given us, if that has changed; nothing, if it has ended.
    pub(crate) fn poll(&mut self) -> Option<Lease> {
        self.news.take()
    }

    /// Takes the client's new configuration, which is the one in this frame.
    fn take_event(&mut self, frame: &[u8]) {
        let Some(event) = self.sockets.get_mut::<dhcpv4::Socket>(self.handle).poll() else { return };
        let lease = match event {
            dhcpv4::Event::Configured(config) => {
                // smoltcp would panic on invalid data of a server.
                let is_unicast = |address: &Ipv4Address| IpAddress::Ipv4(*address).is_unicast();
                let routes = routes_in(frame);
                Lease {
                    address: Some(config.address).filter(|address| is_unicast(&address.address())),
                    // A server that gives routes has its router among them (RFC 3442).
                    router: config.router.filter(|router| routes.is_none() && is_unicast(router)),
                    routes: routes.unwrap_or_default(),
                    name_servers: config.dns_servers.iter().copied().map(IpAddress::Ipv4).collect(),
                }
            }
            dhcpv4::Event::Deconfigured => Lease::default(),
        };
        // With all hosts as its neighbours, the interface requests the server's hardware address wherever it is.
        let own = lease.address.map(|address| IpCidr::Ipv4(Ipv4Cidr::new(address.address(), 0)));
        self.interface.update_ip_addrs(|addresses| {
            addresses.clear();
            addresses.extend(own);
        });
        self.news = Some(lease);
    }

    pub(crate) fn next_deadline(&mut self, now: Instant) -> Option<Instant> {
        self.interface.poll_at(to_smoltcp(now), &self.sockets).map(crate::state::from_smoltcp)
    }
}

/// The routes in a server's message, if there are some.
fn routes_in(frame: &[u8]) -> Option<Vec<Route>> {
    let packet = Ipv4Packet::new_checked(frame.get(ETHERNET_BYTES..)?).ok()?;
    let message = UdpPacket::new_checked(packet.payload()).ok()?.payload();
    let message = DhcpPacket::new_checked(message).ok()?;
    let option = message.options().find(|option| option.kind == OPTION_ROUTES)?;
    classless_routes(option.data)
}

/// A device that receives one frame, as it is.
struct Whole<'f>(Option<&'f [u8]>);

impl<'f> Device for Whole<'f> {
    type RxToken<'a>
        = Frame<'f>
    where
        Self: 'a;
    type TxToken<'a>
        = Nowhere
    where
        Self: 'a;

    fn receive(&mut self, _: time::Instant) -> Option<(Frame<'f>, Nowhere)> {
        Some((Frame(self.0.take()?), Nowhere))
    }

    fn transmit(&mut self, _: time::Instant) -> Option<Nowhere> {
        None
    }

    fn capabilities(&self) -> DeviceCapabilities {
        DeviceCapabilities::default()
    }
}

/// The device of the client's interface.
struct Client<'d, D> {
    device: &'d mut D,
    wanted: &'d Cell<Option<Ipv4Address>>,
}

struct Message<'d, T> {
    transmit: T,
    wanted: &'d Cell<Option<Ipv4Address>>,
}

impl<D: Device> Device for Client<'_, D> {
    type RxToken<'a>
        = D::RxToken<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = Message<'a, D::TxToken<'a>>
    where
        Self: 'a;

    fn receive(&mut self, _: time::Instant) -> Option<(Self::RxToken<'_>, Self::TxToken<'_>)> {
        None
    }

    fn transmit(&mut self, now: time::Instant) -> Option<Self::TxToken<'_>> {
        Some(Message { transmit: self.device.transmit(now)?, wanted: self.wanted })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = self.device.capabilities();
        capabilities.medium = Medium::Ethernet;
        capabilities
    }
}

impl<T: TxToken> TxToken for Message<'_, T> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let mut frame = vec![0; len];
        let result = write(&mut frame);
        match arp::arp_in(&frame) {
            Some(request) => self.wanted.set(Some(request.target)),
            None => self.transmit.consume(len, |bytes| bytes.copy_from_slice(&frame)),
        }
        result
    }
}
