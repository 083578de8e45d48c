//! IPv6: addresses from routers, neighbour discovery, TCP and UDP, and what malicious neighbours send.

use crate::common::{RIGHT_MAC, Wire, config, run};
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use glass_api::{Datagrams, Listener, Net, NetError, ReadHalf, Split, Stream, WriteHalf};
use glass_lib_net::smoltcp::wire::*;
use glass_lib_net::{Address, Config, Ipv6, Notice, Sockets};
use std::cell::Cell;
use std::rc::Rc;

const PORT: u16 = 80;
const LIMIT: Duration = Duration::from_secs(60);
const ROUTER_MAC: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 9]);
const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 9);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const PREFIX: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 0);
/// Of the right stack, by its hardware address.
const LINK_LOCAL: &str = "fe80::ff:fe00:2";
const GLOBAL: &str = "2001:db8:0:1:0:ff:fe00:2";
const HOUR: Duration = Duration::from_secs(3600);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn v6(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

/// The right stack has `fd00::2`, the left one `fd00::1`.
fn fixed() -> Config {
    let ipv6 = Ipv6::Static { address: v6("fd00::2"), prefix_bits: 64, gateway: None };
    Config { ipv6, ..config(2) }
}

/// When a stack takes its first address: that much later than it is made.
const START_DELAY: Duration = Duration::from_millis(100);

/// Both get their addresses from a router, and have taken their link-local ones.
fn automatic() -> Wire {
    let mut wire = Wire::with(Config { ipv6: Ipv6::Auto, ..config(2) });
    wire.advance(START_DELAY);
    wire
}

/// A frame with an ICMPv6 message, of which `body` follows type and code and has its checksum at 0..2.
fn frame(source: Ipv6Addr, destination: Ipv6Addr, kind: u8, body: &[u8], hop_limit: u8) -> Vec<u8> {
    let ip = Ipv6Repr {
        src_addr: source,
        dst_addr: destination,
        next_header: IpProtocol::Icmpv6,
        payload_len: 2 + body.len(),
        hop_limit,
    };
    let mut bytes = vec![0; 14 + 40 + 2 + body.len()];
    let mut frame = EthernetFrame::new_unchecked(&mut bytes[..]);
    let (src_addr, dst_addr) = (ROUTER_MAC, EthernetAddress(RIGHT_MAC));
    EthernetRepr { src_addr, dst_addr, ethertype: EthernetProtocol::Ipv6 }.emit(&mut frame);
    let mut packet = Ipv6Packet::new_unchecked(frame.payload_mut());
    ip.emit(&mut packet);
    packet.payload_mut()[0] = kind;
    packet.payload_mut()[2..].copy_from_slice(body);
    Icmpv6Packet::new_unchecked(packet.payload_mut()).fill_checksum(&source, &destination);
    bytes
}

fn prefix_option(prefix: Ipv6Addr, valid: u32, preferred: u32) -> Vec<u8> {
    let mut option = vec![3, 4, 64, 0xc0];
    option.extend(valid.to_be_bytes());
    option.extend(preferred.to_be_bytes());
    option.extend([0; 4]);
    option.extend(prefix.octets());
    option
}

fn servers_option(lifetime: u32, servers: &[Ipv6Addr]) -> Vec<u8> {
    let mut option = vec![25, 1 + 2 * servers.len() as u8, 0, 0];
    option.extend(lifetime.to_be_bytes());
    option.extend(servers.iter().flat_map(Ipv6Addr::octets));
    option
}

/// A router's advertisement.
fn advert(router: Ipv6Addr, lifetime: u16, options: &[Vec<u8>]) -> Vec<u8> {
    let mut body = vec![0, 0, 64, 0];
    body.extend(lifetime.to_be_bytes());
    body.extend([0; 8]);
    body.extend(options.concat());
    frame(router, ALL_NODES, 134, &body, 255)
}

/// A neighbour's solicitation or advertisement, with the router's hardware address.
fn neighbour(kind: u8, source: Ipv6Addr, destination: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
    let mut body = vec![0, 0, 0x60, 0, 0, 0];
    body.extend(target.octets());
    if !source.is_unspecified() {
        body.extend([if kind == 135 { 1 } else { 2 }, 1]);
        body.extend(ROUTER_MAC.0);
    }
    frame(source, destination, kind, &body, 255)
}

/// Lets the right stack process a frame, and returns what it sends.
fn give(wire: &mut Wire, frame: Vec<u8>) -> Vec<Vec<u8>> {
    wire.right.device_mut().outgoing.borrow_mut().clear();
    wire.right.device_mut().incoming.borrow_mut().push_back(frame);
    for _ in 0..10 {
        wire.right.poll(wire.now);
    }
    wire.right.device_mut().outgoing.borrow_mut().drain(..).collect()
}

/// Types of the ICMPv6 messages among frames.
fn kinds(frames: &[Vec<u8>]) -> Vec<u8> {
    let messages = frames.iter().filter(|frame| frame[12..14] == [0x86, 0xdd] && frame[20] == 58);
    messages.map(|frame| frame[54]).collect()
}

async fn echo(sockets: Sockets) {
    let mut listener = sockets.listen(PORT).await.unwrap();
    let mut stream = listener.accept().await.unwrap();
    let mut buf = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut buf).await {
        stream.write_all(&buf[..count]).await.unwrap();
    }
    let _ = stream.close().await;
}

