//! Addresses by DHCP, from a server made by hand.

use crate::common::{End, config};
use core::net::IpAddr;
use core::time::Duration;
use glass_api::{Instant, Net};
use glass_lib_executor::{Executor, Unpark};
use glass_lib_net::smoltcp::phy::ChecksumCapabilities;
use glass_lib_net::smoltcp::wire::*;
use glass_lib_net::{Address, Config, Notice, Stack};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

const SERVER: Ipv4Address = Ipv4Address::new(10, 0, 2, 2);
const GIVEN: Ipv4Address = Ipv4Address::new(10, 0, 2, 15);
const NAME_SERVER: Ipv4Address = Ipv4Address::new(10, 0, 2, 3);
const CLIENT_MAC: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 1]);
const SERVER_MAC: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 7]);
const LEASE_SECS: u32 = 120;

struct Nothing;
impl Unpark for Nothing {
    fn unpark(&self) {}
}

struct Lan {
    stack: Stack<End>,
    executor: Executor,
    now: Instant,
    /// The server answers.
    answers: bool,
    given: Ipv4Address,
    mask: Ipv4Address,
    router: Ipv4Address,
    /// The value of option 121.
    routes: Option<&'static [u8]>,
    /// It answers ARP requests for its own address.
    is_resolved: bool,
    /// What the client sent to the server alone.
    unicast: usize,
    /// TCP segments of the client.
    segments: usize,
    /// Targets of the client's ARP requests.
    asked: Vec<Ipv4Address>,
}

impl Lan {
    fn new() -> Lan {
        let end = End { incoming: Rc::default(), outgoing: Rc::default(), offloads: false, frames_max: 256 };
        let config = Config { address: Address::Dhcp, ..config(1) };
        Lan {
            stack: Stack::new(end, CLIENT_MAC.0, config, 1, Instant(0)).unwrap(),
            executor: Executor::new(Arc::new(Nothing)),
            now: Instant(0),
            answers: true,
            given: GIVEN,
            mask: Ipv4Address::new(255, 255, 255, 0),
            router: SERVER,
            routes: None,
            is_resolved: false,
            unicast: 0,
            segments: 0,
            asked: Vec::new(),
        }
    }

    fn advance(&mut self, duration: Duration) {
        let until = self.now + duration;
        loop {
            self.settle();
            if self.now >= until {
                return;
            }
            self.now = self.stack.next_deadline(self.now).unwrap_or(until).min(until).max(self.now);
        }
    }

    fn settle(&mut self) {
        for _ in 0..10_000 {
            self.executor.run_ready();
            let moved = self.stack.poll(self.now);
            let sent: Vec<Vec<u8>> = self.stack.device_mut().outgoing.borrow_mut().drain(..).collect();
            for frame in sent {
                if let Some(reply) = self.answer(&frame).filter(|_| self.answers) {
                    self.stack.device_mut().incoming.borrow_mut().push_back(reply);
                }
            }
            let waiting = !self.stack.device_mut().incoming.borrow().is_empty();
            if !moved && !waiting && !self.executor.has_ready() && !self.stack.has_work() {
                return;
            }
        }
        panic!("never comes to rest at {}", self.now);
    }

    fn answer(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        let frame = EthernetFrame::new_checked(bytes).unwrap();
        if frame.ethertype() == EthernetProtocol::Arp {
            let packet = ArpPacket::new_checked(frame.payload()).unwrap();
            let asked = Ipv4Address::from_octets(packet.target_protocol_addr().try_into().unwrap());
            self.asked.push(asked);
            return (self.is_resolved && asked == SERVER).then(|| arp_reply(asked, self.given));
        }
        self.unicast += usize::from(frame.dst_addr() == SERVER_MAC);
        let packet = Ipv4Packet::new_checked(frame.payload()).ok()?;
        self.segments += usize::from(packet.next_header() == IpProtocol::Tcp);
        let datagram = UdpPacket::new_checked(packet.payload()).ok()?;
        if datagram.dst_port() != 67 {
            return None;
        }
        let message = DhcpPacket::new_checked(datagram.payload()).unwrap();
        let request = DhcpRepr::parse(&message).unwrap();
        let message_type = match request.message_type {
            DhcpMessageType::Discover => DhcpMessageType::Offer,
            DhcpMessageType::Request => DhcpMessageType::Ack,
            _ => return None,
        };
        Some(self.reply(message_type, request.transaction_id))
    }

