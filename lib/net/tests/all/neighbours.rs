//! Hardware addresses of neighbours and routers.

use crate::common::peer::{MAC, Peer};
use crate::common::{RIGHT_MAC, Wire, config, run};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use glass_api::{Datagrams, Listener, Net, Stream};
use glass_lib_net::smoltcp::wire::*;
use glass_lib_net::{Address, Config, Ipv6};

const PORT: u16 = 80;

/// A stack whose neighbours are 10.0.0.0/16.
fn wide() -> Config {
    let address = Address::Static { address: [10, 0, 0, 2].into(), prefix_bits: 16, gateway: None };
    Config { address, ..config(2) }
}

fn arp(operation: ArpOperation, (mac, sender): ([u8; 6], Ipv4Addr), target: Ipv4Addr) -> Vec<u8> {
    let arp = ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: EthernetAddress(mac),
        source_protocol_addr: sender,
        target_hardware_addr: EthernetAddress(RIGHT_MAC),
        target_protocol_addr: target,
    };
    let mut bytes = vec![0; 14 + arp.buffer_len()];
    let mut frame = EthernetFrame::new_unchecked(&mut bytes[..]);
    let (from, to) = (EthernetAddress(mac), EthernetAddress(RIGHT_MAC));
    EthernetRepr { src_addr: from, dst_addr: to, ethertype: EthernetProtocol::Arp }.emit(&mut frame);
    arp.emit(&mut ArpPacket::new_unchecked(frame.payload_mut()));
    bytes
}

/// Gives the right end a frame.
fn give(wire: &mut Wire, frame: Vec<u8>) {
    wire.right.device_mut().incoming.borrow_mut().push_back(frame);
}

/// Lets the right end run, and returns what it has sent.
fn sent(wire: &mut Wire) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for _ in 0..10 {
        wire.executor.run_ready();
        wire.right.poll(wire.now);
        frames.extend(wire.right.device_mut().outgoing.borrow_mut().drain(..));
    }
    frames
}

/// The targets of ARP requests among these frames.
fn arp_targets(frames: &[Vec<u8>]) -> Vec<Ipv4Addr> {
    let requests = frames.iter().filter(|frame| frame[12..14] == [8, 6] && frame[21] == 1);
    requests.map(|frame| <[u8; 4]>::try_from(&frame[38..42]).unwrap().into()).collect()
}

/// Has the right end send a datagram to each of these addresses.
fn send_to_each(wire: &mut Wire, addresses: Vec<IpAddr>) {
    let sockets = wire.right.sockets();
    wire.spawn(async move {
        let port = sockets.bind(0).await.unwrap();
        for address in addresses {
            port.send_to(b"x", SocketAddr::new(address, 9)).await.unwrap();
        }
        core::future::pending::<()>().await;
    });
}

/// A listener of the right end that answers each connection with a line and ends it.
fn greet(wire: &mut Wire) {
    let sockets = wire.right.sockets();
    wire.spawn(async move {
        let mut listener = sockets.listen(PORT).await.unwrap();
        loop {
            let mut stream = listener.accept().await.unwrap();
            let _ = stream.write_all(b"hello").await;
            let _ = stream.close().await;
        }
    });
    sent(wire);
}

#[test]
fn two_hundred_clients_are_answered_at_once_and_none_is_requested() {
    let mut wire = Wire::with(Config { connections_max: 1000, ..wide() });
    greet(&mut wire);
    for number in 0..200_u16 {
        let mut peer = Peer::new(5000 + number, PORT);
        peer.address = Ipv4Addr::from_bits(0x0a00_0100 + u32::from(number));
        assert!(peer.request(&mut wire).is_some());
        peer.seq += 1;
        peer.send(&mut wire, TcpControl::None, peer.seq, true, &[]);
        let frames = sent(&mut wire);
        assert_eq!(arp_targets(&frames), [] as [Ipv4Addr; 0]);
        let payload = frames.iter().filter(|frame| frame.ends_with(b"hello") && frame[..6] == MAC).count();
        assert_eq!(payload, 1, "client {number}");
    }
}

#[test]
fn two_hundred_neighbours_are_requested_at_once() {
    let mut wire = Wire::with(wide());
    let addresses: Vec<_> = (0..200).map(|number| Ipv4Addr::from_bits(0x0a00_0100 + number)).collect();
    send_to_each(&mut wire, addresses.iter().copied().map(IpAddr::V4).collect());
    assert_eq!(arp_targets(&sent(&mut wire)), addresses);
    let ours = Ipv4Addr::new(10, 0, 0, 2);
    for (number, address) in addresses.iter().enumerate() {
        let mac = [2, 0, 0, 1, 0, number as u8];
        give(&mut wire, arp(ArpOperation::Reply, (mac, *address), ours));
        let frames = sent(&mut wire);
        assert_eq!(frames.iter().map(|frame| &frame[..6]).collect::<Vec<_>>(), [&mac[..]]);
    }
}