fn sends_and_receives(mut wire: Wire, remote: &str) {
    const BYTES: usize = 1 << 20;
    wire.spawn(echo(wire.right.sockets()));
    let (left, remote) = (wire.left.sockets(), SocketAddr::new(ip(remote), PORT));
    let stream = run(&mut wire, LIMIT, async move { left.connect(remote).await });
    let (mut reader, mut writer) = stream.expect("a connection").split();
    wire.spawn(async move {
        for index in 0..BYTES / 4096 {
            writer.write_all(&[index as u8; 4096]).await.unwrap();
        }
        writer.close().await.unwrap();
    });
    let received = run(&mut wire, LIMIT, async move {
        let (mut received, mut buf) = (0, [0; 5000]);
        loop {
            match reader.read(&mut buf).await? {
                0 => return Ok::<_, NetError>(received),
                count => {
                    let is_right = |(at, byte): (usize, &u8)| *byte == ((received + at) / 4096) as u8;
                    assert!(buf[..count].iter().enumerate().all(is_right));
                    received += count;
                }
            }
        }
    });
    assert_eq!(received, Ok(BYTES));
}

#[test]
fn tcp_works_between_static_addresses() {
    sends_and_receives(Wire::with(fixed()), "fd00::2");
}

#[test]
fn tcp_works_with_offloads() {
    sends_and_receives(Wire::between(fixed(), true), "fd00::2");
}

#[test]
fn tcp_works_between_link_local_addresses() {
    sends_and_receives(automatic(), LINK_LOCAL);
}

/// The peer's segments are not longer than the MTU, and those of its SYN neither.
#[test]
fn with_offloads_frames_are_long_and_segments_are_not() {
    for remote in ["fd00::2", "10.0.0.2"] {
        let mut wire = Wire::between(fixed(), true);
        wire.spawn(echo(wire.right.sockets()));
        let left = wire.left.sockets();
        wire.spawn(async move {
            let mut stream = left.connect(SocketAddr::new(ip(remote), PORT)).await.unwrap();
            loop {
                stream.write_all(&[7; 64 << 10]).await.unwrap();
            }
        });
        let (mut longest, mut syns) = (0, 0);
        for _ in 0..2000 {
            wire.executor.run_ready();
            wire.left.poll(wire.now);
            let frames = wire.right.device_mut().incoming.borrow();
            for syn in frames.iter().filter(|frame| frame[if remote.contains(':') { 20 } else { 23 }] == 6) {
                let (start, longest) = if remote.contains(':') { (54, 1440) } else { (34, 1460) };
                let packet = TcpPacket::new_checked(&syn[start..]).unwrap();
                let option = TcpOption::parse(packet.options()).map(|(_, option)| option);
                assert!(!packet.syn() || option == Ok(TcpOption::MaxSegmentSize(longest)), "{option:?}");
                syns += usize::from(packet.syn());
            }
            longest = frames.iter().map(Vec::len).max().unwrap_or(0).max(longest);
            drop(frames);
            wire.right.poll(wire.now);
        }
        assert!(longest > 20_000 && syns == 1, "{longest} {syns}");
    }
}