    fn reply(&self, message_type: DhcpMessageType, transaction_id: u32) -> Vec<u8> {
        let routes = self.routes.map(|data| DhcpOption { kind: 121, data });
        let dhcp = DhcpRepr {
            message_type,
            transaction_id,
            secs: 0,
            client_hardware_address: CLIENT_MAC,
            client_ip: Ipv4Address::UNSPECIFIED,
            your_ip: self.given,
            server_ip: SERVER,
            router: Some(self.router),
            subnet_mask: Some(self.mask),
            relay_agent_ip: Ipv4Address::UNSPECIFIED,
            broadcast: true,
            requested_ip: None,
            client_identifier: None,
            server_identifier: Some(SERVER),
            parameter_request_list: None,
            dns_servers: Some([NAME_SERVER].into_iter().collect()),
            max_size: None,
            lease_duration: Some(LEASE_SECS),
            renew_duration: None,
            rebind_duration: None,
            additional_options: routes.as_slice(),
        };
        let udp = UdpRepr { src_port: 67, dst_port: 68 };
        let (source, destination) = (SERVER, Ipv4Address::BROADCAST);
        let ip = Ipv4Repr {
            src_addr: source,
            dst_addr: destination,
            next_header: IpProtocol::Udp,
            payload_len: udp.header_len() + dhcp.buffer_len(),
            hop_limit: 64,
        };
        let mut bytes = vec![0; 14 + ip.buffer_len() + ip.payload_len];
        let mut frame = EthernetFrame::new_unchecked(&mut bytes[..]);
        let (from, to) = (SERVER_MAC, EthernetAddress::BROADCAST);
        EthernetRepr { src_addr: from, dst_addr: to, ethertype: EthernetProtocol::Ipv4 }.emit(&mut frame);
        let checksums = ChecksumCapabilities::default();
        let mut packet = Ipv4Packet::new_unchecked(frame.payload_mut());
        ip.emit(&mut packet, &checksums);
        udp.emit(
            &mut UdpPacket::new_unchecked(packet.payload_mut()),
            &source.into(),
            &destination.into(),
            dhcp.buffer_len(),
            |payload| dhcp.emit(&mut DhcpPacket::new_unchecked(payload)).unwrap(),
            &checksums,
        );
        bytes
    }

    /// Has a task listen without end.
    fn listen(&mut self) {
        let sockets = self.stack.sockets();
        let listen = async move {
            let _listener = sockets.listen(80_u16).await.unwrap();
            core::future::pending::<()>().await;
        };
        self.executor.spawn("listen", listen).unwrap();
    }

    /// The address that a task gets at this time.
    fn up(&mut self) -> Rc<Cell<Option<IpAddr>>> {
        let (sockets, learned) = (self.stack.sockets(), Rc::new(Cell::new(None)));
        let slot = learned.clone();
        self.executor.spawn("up", async move { slot.set(Some(sockets.up().await.unwrap().address)) }).unwrap();
        learned
    }
}

#[test]
fn an_address_is_learned_at_once_and_announced_when_somebody_listens() {
    let mut net = Lan::new();
    let learned = net.up();
    net.settle();
    assert_eq!((learned.get(), net.now), (Some(GIVEN.into()), Instant(0)));
    assert!(net.asked.is_empty());
    net.listen();
    net.settle();
    assert_eq!(net.asked, [GIVEN]);
}

#[test]
fn names_are_requested_from_the_server_that_the_lease_names() {
    let mut net = Lan::new();
    let sockets = net.stack.sockets();
    net.executor
        .spawn("resolve", async move {
            assert_eq!(sockets.resolve("queue.example").await, Err(glass_api::NetError::NoNameServer));
            sockets.up().await.unwrap();
            let _ = sockets.resolve("queue.example").await;
        })
        .unwrap();
    net.settle();
    assert_eq!(net.asked, [NAME_SERVER]);
}

#[test]
fn a_server_that_is_late_is_asked_again_within_a_second() {
    let mut net = Lan::new();
    net.answers = false;
    let learned = net.up();
    net.advance(Duration::from_millis(4500));
    assert_eq!(learned.get(), None);
    net.answers = true;
    net.advance(Duration::from_millis(1100));
    assert_eq!(learned.get(), Some(GIVEN.into()));
}

/// The server's answer to an ARP request.
fn arp_reply(server: Ipv4Address, client: Ipv4Address) -> Vec<u8> {
    let arp = ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Reply,
        source_hardware_addr: SERVER_MAC,
        source_protocol_addr: server,
        target_hardware_addr: CLIENT_MAC,
        target_protocol_addr: client,
    };
    let mut bytes = vec![0; 14 + arp.buffer_len()];
    let mut frame = EthernetFrame::new_unchecked(&mut bytes[..]);
    EthernetRepr { src_addr: SERVER_MAC, dst_addr: CLIENT_MAC, ethertype: EthernetProtocol::Arp }.emit(&mut frame);
    arp.emit(&mut ArpPacket::new_unchecked(frame.payload_mut()));
    bytes
}

