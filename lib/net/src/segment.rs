//! The TCP segment in a frame.

use smoltcp::wire::{EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, Ipv6Packet, TcpPacket};

/// The TCP segment in a frame, as far as its headers are valid; `None` if there is none. Checksums are not verified.
pub(crate) fn segment_of(frame: &[u8]) -> Option<TcpPacket<&[u8]>> {
    let frame = EthernetFrame::new_checked(frame).ok()?;
    let (protocol, payload) = match frame.ethertype() {
        EthernetProtocol::Ipv4 => {
            let packet = Ipv4Packet::new_checked(frame.payload()).ok()?;
            (packet.next_header(), packet.payload())
        }
        EthernetProtocol::Ipv6 => {
            let packet = Ipv6Packet::new_checked(frame.payload()).ok()?;
            (packet.next_header(), packet.payload())
        }
        _ => return None,
    };
    if protocol == IpProtocol::Tcp { TcpPacket::new_checked(payload).ok() } else { None }
}

/// Where a frame's TCP segment starts.
pub(crate) fn segment_start(frame: &[u8]) -> Option<usize> {
    let start = EthernetFrame::<&[u8]>::header_len();
    let frame = EthernetFrame::new_checked(frame).ok()?;
    let packet = frame.payload();
    match frame.ethertype() {
        EthernetProtocol::Ipv4 => Some(start + usize::from(Ipv4Packet::new_checked(packet).ok()?.header_len())),
        EthernetProtocol::Ipv6 => Some(start + Ipv6Packet::new_checked(packet).ok()?.header_len()),
        _ => None,
    }
}
