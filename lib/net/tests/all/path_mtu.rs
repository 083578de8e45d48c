//! Paths whose links pass shorter packets than ours: case 33.

use crate::common::Wire;
use crate::common::peer::{MAC, Peer};
use core::time::Duration;
use glass_api::{Listener, Net, Stream};
use glass_lib_net::smoltcp::phy::ChecksumCapabilities;
use glass_lib_net::smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, Icmpv4Packet, IpProtocol, IpRepr, Ipv4Address,
};

const PORT: u16 = 80;
const RIGHT: Ipv4Address = Ipv4Address::new(10, 0, 0, 2);

/// A router's report that it has dropped this frame of ours because its next link passes `mtu` bytes.
fn report(dropped: &[u8], mtu: u16) -> Vec<u8> {
    let mut message = vec![3, 4, 0, 0, 0, 0];
    message.extend_from_slice(&mtu.to_be_bytes());
    message.extend_from_slice(&dropped[14..][..28]);
    Icmpv4Packet::new_unchecked(&mut message[..]).fill_checksum();
    let router = Ipv4Address::new(10, 0, 0, 77);
    let ip = IpRepr::new(router.into(), RIGHT.into(), IpProtocol::Icmp, message.len(), 64);
    let mut bytes = vec![0; 14 + 20 + message.len()];
    let mut frame = EthernetFrame::new_unchecked(&mut bytes[..]);
    let (source, destination) = (EthernetAddress(MAC), EthernetAddress(crate::common::RIGHT_MAC));
    EthernetRepr { src_addr: source, dst_addr: destination, ethertype: EthernetProtocol::Ipv4 }.emit(&mut frame);
    ip.emit(&mut frame.payload_mut()[..20], &ChecksumCapabilities::default());
    frame.payload_mut()[20..].copy_from_slice(&message);
    bytes
}

#[test]
fn what_a_router_has_dropped_is_retransmitted_at_once_in_shorter_segments() {
    let mut wire = Wire::new();
    let sockets = wire.right.sockets();
    wire.spawn(async move {
        let mut stream = sockets.listen(PORT).await.unwrap().accept().await.unwrap();
        stream.read(&mut [0]).await.unwrap();
        stream.write_all(&[1; 5000]).await.unwrap();
        core::future::pending::<()>().await;
    });
    let mut peer = Peer::new(4000, PORT);
    assert!(peer.open(&mut wire));
    let (from, data) = (peer.ack, peer.frame_of_data(b"x"));
    wire.right.device_mut().incoming.borrow_mut().push_back(data);
    let first = loop {
        wire.executor.run_ready();
        wire.right.poll(wire.now);
        let sent = wire.right.device_mut().outgoing.borrow_mut().pop_front();
        if let Some(frame) = sent.filter(|frame| frame.len() > 1000) {
            break frame;
        }
    };
    wire.right.device_mut().outgoing.borrow_mut().clear();
    // A damaged report changes nothing, nor does one about another segment.
    let mut damaged = report(&first, 1300);
    damaged[41] ^= 1;
    let mut other = first.clone();
    other[14 + 20 + 4] ^= 0x40;
    for frame in [damaged, report(&other, 1300)] {
        wire.right.device_mut().incoming.borrow_mut().push_back(frame);
    }
    assert!(peer.exchange(&mut wire).is_empty());
    wire.right.device_mut().incoming.borrow_mut().push_back(report(&first, 1300));
    let again = peer.exchange(&mut wire);
    assert_eq!(again.iter().map(|segment| segment.bytes).collect::<Vec<_>>(), [1260, 1260, 1260, 1220]);
    assert_eq!(again[0].seq, from);
    wire.advance(Duration::ZERO);
}