#[test]
fn datagrams_pass() {
    let mut wire = Wire::with(fixed());
    let (left, right) = (wire.left.sockets(), wire.right.sockets());
    let answer = run(&mut wire, LIMIT, async move {
        let (one, other) = (left.bind(0).await?, right.bind(7).await?);
        let mut buf = [0; 2000];
        let longest = [3; 1500 - 48];
        one.send_to(&longest, SocketAddr::new(ip("fd00::2"), 7)).await?;
        let (count, from) = other.recv_from(&mut buf).await?;
        assert_eq!((&buf[..count], from), (&longest[..], SocketAddr::new(ip("fd00::1"), one.port())));
        let bytes_max = longest.len();
        let too_long = other.send_to(&[0; 1453], from).await;
        assert_eq!(too_long, Err(NetError::TooLong { bytes: 1453, bytes_max }));
        other.send_to(b"answer", from).await?;
        let (count, _) = one.recv_from(&mut buf).await?;
        Ok::<_, NetError>(buf[..count].to_vec())
    });
    assert_eq!(answer, Ok(b"answer".to_vec()));
}

#[test]
fn a_router_gives_an_address_a_route_and_a_name_server() {
    let mut wire = automatic();
    assert_eq!(wire.right.addresses(), [ip("10.0.0.2"), ip(LINK_LOCAL)]);
    let right = wire.right.sockets();
    let far = SocketAddr::new(ip("2001:db8:ffff::1"), PORT);
    let refused = run(&mut wire, LIMIT, {
        let right = right.clone();
        async move { right.connect(far).await.err() }
    });
    assert_eq!(refused, Some(NetError::NoNetwork));
    let options = [prefix_option(PREFIX, 86_400, 3600), servers_option(600, &[v6("2001:db8::53")])];
    give(&mut wire, advert(ROUTER, 1800, &options));
    assert_eq!(wire.right.addresses(), [ip("10.0.0.2"), ip(GLOBAL), ip(LINK_LOCAL)]);
    assert_eq!(wire.right.take_notice(), Some(Notice::Configured(v6(GLOBAL))));
    assert_eq!(wire.right.take_notice(), None);
    // Connections to other networks go through the router, and queries to its name server.
    wire.spawn(async move {
        let sent = right.connect(far).await;
        assert!(sent.is_err());
    });
    wire.executor.run_ready();
    let sent = give(&mut wire, neighbour(136, ROUTER, v6(LINK_LOCAL), ROUTER));
    let syn = sent.iter().find(|frame| frame[20] == 6).expect("a segment");
    assert_eq!(
        (&syn[..6], &syn[22..38], &syn[38..54]),
        (
            &ROUTER_MAC.0[..],
            &v6(GLOBAL).octets()[..],
            &[0x20, 1, 0xd, 0xb8, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1][..]
        )
    );
    let right = wire.right.sockets();
    wire.spawn(async move { assert!(right.resolve("host.example").await.is_err()) });
    wire.executor.run_ready();
    let sent = give(&mut wire, neighbour(136, ROUTER, v6(LINK_LOCAL), ROUTER));
    assert!(sent.iter().any(|frame| frame[20] == 17 && frame[38..54] == v6("2001:db8::53").octets()));
}

#[test]
fn the_first_answers_of_a_service_need_not_wait_for_an_address() {
    let mut wire = Wire::with(Config { ipv6: Ipv6::Auto, ..config(2) });
    wire.settle();
    assert_eq!(wire.right.addresses(), [ip("10.0.0.2")]);
    // An advertisement is received, but nothing is sent.
    assert_eq!(give(&mut wire, advert(ROUTER, 1800, &[prefix_option(PREFIX, 86_400, 3600)])), [] as [Vec<u8>; 0]);
    assert_eq!(wire.right.next_deadline(wire.now), Some(wire.now + START_DELAY));
    wire.advance(START_DELAY);
    assert_eq!(wire.right.addresses(), [ip("10.0.0.2"), ip(GLOBAL), ip(LINK_LOCAL)]);
}

#[test]
fn without_a_router_it_is_requested_less_and_less_often() {
    let mut wire = automatic();
    let mut times = Vec::new();
    while wire.now < glass_api::Instant(0) + 3 * HOUR {
        let deadline = wire.right.next_deadline(wire.now).expect("it asks again");
        assert!(deadline > wire.now);
        wire.now = deadline;
        wire.right.device_mut().outgoing.borrow_mut().clear();
        wire.right.poll(wire.now);
        if kinds(&wire.right.device_mut().outgoing.borrow().iter().cloned().collect::<Vec<_>>()).contains(&133) {
            times.push(wire.now.0 / 1_000_000_000);
        }
    }
    assert_eq!(times[..4], [4, 12, 28, 60]);
    assert!(times.len() < 16, "{times:?}");
    give(&mut wire, advert(ROUTER, 9000, &[]));
    let next = wire.right.next_deadline(wire.now).unwrap();
    assert!(next > wire.now + 2 * HOUR, "{next}");
}