/// A network whose client connects to another one after it has got its lease.
fn connecting_through(router: Ipv4Address) -> Lan {
    let mut net = Lan::new();
    net.router = router;
    connect(net)
}

fn connect(mut net: Lan) -> Lan {
    net.settle();
    let sockets = net.stack.sockets();
    net.executor
        .spawn("connect", async move {
            let _ = sockets.connect("192.0.2.1:80".parse::<core::net::SocketAddr>().unwrap()).await;
        })
        .unwrap();
    net.asked.clear();
    net.settle();
    net
}

#[test]
fn other_networks_are_reached_through_the_router() {
    assert_eq!(connecting_through(SERVER).asked, [SERVER]);
}

#[test]
fn a_router_outside_of_the_prefix_is_used_and_so_are_routes_instead_of_it() {
    let other = Ipv4Address::new(198, 51, 100, 9);
    // As Google's cloud gives them; none of them is the router of option 3.
    let routes: &[u8] = &[32, 10, 0, 2, 2, 0, 0, 0, 0, 0, 10, 0, 2, 2];
    for (router, routes) in [(SERVER, None), (other, Some(routes))] {
        let mut net = Lan::new();
        (net.router, net.routes, net.mask, net.is_resolved) = (router, routes, Ipv4Address::BROADCAST, true);
        let net = connect(net);
        assert_eq!((&net.asked[..], net.segments), (&[SERVER][..], 1), "{router}");
    }
}

#[test]
fn a_lease_is_renewed_at_the_server_alone_although_it_is_outside_of_the_prefix() {
    let mut net = Lan::new();
    (net.mask, net.is_resolved) = (Ipv4Address::BROADCAST, true);
    net.settle();
    assert_eq!(net.unicast, 0);
    net.advance(Duration::from_secs(u64::from(LEASE_SECS) * 10));
    // Half of a lease's time each.
    assert_eq!(net.unicast, 19);
    let learned = net.up();
    net.settle();
    assert_eq!(learned.get(), Some(GIVEN.into()));
}

#[test]
fn a_router_that_no_host_can_be_is_not_used() {
    for router in [Ipv4Address::new(224, 0, 0, 1), Ipv4Address::BROADCAST, Ipv4Address::UNSPECIFIED] {
        let net = connecting_through(router);
        assert_eq!((&net.asked[..], net.segments), (&[][..], 0), "{router}");
    }
}

#[test]
fn a_lease_is_renewed_and_its_end_ends_the_address() {
    let mut net = Lan::new();
    net.advance(Duration::from_secs(u64::from(LEASE_SECS) * 5));
    let learned = net.up();
    net.settle();
    assert_eq!(learned.get(), Some(GIVEN.into()));

    net.answers = false;
    net.advance(Duration::from_secs(u64::from(LEASE_SECS) + 1));
    let learned = net.up();
    net.settle();
    assert_eq!(learned.get(), None);

    net.answers = true;
    net.given = Ipv4Address::new(10, 0, 2, 16);
    net.advance(Duration::from_secs(10));
    assert_eq!(learned.get(), Some(net.given.into()));
    let notices: Vec<_> = core::iter::from_fn(|| net.stack.take_notice()).collect();
    assert_eq!(notices, [Notice::Lost(GIVEN), Notice::Regained(net.given)]);
}

#[test]
fn an_address_that_no_host_can_have_is_not_taken() {
    for given in [Ipv4Address::new(224, 0, 0, 1), Ipv4Address::BROADCAST, Ipv4Address::UNSPECIFIED] {
        let mut net = Lan::new();
        net.given = given;
        let learned = net.up();
        net.advance(Duration::from_secs(30));
        assert_eq!(learned.get(), None);
    }
}

#[test]
fn an_address_that_comes_after_the_listener_is_announced() {
    let mut net = Lan::new();
    net.answers = false;
    net.listen();
    net.advance(Duration::from_millis(500));
    net.answers = true;
    net.advance(Duration::from_secs(4));
    assert_eq!(net.asked, [GIVEN]);
}

#[test]
fn another_address_is_announced_again() {
    let mut net = Lan::new();
    net.listen();
    net.settle();
    net.answers = false;
    net.advance(Duration::from_secs(u64::from(LEASE_SECS) + 1));
    net.answers = true;
    net.given = Ipv4Address::new(10, 0, 2, 16);
    net.advance(Duration::from_secs(10));
    let announced = |address| net.asked.iter().filter(|asked| **asked == address).count();
    assert_eq!((announced(GIVEN), announced(net.given)), (1, 1));
}

#[test]
fn a_poll_that_asks_for_an_address_says_that_it_has_sent() {
    let mut net = Lan::new();
    assert!(net.stack.poll(net.now));
    assert_eq!(net.stack.device_mut().outgoing.borrow().len(), 1);
    assert!(!net.stack.poll(net.now));
}
