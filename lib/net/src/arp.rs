//! Messages of ARP (RFC 826), as bytes.

use alloc::vec;
use alloc::vec::Vec;
use core::net::Ipv4Addr;
use smoltcp::wire::{ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr};

/// A received message whose sender and hardware address can be a host's.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Arp {
    /// It is a request, otherwise a reply.
    pub(crate) is_request: bool,
    pub(crate) mac: EthernetAddress,
    /// The sender's address; unspecified if it only checks that `target` is free (RFC 5227).
    pub(crate) sender: Ipv4Addr,
    pub(crate) target: Ipv4Addr,
}

/// The message in a frame, if it is valid.
pub(crate) fn arp_in(frame: &[u8]) -> Option<Arp> {
    let frame = EthernetFrame::new_checked(frame).ok().filter(|frame| frame.ethertype() == EthernetProtocol::Arp)?;
    let packet = ArpPacket::new_checked(frame.payload()).ok()?;
    let ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: mac,
        source_protocol_addr: sender,
        target_protocol_addr: target,
        ..
    } = ArpRepr::parse(&packet).ok()?
    else {
        return None;
    };
    let is_host = mac.is_unicast() && !sender.is_multicast() && !sender.is_broadcast();
    let is_request = operation == ArpOperation::Request;
    (is_host && (is_request || operation == ArpOperation::Reply)).then_some(Arp { is_request, mac, sender, target })
}

/// The frame in which the host `mac` with the address `sender` requests the hardware address of `target`, from all hosts or from the one
/// that had it last.
pub(crate) fn request(
    mac: EthernetAddress,
    sender: Ipv4Addr,
    target: Ipv4Addr,
    to: Option<EthernetAddress>,
) -> Vec<u8> {
    let (to, unknown) = (to.unwrap_or(EthernetAddress::BROADCAST), EthernetAddress([0; 6]));
    frame(to, ArpOperation::Request, (mac, sender), (unknown, target))
}

/// The frame in which `own` answers the request of `other`.
pub(crate) fn reply(own: (EthernetAddress, Ipv4Addr), other: (EthernetAddress, Ipv4Addr)) -> Vec<u8> {
    frame(other.0, ArpOperation::Reply, own, other)
}

/// The frame that announces our address to the neighbours (RFC 5227, section 2.3).
///
/// Without it, a neighbour that requested the address during our boot, as a forwarding host does when a client
/// connects early, waits seconds for its next retry. The announcement is sent when the first listener
/// opens, not before: the neighbour's SYN follows immediately, and a refusal would be lost.
pub(crate) fn announcement(mac: EthernetAddress, address: Ipv4Addr) -> Vec<u8> {
    request(mac, address, address, None)
}

fn frame(
    to: EthernetAddress,
    operation: ArpOperation,
    (source_hardware_addr, source_protocol_addr): (EthernetAddress, Ipv4Addr),
    (target_hardware_addr, target_protocol_addr): (EthernetAddress, Ipv4Addr),
) -> Vec<u8> {
    let ethernet = EthernetRepr { src_addr: source_hardware_addr, dst_addr: to, ethertype: EthernetProtocol::Arp };
    let arp = ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr,
        source_protocol_addr,
        target_hardware_addr,
        target_protocol_addr,
    };
    let mut bytes = vec![0; ethernet.buffer_len() + arp.buffer_len()];
    let mut frame = EthernetFrame::new_unchecked(&mut bytes[..]);
    ethernet.emit(&mut frame);
    arp.emit(&mut ArpPacket::new_unchecked(frame.payload_mut()));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 1]);
    const OTHER: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 2]);
    const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
    const THEIRS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

    #[test]
    fn an_announcement_requests_our_own_address() {
        let frame = announcement(MAC, OURS);
        assert_eq!(frame[..14], [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 8, 6]);
        let arp = [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 2, 15, 0, 0, 0, 0, 0, 0, 10, 0, 2, 15];
        assert_eq!(frame[14..], arp);
    }

    #[test]
    fn what_is_sent_is_what_is_received() {
        let found = arp_in(&request(MAC, OURS, THEIRS, Some(OTHER)));
        assert_eq!(found, Some(Arp { is_request: true, mac: MAC, sender: OURS, target: THEIRS }));
        let found = arp_in(&reply((MAC, OURS), (OTHER, THEIRS)));
        assert_eq!(found, Some(Arp { is_request: false, mac: MAC, sender: OURS, target: THEIRS }));
    }

    #[test]
    fn a_message_that_no_host_sends_is_dropped() {
        let good = request(MAC, OURS, THEIRS, None);
        for bytes in 0..good.len() {
            assert_eq!(arp_in(&good[..bytes]), None);
        }
        // Ethernet's type, the operation, a group's hardware address, a multicast sender.
        for (at, byte) in [(13, 0), (21, 3), (22, 1), (28, 224)] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert_eq!(arp_in(&bad), None, "byte {at}");
        }
    }
}