#[test]
fn two_hundred_neighbours_are_requested_at_once_over_ipv6() {
    let ipv6 = Ipv6::Static { address: "fd00::2".parse().unwrap(), prefix_bits: 64, gateway: None };
    let mut wire = Wire::with(Config { ipv6, ..config(2) });
    sent(&mut wire);
    let addresses: Vec<_> = (0..200).map(|number| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 1, number)).collect();
    send_to_each(&mut wire, addresses.iter().copied().map(IpAddr::V6).collect());
    let targets: Vec<_> = sent(&mut wire)
        .iter()
        .filter(|frame| frame[54] == 135)
        .map(|frame| Ipv6Addr::from(<[u8; 16]>::try_from(&frame[62..78]).unwrap()))
        .collect();
    assert_eq!(targets, addresses);
}

#[test]
fn a_neighbour_that_requests_our_address_is_answered_and_known() {
    let mut wire = Wire::with(wide());
    let (theirs, ours) = (Ipv4Addr::new(10, 0, 1, 1), Ipv4Addr::new(10, 0, 0, 2));
    give(&mut wire, arp(ArpOperation::Request, (MAC, theirs), ours));
    let frames = sent(&mut wire);
    assert_eq!((frames.len(), frames[0][21], &frames[0][..6]), (1, 2, &MAC[..]));
    send_to_each(&mut wire, [theirs.into()].into());
    let frames = sent(&mut wire);
    assert_eq!((frames.len(), &frames[0][..6], frames[0][23]), (1, &MAC[..], 17));
    // Its address is another one now, which it announces.
    let other = [2, 0, 0, 0, 0, 77];
    give(&mut wire, arp(ArpOperation::Request, (other, theirs), theirs));
    sent(&mut wire);
    send_to_each(&mut wire, [theirs.into()].into());
    assert_eq!(sent(&mut wire)[0][..6], other);
    // One that only checks whether the address is free is answered.
    give(&mut wire, arp(ArpOperation::Request, (MAC, Ipv4Addr::UNSPECIFIED), ours));
    assert_eq!(sent(&mut wire)[0][21], 2);
    // One that is not reached through this network is not remembered.
    let far = Ipv4Addr::new(192, 0, 2, 1);
    give(&mut wire, arp(ArpOperation::Request, (MAC, far), ours));
    assert_eq!(sent(&mut wire).len(), 1);
}

#[test]
fn a_frame_for_another_host_is_not_ours() {
    let mut wire = Wire::with(wide());
    greet(&mut wire);
    let peer = Peer::new(5000, PORT);
    let mut frame = peer.frame(TcpControl::Syn, peer.seq, None, &[]);
    frame[5] = 99;
    give(&mut wire, frame.clone());
    assert_eq!(sent(&mut wire), [] as [Vec<u8>; 0]);
    frame[..6].copy_from_slice(&RIGHT_MAC);
    give(&mut wire, frame);
    assert_eq!(sent(&mut wire).len(), 1);
}

#[test]
fn a_connection_through_a_router_outside_of_the_prefix_opens() {
    let router = Ipv4Addr::new(10, 156, 0, 1);
    let address = Address::Static { address: [10, 0, 0, 2].into(), prefix_bits: 32, gateway: Some(router) };
    let ipv6 = Ipv6::Static {
        address: "fd00::2".parse().unwrap(),
        prefix_bits: 128,
        gateway: Some("fd01::1".parse().unwrap()),
    };
    let mut wire = Wire::with(Config { address, ipv6, ..config(2) });
    greet(&mut wire);
    send_to_each(&mut wire, ["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()].into());
    let frames = sent(&mut wire);
    assert_eq!(arp_targets(&frames), [router]);
    let solicited = Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, 1).octets();
    assert_eq!(frames.iter().filter(|frame| frame[12] == 0x86 && frame[62..78] == solicited).count(), 1);
    give(&mut wire, arp(ArpOperation::Reply, (MAC, router), Ipv4Addr::new(10, 0, 0, 2)));
    let frames = sent(&mut wire);
    assert_eq!((frames.len(), &frames[0][..6], &frames[0][30..34]), (1, &MAC[..], &[192, 0, 2, 1][..]));
    // The router, and a host behind it.
    for address in [router, Ipv4Addr::new(192, 0, 2, 7)] {
        let mut peer = Peer::new(5000, PORT);
        peer.address = address;
        assert!(peer.open(&mut wire));
    }
}

#[test]
fn a_stack_that_sends_to_itself_sends_nothing() {
    let mut wire = Wire::with(wide());
    send_to_each(&mut wire, ["10.0.0.2".parse().unwrap()].into());
    assert_eq!(sent(&mut wire), [] as [Vec<u8>; 0]);
}

#[test]
fn a_long_transfer_requests_nothing_of_its_neighbour() {
    let mut wire = Wire::with(wide());
    greet(&mut wire);
    let (left, remote) = (wire.left.sockets(), wire.right_address(PORT));
    let received = run(&mut wire, Duration::from_secs(1), async move {
        let mut stream = left.connect(remote).await?;
        let mut buf = [0; 16];
        stream.read(&mut buf).await
    });
    assert_eq!(received, Ok(5));
}
