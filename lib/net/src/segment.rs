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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;
    use smoltcp::phy::ChecksumCapabilities;
    use smoltcp::wire::{
        EthernetAddress, EthernetRepr, IpAddress, IpRepr, IpVersion, TcpControl, TcpRepr, TcpSeqNumber,
    };

    /// A frame with a segment from the first of `addresses`, port 1, to the second, port 2.
    pub(crate) fn frame(
        addresses: (IpAddress, IpAddress),
        seq: i32,
        ack: Option<i32>,
        control: TcpControl,
        payload: &[u8],
    ) -> Vec<u8> {
        let tcp = TcpRepr {
            src_port: 1,
            dst_port: 2,
            control,
            seq_number: TcpSeqNumber(seq),
            ack_number: ack.map(TcpSeqNumber),
            window_len: 9,
            window_scale: None,
            max_seg_size: None,
            sack_permitted: false,
            sack_ranges: [None; 3],
            timestamp: None,
            payload,
        };
        let (source, destination) = addresses;
        let ip = IpRepr::new(source, destination, IpProtocol::Tcp, tcp.buffer_len(), 64);
        let ethertype = match source.version() {
            IpVersion::Ipv4 => EthernetProtocol::Ipv4,
            IpVersion::Ipv6 => EthernetProtocol::Ipv6,
        };
        let address = EthernetAddress([2; 6]);
        let ethernet = EthernetRepr { src_addr: address, dst_addr: address, ethertype };
        let mut bytes = vec![0; 14 + ip.buffer_len()];
        let mut frame = EthernetFrame::new_unchecked(&mut bytes[..]);
        ethernet.emit(&mut frame);
        let (head, segment) = frame.payload_mut().split_at_mut(ip.header_len());
        let checksums = ChecksumCapabilities::default();
        ip.emit(head, &checksums);
        tcp.emit(&mut TcpPacket::new_unchecked(segment), &source, &destination, &checksums);
        bytes
    }
}