#[test]
fn a_network_without_ipv4_is_up_after_a_moment() {
    let mut wire = Wire::with(Config { address: Address::Dhcp, ipv6: Ipv6::Auto, ..config(2) });
    wire.settle();
    give(&mut wire, advert(ROUTER, 1800, &[prefix_option(PREFIX, 86_400, 3600)]));
    let right = wire.right.sockets();
    let started = wire.now;
    let up = run(&mut wire, LIMIT, async move { right.up().await });
    assert_eq!(up.map(|up| up.address), Ok(ip(GLOBAL)));
    // DHCP goes first, for two seconds.
    assert_eq!(wire.now - started, START_DELAY + Duration::from_secs(2));
    assert!(wire.right.next_deadline(wire.now).unwrap() > wire.now);
}

#[test]
fn what_a_router_advertises_ends() {
    let mut wire = automatic();
    let options = [prefix_option(PREFIX, 86_400, 3600)];
    give(&mut wire, advert(ROUTER, 1800, &options));
    // An advertisement cannot take an address away at once (RFC 4862, section 5.5.3 e).
    give(&mut wire, advert(ROUTER, 0, &[prefix_option(PREFIX, 0, 0)]));
    wire.advance(2 * HOUR - Duration::from_secs(10));
    assert!(wire.right.addresses().contains(&ip(GLOBAL)));
    wire.advance(Duration::from_secs(20));
    assert_eq!(wire.right.addresses(), [ip("10.0.0.2"), ip(LINK_LOCAL)]);
}

#[test]
fn a_deprecated_prefix_is_for_old_connections() {
    let mut wire = automatic();
    let new = Ipv6Addr::new(0x2001, 0xdb8, 0, 2, 0, 0, 0, 0);
    give(&mut wire, advert(ROUTER, 1800, &[prefix_option(PREFIX, 86_400, 3600), prefix_option(new, 86_400, 3600)]));
    assert_eq!(wire.right.addresses()[1], ip(GLOBAL));
    give(&mut wire, advert(ROUTER, 1800, &[prefix_option(PREFIX, 86_400, 0)]));
    assert_eq!(wire.right.addresses()[1..3], [ip("2001:db8:0:2:0:ff:fe00:2"), ip(GLOBAL)]);
}

#[test]
fn an_address_that_another_host_has_is_given_up() {
    // By its answer to our probe, and by its own probe at the same time.
    for message in [
        neighbour(136, v6(LINK_LOCAL), ALL_NODES, v6(LINK_LOCAL)),
        neighbour(135, Ipv6Addr::UNSPECIFIED, v6("ff02::1:ff00:2"), v6(LINK_LOCAL)),
    ] {
        let mut wire = automatic();
        give(&mut wire, message);
        assert_eq!(wire.right.addresses(), [ip("10.0.0.2")]);
        assert_eq!(wire.right.take_notice(), Some(Notice::Duplicate(v6(LINK_LOCAL))));
    }
    // Later it is ours: we answer a probe, and keep it.
    let mut wire = automatic();
    wire.advance(Duration::from_secs(2));
    let sent = give(&mut wire, neighbour(135, Ipv6Addr::UNSPECIFIED, v6("ff02::1:ff00:2"), v6(LINK_LOCAL)));
    assert_eq!(kinds(&sent), [136]);
    give(&mut wire, neighbour(136, v6(LINK_LOCAL), ALL_NODES, v6(LINK_LOCAL)));
    assert_eq!(wire.right.addresses(), [ip("10.0.0.2"), ip(LINK_LOCAL)]);
}

#[test]
fn a_neighbour_that_asks_is_answered() {
    let mut wire = Wire::with(fixed());
    wire.settle();
    let neighbour_address = v6("fd00::9");
    let sent = give(&mut wire, neighbour(135, neighbour_address, v6("ff02::1:ff00:2"), v6("fd00::2")));
    assert_eq!((kinds(&sent), &sent[0][..6]), (vec![136], &ROUTER_MAC.0[..]));
    assert!(give(&mut wire, neighbour(135, neighbour_address, v6("ff02::1:ff00:2"), v6("fd01::2"))).is_empty());
    // An echo request, of which the answer has the same data.
    let request = [&[0, 0, 1, 2, 0, 3][..], b"glasshouse"].concat();
    let sent = give(&mut wire, frame(neighbour_address, v6("fd00::2"), 128, &request, 64));
    assert_eq!((kinds(&sent), &sent[0][58..]), (vec![129], &request[2..]));
}

