//! TCP segments in frames: written into one that is sent, behind the headers of Ethernet and IP.

use crate::link::ETHERNET_BYTES;
use crate::table::Ends;
use core::num::NonZeroU16;
use glass_lib_tcp::Header;
use smoltcp::phy::{ChecksumCapabilities, DeviceCapabilities, PacketMeta, TxToken};
use smoltcp::wire::{EthernetProtocol, IpAddress, IpProtocol, IpRepr, TcpPacket};

/// Of IP, as Linux has it.
const HOP_LIMIT: u8 = 64;
/// The longest packet of IPv4, and the longest payload of one of IPv6.
const PACKET_BYTES_MAX: usize = 65_535;

/// Bytes of the header of IP between these ends.
pub(crate) fn ip_header_bytes(ends: Ends) -> usize {
    if matches!(ends.local.addr, IpAddress::Ipv4(_)) { 20 } else { 40 }
}

/// The longest segment, its header included, that a device cuts into those of the wire; 0 if it cuts none.
pub(crate) fn longest_segment(ends: Ends, capabilities: &DeviceCapabilities) -> usize {
    // A device that cuts frames computes checksums.
    if capabilities.checksum.tcp.tx() {
        return 0;
    }
    let (longest, most) = match ends.local.addr {
        IpAddress::Ipv4(_) => (capabilities.segmentation.tcpv4, PACKET_BYTES_MAX - 20),
        IpAddress::Ipv6(_) => (capabilities.segmentation.tcpv6, PACKET_BYTES_MAX),
    };
    longest.map_or(0, |longest| longest.get().saturating_sub(ETHERNET_BYTES + ip_header_bytes(ends)).min(most))
}

/// Sends a segment between these ends, to be cut into segments with `cut` bytes of payload each if that is given. Of the header of
/// Ethernet, `transmit` writes the addresses.
pub(crate) fn send_segment(
    mut transmit: impl TxToken,
    ends: Ends,
    header: &Header,
    payload: [&[u8]; 2],
    cut: Option<u16>,
    checksums: &ChecksumCapabilities,
) {
    let Ends { local, remote } = ends;
    let header_bytes = header.bytes();
    let segment_bytes = header_bytes + payload[0].len() + payload[1].len();
    let ip = IpRepr::new(local.addr, remote.addr, IpProtocol::Tcp, segment_bytes, HOP_LIMIT);
    let mut meta = PacketMeta::default();
    meta.segmentation_offload_size = cut.and_then(NonZeroU16::new);
    transmit.set_meta(meta);
    transmit.consume(ETHERNET_BYTES + ip.header_len() + segment_bytes, |frame| {
        let (ethernet, packet) = frame.split_at_mut(ETHERNET_BYTES);
        let version = match local.addr {
            IpAddress::Ipv4(_) => EthernetProtocol::Ipv4,
            IpAddress::Ipv6(_) => EthernetProtocol::Ipv6,
        };
        ethernet[12..].copy_from_slice(&u16::from(version).to_be_bytes());
        let (head, segment) = packet.split_at_mut(ip.header_len());
        ip.emit(head, checksums);
        header.write(local.port, remote.port, segment);
        let (first, second) = segment[header_bytes..].split_at_mut(payload[0].len());
        first.copy_from_slice(payload[0]);
        second.copy_from_slice(payload[1]);
        if checksums.tcp.tx() {
            TcpPacket::new_unchecked(segment).fill_checksum(&local.addr, &remote.addr);
        }
    });
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::ingress::Kind;
    use alloc::vec;
    use alloc::vec::Vec;
    use core::num::NonZeroUsize;
    use glass_lib_tcp::wire::Flags;
    use smoltcp::phy::Checksum;
    use smoltcp::wire::IpEndpoint;

    /// Keeps the frame and into which segments it is to be cut.
    struct Kept<'k>(&'k mut Vec<u8>, &'k mut Option<NonZeroU16>);

    impl TxToken for Kept<'_> {
        fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
            *self.0 = vec![0; len];
            write(self.0)
        }

        fn set_meta(&mut self, meta: PacketMeta) {
            *self.1 = meta.segmentation_offload_size;
        }
    }

    /// A frame with a segment from the first of `addresses`, port 1, to the second, port 2.
    pub(crate) fn frame(addresses: (IpAddress, IpAddress), header: &Header, payload: &[u8]) -> Vec<u8> {
        let (source, destination) = addresses;
        let ends = Ends { local: IpEndpoint::new(source, 1), remote: IpEndpoint::new(destination, 2) };
        let (mut frame, mut cut) = (Vec::new(), None);
        let pieces = payload.split_at(payload.len() / 2);
        let kept = Kept(&mut frame, &mut cut);
        send_segment(kept, ends, header, [pieces.0, pieces.1], Some(1000), &ChecksumCapabilities::default());
        assert_eq!(cut, NonZeroU16::new(1000));
        frame
    }

    #[test]
    fn what_is_written_is_what_is_read() {
        let v6 = |last| IpAddress::v6(0xfd00, 0, 0, 0, 0, 0, 0, last);
        for addresses in [(IpAddress::v4(10, 0, 0, 1), IpAddress::v4(10, 0, 0, 2)), (v6(1), v6(2))] {
            let header = Header { seq: 7, ack: 8, flags: Flags::ACK | Flags::PSH, window: 9, ..Header::default() };
            let mut frame = frame(addresses, &header, b"hello");
            let checksums = ChecksumCapabilities::default();
            let Kind::Segment { ends, segment } = Kind::of(&frame, &checksums) else { panic!("it is a segment") };
            assert_eq!((ends.remote.addr, ends.local.addr), addresses);
            assert_eq!((segment.header, segment.payload), (header, &b"hello"[..]));
            let last = frame.len() - 1;
            frame[last] ^= 1;
            assert!(matches!(Kind::of(&frame, &checksums), Kind::Invalid), "the checksum is wrong");
        }
    }

    #[test]
    fn frames_are_long_if_the_device_cuts_them_and_computes_checksums() {
        let v6 = IpEndpoint::new(IpAddress::v6(0xfd00, 0, 0, 0, 0, 0, 0, 1), 1);
        let v4 = IpEndpoint::new(IpAddress::v4(10, 0, 0, 1), 1);
        for (end, checksum, longest, expected) in [
            (v4, Checksum::None, 65_535, 65_501),
            (v4, Checksum::Rx, 70_000, 65_515),
            (v4, Checksum::Both, 65_535, 0),
            (v6, Checksum::None, 60_000, 59_946),
            (v6, Checksum::None, 90_000, 65_535),
            (v6, Checksum::None, 0, 0),
        ] {
            let mut capabilities = DeviceCapabilities::default();
            capabilities.checksum.tcp = checksum;
            capabilities.segmentation.tcpv4 = NonZeroUsize::new(longest);
            capabilities.segmentation.tcpv6 = NonZeroUsize::new(longest);
            assert_eq!(longest_segment(Ends { local: end, remote: end }, &capabilities), expected);
        }
    }
}
