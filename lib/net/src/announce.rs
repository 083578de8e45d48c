//! Announces our address to the neighbours by ARP (RFC 5227, section 2.3).
//!
//! Without it, a neighbour that requested the address during our boot, as a forwarding host does when a client
//! connects early, waits seconds for its next retry. The announcement is sent when the first listener
//! opens, not before: the neighbour's SYN follows immediately, and a refusal would be lost, because we
//! do not have the neighbour's own address yet.

use core::net::Ipv4Addr;
use smoltcp::phy::TxToken;
use smoltcp::wire::{ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr};

/// Sends the announcement of `address` in `transmit`'s frame.
pub(crate) fn announce(transmit: impl TxToken, mac: EthernetAddress, address: Ipv4Addr) {
    let ethernet =
        EthernetRepr { src_addr: mac, dst_addr: EthernetAddress::BROADCAST, ethertype: EthernetProtocol::Arp };
    let arp = ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Request,
        source_hardware_addr: mac,
        source_protocol_addr: address,
        target_hardware_addr: EthernetAddress([0; 6]),
        target_protocol_addr: address,
    };
    transmit.consume(ethernet.buffer_len() + arp.buffer_len(), |bytes| {
        let mut frame = EthernetFrame::new_unchecked(bytes);
        ethernet.emit(&mut frame);
        arp.emit(&mut ArpPacket::new_unchecked(frame.payload_mut()));
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    struct Recorder<'a>(&'a mut Vec<u8>);

    impl TxToken for Recorder<'_> {
        fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, fill: F) -> R {
            self.0.resize(len, 0);
            fill(self.0)
        }
    }

    #[test]
    fn an_announcement_asks_for_our_own_address() {
        let mut frame = Vec::new();
        announce(Recorder(&mut frame), EthernetAddress([2, 0, 0, 0, 0, 1]), Ipv4Addr::new(10, 0, 2, 15));
        assert_eq!(frame[..14], [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 8, 6]);
        let arp = [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 2, 15, 0, 0, 0, 0, 0, 0, 10, 0, 2, 15];
        assert_eq!(frame[14..], arp);
    }
}