/// An answer would be too long for the device, which cuts only TCP.
#[test]
fn a_frame_that_a_device_has_merged_is_no_echo_request() {
    let mut wire = Wire::between(fixed(), true);
    wire.settle();
    let neighbour_address = v6("fd00::9");
    give(&mut wire, neighbour(135, neighbour_address, v6("ff02::1:ff00:2"), v6("fd00::2")));
    for (bytes, answers) in [(1514, 1), (1515, 0), (9000, 0)] {
        let request = vec![0; bytes - 14 - 40 - 2];
        let sent = give(&mut wire, frame(neighbour_address, v6("fd00::2"), 128, &request, 64));
        assert_eq!(sent.len(), answers, "{bytes} bytes");
    }
}

#[test]
fn a_probe_for_the_address_of_another_host_is_not_answered() {
    let mut wire = automatic();
    wire.advance(Duration::from_secs(2));
    let sent = give(&mut wire, neighbour(135, Ipv6Addr::UNSPECIFIED, v6("ff02::1:ff00:3"), v6("fe80::ff:fe00:3")));
    assert_eq!(kinds(&sent), []);
}

#[test]
fn an_address_is_announced_when_something_listens() {
    let mut wire = automatic();
    let announcements = |wire: &mut Wire| {
        for _ in 0..10 {
            wire.executor.run_ready();
            wire.right.poll(wire.now);
        }
        let sent: Vec<_> = wire.right.device_mut().outgoing.borrow_mut().drain(..).collect();
        kinds(&sent).into_iter().filter(|kind| *kind == 136).count()
    };
    assert_eq!(announcements(&mut wire), 0);
    let right = wire.right.sockets();
    wire.spawn(async move {
        let _listener = right.listen(PORT).await.unwrap();
        core::future::pending::<()>().await;
    });
    assert_eq!((announcements(&mut wire), announcements(&mut wire)), (1, 0));
}

/// smoltcp would answer it, beside our connections.
#[test]
fn a_segment_behind_a_header_of_options_is_not_answered() {
    let mut wire = Wire::with(fixed());
    wire.advance(Duration::from_secs(1));
    let (source, destination) = (v6("fd00::9"), v6("fd00::2"));
    give(&mut wire, neighbour(135, source, v6("ff02::1:ff00:2"), destination));
    // A SYN to a port where nothing listens, first as it is.
    let mut body = [&[0, 1, 0, 80][..], &[0; 8], &[0x50, 2, 1, 0], &[0; 4]].concat();
    TcpPacket::new_unchecked(&mut body[..]).fill_checksum(&source.into(), &destination.into());
    for (options, answers) in [(&[][..], 1), (&[6, 0, 1, 4, 0, 0, 0, 0], 0)] {
        let mut syn = frame(source, destination, 0, &[0; 28][..options.len() + body.len() - 2], 64);
        syn[54..].copy_from_slice(&[options, &body].concat());
        syn[20] = if options.is_empty() { 6 } else { 0 };
        assert_eq!(give(&mut wire, syn).len(), answers, "{options:?}");
    }
}

#[test]
fn a_loopback_address_is_not_reached() {
    let mut wire = Wire::with(fixed());
    let right = wire.right.sockets();
    let refused = run(&mut wire, LIMIT, async move { right.connect(SocketAddr::new(ip("::1"), PORT)).await.err() });
    assert_eq!((refused, wire.now), (Some(NetError::NoNetwork), glass_api::Instant(0)));
}

/// The stack still works: both ways, without losing an address.
fn assert_works(mut wire: Wire) {
    wire.right.device_mut().incoming.borrow_mut().clear();
    wire.right.device_mut().outgoing.borrow_mut().clear();
    wire.advance(Duration::from_secs(70));
    sends_and_receives(wire, LINK_LOCAL);
}

#[test]
fn a_flood_of_solicitations_is_bounded() {
    let mut wire = automatic();
    for number in 0..20_000u32 {
        let source = Ipv6Addr::from_bits(v6("fd00::1:0").to_bits() + u128::from(number));
        let target = if number % 2 == 0 { v6(LINK_LOCAL) } else { v6("fd00::3") };
        let sent = give(&mut wire, neighbour(135, source, v6("ff02::1:ff00:2"), target));
        assert!(sent.len() <= 1, "an answer to each at most");
    }
    assert_works(wire);
}

#[test]
fn a_flood_of_router_advertisements_is_bounded() {
    let mut wire = automatic();
    let (mut addresses, mut changes) = (wire.right.addresses(), 0);
    for number in 0..1000u16 {
        let router = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 1, number);
        // As many as a frame has room for, and sometimes a thousand, in a frame that is too long.
        let count = if number % 100 == 99 { 1000 } else { 40 };
        let prefix = |index: u16| prefix_option(Ipv6Addr::new(0x2001, 1, number, index, 0, 0, 0, 0), 1, 1);
        let servers = [servers_option(60, &[Ipv6Addr::new(0x2001, 1, number, 0, 0, 0, 0, 1)])];
        let options: Vec<_> = servers.into_iter().chain((0..count).map(prefix)).collect();
        give(&mut wire, advert(router, 1 + number % 2, &options));
        wire.now = wire.now + Duration::from_millis(100);
        if wire.right.addresses() != addresses {
            addresses = wire.right.addresses();
            changes += 1;
        }
    }
    assert_eq!((addresses.len(), changes), (6, 1));
    let mut notices = 0;
    while wire.right.take_notice().is_some() {
        notices += 1;
    }
    assert!(notices <= 5, "{notices}");
    assert_works(wire);
}

#[test]
fn invalid_messages_change_nothing() {
    let mut wire = automatic();
    let addresses = wire.right.addresses();
    let good = advert(ROUTER, 1800, &[prefix_option(PREFIX, 86_400, 3600)]);
    let mut forwarded = good.clone();
    forwarded[21] = 254;
    let mut damaged = good.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let longer_preferred = prefix_option(PREFIX, 10, 20);
    let mut long = prefix_option(PREFIX, 86_400, 3600);
    long[2] = 65;
    for bad in [
        forwarded,
        damaged,
        advert(v6("2001:db8::1"), 1800, &[prefix_option(PREFIX, 86_400, 3600)]),
        advert(ROUTER, 1800, &[longer_preferred, long]),
        advert(ROUTER, 1800, &[prefix_option(v6("fe80::"), 86_400, 3600), prefix_option(v6("ff02::"), 86_400, 3600)]),
        advert(ROUTER, 1800, &[vec![3, 0, 64, 0xc0, 0, 0, 0, 0]]),
        advert(ROUTER, 1800, &[vec![3, 200, 64, 0xc0, 0, 0, 0, 0]]),
    ] {
        give(&mut wire, bad);
        assert_eq!(wire.right.addresses(), addresses);
    }
    for end in 14..good.len() {
        give(&mut wire, good[..end].to_vec());
    }
    assert_eq!(wire.right.addresses(), addresses);
    give(&mut wire, good);
    assert_ne!(wire.right.addresses(), addresses);
}

#[test]
fn our_own_probe_that_a_switch_returns_is_no_other_host() {
    let mut wire = automatic();
    let mut probe = neighbour(135, Ipv6Addr::UNSPECIFIED, v6("ff02::1:ff00:2"), v6(LINK_LOCAL));
    probe[6..12].copy_from_slice(&RIGHT_MAC);
    give(&mut wire, probe);
    assert_eq!(wire.right.addresses(), [ip("10.0.0.2"), ip(LINK_LOCAL)]);
}

/// smoltcp forgets its neighbours when it gets a new address, so the reset has to wait for an answer of the neighbour.
#[test]
fn a_stream_that_is_dropped_while_its_neighbour_is_unknown_is_reset() {
    let mut wire = automatic();
    let (slot, seen) = (Rc::new(Cell::new(None)), Rc::new(Cell::new(None)));
    let (right, accepted) = (wire.right.sockets(), slot.clone());
    wire.spawn(async move {
        accepted.set(Some(right.listen(PORT).await.unwrap().accept().await.unwrap()));
    });
    let (left, result) = (wire.left.sockets(), seen.clone());
    wire.spawn(async move {
        let remote: SocketAddr = ([10, 0, 0, 2], PORT).into();
        let mut stream = left.connect(remote).await.unwrap();
        result.set(Some(stream.read(&mut [0; 1]).await));
    });
    wire.advance(Duration::from_secs(1));
    let stream = slot.take().expect("the connection was accepted");
    let message = advert(ROUTER, 1800, &[prefix_option(PREFIX, 86_400, 3600)]);
    wire.right.device_mut().incoming.borrow_mut().push_back(message);
    wire.advance(Duration::from_secs(2));
    assert_eq!((seen.get(), wire.right.addresses().len()), (None, 3));
    drop(stream);
    wire.advance(Duration::from_secs(3));
    assert_eq!(seen.get(), Some(Err(NetError::Reset)));
}
