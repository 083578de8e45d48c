//! The frames between a guest and its user network: Ethernet, ARP (RFC 826), IPv4 (RFC 791), UDP (RFC 768), and the parts of TCP that `glass_lib_tcp`
//! leaves to its user. Pure.

use glass_lib_tcp::{Header, Segment};
use std::net::{Ipv4Addr, SocketAddrV4};

pub(super) const ETHERNET_BYTES: usize = 14;
pub(super) const IP_BYTES: usize = 20;
const UDP_BYTES: usize = 8;
const ARP: [u8; 2] = [8, 6];
const IPV4: [u8; 2] = [8, 0];
const TCP: u8 = 6;
const UDP: u8 = 17;
/// A message of ARP for Ethernet and IPv4, up to its operation, and the operations.
const ARP_START: [u8; 6] = [0, 1, 8, 0, 6, 4];
const REQUEST: [u8; 2] = [0, 1];
const REPLY: [u8; 2] = [0, 2];
/// In the header of IPv4: not to be cut; and how many hops it may take.
const DO_NOT_FRAGMENT: [u8; 2] = [0x40, 0];
const HOPS: u8 = 64;
/// Where a segment has its checksum.
pub(super) const CHECKSUM_OF_TCP: usize = 16;
const CHECKSUM_OF_UDP: usize = 6;

/// The address of a card.
pub(super) type Mac = [u8; 6];

/// The two ends of a connection, or of datagrams, as the guest sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Ends {
    pub guest: SocketAddrV4,
    pub remote: SocketAddrV4,
}

/// What a guest has sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Packet<'f> {
    /// It requests the card of `target`.
    Request {
        sender: Ipv4Addr,
        target: Ipv4Addr,
    },
    Segment(Ends, Segment<'f>),
    Datagram(Ends, &'f [u8]),
}

impl<'f> Packet<'f> {
    /// Parses a frame; `None` if it is none of these, a fragment, or not whole. Checksums are not verified: nothing is in between that could have
    /// changed them, and the guest leaves them to its card.
    pub fn parse(frame: &'f [u8]) -> Option<Packet<'f>> {
        let payload = frame.get(ETHERNET_BYTES..)?;
        match frame[12..ETHERNET_BYTES] {
            [a, b] if [a, b] == ARP => Packet::parse_arp(payload),
            [a, b] if [a, b] == IPV4 => Packet::parse_ip(payload),
            _ => None,
        }
    }

    fn parse_arp(message: &[u8]) -> Option<Packet<'f>> {
        let message = message.first_chunk::<28>()?;
        let is_request = message[..6] == ARP_START && message[6..8] == REQUEST;
        is_request.then(|| Packet::Request { sender: address(message, 14), target: address(message, 24) })
    }

    fn parse_ip(packet: &'f [u8]) -> Option<Packet<'f>> {
        let head = packet.first_chunk::<IP_BYTES>()?;
        let (header_bytes, all_bytes) = (usize::from(head[0] & 15) * 4, usize::from(word(head, 2)));
        // More fragments follow, or it is not the first.
        if head[0] >> 4 != 4 || header_bytes < IP_BYTES || word(head, 6) & 0x3fff != 0 {
            return None;
        }
        let payload = packet.get(header_bytes..all_bytes)?;
        let ends = |guest, remote| {
            let [guest, remote] = [(address(head, 12), guest), (address(head, 16), remote)]
                .map(|(address, port)| SocketAddrV4::new(address, port));
            Ends { guest, remote }
        };
        match head[9] {
            TCP => {
                let segment = Segment::parse(payload)?;
                Some(Packet::Segment(ends(segment.source_port, segment.destination_port), segment))
            }
            UDP => {
                let (head, _) = payload.split_first_chunk::<UDP_BYTES>()?;
                let data = payload.get(UDP_BYTES..usize::from(word(head, 4)))?;
                Some(Packet::Datagram(ends(word(head, 0), word(head, 2)), data))
            }
            _ => None,
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn address(bytes: &[u8], at: usize) -> Ipv4Addr {
    Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3])
}

/// Frames to one guest.
#[derive(Debug, Clone, Copy)]
pub(super) struct Writer {
    /// The network's card, and the guest's.
    pub own: Mac,
    pub guest: Mac,
    /// Packets have numbers, by which fragments would find each other.
    number: u16,
}

/// How the checksum of a segment is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Checksum {
    Whole,
    /// That of the addresses alone: the guest cuts the frame, or computes the rest (virtio 1.2, section 5.1.6.2).
    OfAddresses,
}

impl Writer {
    pub fn new(own: Mac, guest: Mac) -> Writer {
        Writer { own, guest, number: 0 }
    }

    fn ethernet(&self, kind: [u8; 2], more: usize) -> Vec<u8> {
        let mut frame = Vec::with_capacity(ETHERNET_BYTES + more);
        frame.extend([self.guest, self.own].concat());
        frame.extend(kind);
        frame
    }

    /// The answer of `target` to a request of `sender`.
    pub fn arp_reply(&self, sender: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
        let mut frame = self.ethernet(ARP, 28);
        frame.extend([&ARP_START[..], &REPLY].concat());
        frame.extend([&self.own[..], &target.octets()].concat());
        frame.extend([&self.guest[..], &sender.octets()].concat());
        frame
    }

    /// The headers of Ethernet and IP in front of `bytes` bytes.
    fn ip(&mut self, ends: &Ends, protocol: u8, bytes: usize) -> Vec<u8> {
        let mut frame = self.ethernet(IPV4, IP_BYTES + bytes.min(60));
        self.number = self.number.wrapping_add(1);
        let mut head = [0; IP_BYTES];
        head[0] = 0x45;
        head[2..4].copy_from_slice(&((IP_BYTES + bytes) as u16).to_be_bytes());
        head[4..6].copy_from_slice(&self.number.to_be_bytes());
        head[6..8].copy_from_slice(&DO_NOT_FRAGMENT);
        (head[8], head[9]) = (HOPS, protocol);
        head[12..16].copy_from_slice(&ends.remote.ip().octets());
        head[16..20].copy_from_slice(&ends.guest.ip().octets());
        let checksum = !folded(sum(0, &head));
        head[10..12].copy_from_slice(&checksum.to_be_bytes());
        frame.extend(head);
        frame
    }

    /// The headers of a segment to the guest, whose payload follows.
    pub fn segment(&mut self, ends: &Ends, header: &Header, payload: [&[u8]; 2], checksum: Checksum) -> Vec<u8> {
        let bytes = header.bytes() + payload[0].len() + payload[1].len();
        let mut frame = self.ip(ends, TCP, bytes);
        let start = frame.len();
        frame.resize(start + header.bytes(), 0);
        header.write(ends.remote.port(), ends.guest.port(), &mut frame[start..]);
        let addresses = of_addresses(ends, TCP, bytes);
        let value = match checksum {
            Checksum::OfAddresses => folded(addresses),
            Checksum::Whole => !folded(sum_of(addresses, [&frame[start..], payload[0], payload[1]])),
        };
        frame[start + CHECKSUM_OF_TCP..][..2].copy_from_slice(&value.to_be_bytes());
        frame
    }

    /// A datagram to the guest.
    pub fn datagram(&mut self, ends: &Ends, data: &[u8]) -> Vec<u8> {
        let bytes = UDP_BYTES + data.len();
        let mut frame = self.ip(ends, UDP, bytes);
        let start = frame.len();
        for word in [ends.remote.port(), ends.guest.port(), bytes as u16, 0] {
            frame.extend(word.to_be_bytes());
        }
        frame.extend(data);
        // Zero is none.
        let value = match !folded(sum(of_addresses(ends, UDP, bytes), &frame[start..])) {
            0 => u16::MAX,
            value => value,
        };
        frame[start + CHECKSUM_OF_UDP..][..2].copy_from_slice(&value.to_be_bytes());
        frame
    }
}

/// The sum of what the checksums of TCP and UDP have beside the segment (RFC 9293, section 3.1).
fn of_addresses(ends: &Ends, protocol: u8, bytes: usize) -> u64 {
    let addresses = [ends.remote.ip().octets(), ends.guest.ip().octets()].concat();
    sum(u64::from(protocol) + bytes as u64, &addresses)
}

/// Adds the words of `bytes` to a sum (RFC 1071).
fn sum(start: u64, bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(2);
    let all = words.by_ref().fold(start, |all, pair| all + u64::from(u16::from_be_bytes([pair[0], pair[1]])));
    all + words.remainder().first().map_or(0, |byte| u64::from(*byte) << 8)
}

/// The sum of several pieces that follow each other, of which any may have an odd length.
fn sum_of(start: u64, pieces: [&[u8]; 3]) -> u64 {
    let (mut all, mut is_odd) = (start, false);
    for piece in pieces {
        let mut rest = piece;
        if let (true, Some((first, more))) = (is_odd, rest.split_first()) {
            (all, rest) = (all + u64::from(*first), more);
        }
        all = sum(all, rest);
        is_odd ^= piece.len() % 2 == 1;
    }
    all
}

fn folded(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_lib_tcp::wire::Flags;

    const OWN: Mac = [2, 0, 0, 0, 0, 1];
    const GUEST: Mac = [2, 0, 0, 0, 0, 2];

    fn ends() -> Ends {
        Ends { guest: "10.0.2.15:80".parse().unwrap(), remote: "10.0.2.2:4000".parse().unwrap() }
    }

    /// The same frame as if the guest had sent it.
    fn turned(mut frame: Vec<u8>) -> Vec<u8> {
        for (one, other, bytes) in [(0, 6, 6), (26, 30, 4), (34, 36, 2)] {
            for at in 0..bytes {
                frame.swap(one + at, other + at);
            }
        }
        frame
    }

    #[test]
    fn a_segment_is_read_as_it_was_written_and_its_sums_are_right() {
        let mut writer = Writer::new(OWN, GUEST);
        let header = Header { seq: 7, ack: 9, flags: Flags::ACK, window: 5, ..Header::default() };
        let pieces: [&[u8]; 2] = [b"abc", b"defgh"];
        let mut frame = writer.segment(&ends(), &header, pieces, Checksum::Whole);
        pieces.iter().for_each(|piece| frame.extend(*piece));
        let segment = &frame[ETHERNET_BYTES + IP_BYTES..];
        assert_eq!(folded(sum(0, &frame[ETHERNET_BYTES..ETHERNET_BYTES + IP_BYTES])), 0xffff);
        assert_eq!(folded(sum(of_addresses(&ends(), TCP, segment.len()), segment)), 0xffff);
        let frame = turned(frame);
        let Some(Packet::Segment(found, segment)) = Packet::parse(&frame) else { panic!("it is a segment") };
        assert_eq!((found, segment.header, segment.payload), (ends(), header, &b"abcdefgh"[..]));
    }

    #[test]
    fn a_datagram_is_read_as_it_was_written_and_its_sum_is_right() {
        let frame = Writer::new(OWN, GUEST).datagram(&ends(), b"query");
        let datagram = &frame[ETHERNET_BYTES + IP_BYTES..];
        assert_eq!(folded(sum(of_addresses(&ends(), UDP, datagram.len()), datagram)), 0xffff);
        assert_eq!(Packet::parse(&turned(frame)), Some(Packet::Datagram(ends(), b"query")));
    }

    #[test]
    fn a_request_is_answered() {
        let mut request = Writer::new(OWN, GUEST).arp_reply(*ends().guest.ip(), *ends().remote.ip());
        assert_eq!(Packet::parse(&request), None, "it is an answer");
        request[21] = 1;
        // Its sender is the network here.
        let expected = Packet::Request { sender: *ends().remote.ip(), target: *ends().guest.ip() };
        assert_eq!(Packet::parse(&request), Some(expected));
    }

    #[test]
    fn fragments_and_what_is_not_whole_are_nothing() {
        let header = Header { flags: Flags::SYN, ..Header::default() };
        let frame = Writer::new(OWN, GUEST).segment(&ends(), &header, [&[], &[]], Checksum::Whole);
        assert!(Packet::parse(&frame).is_some());
        for (at, value) in [(20, 0x20), (21, 1), (14, 0x44), (14, 0x65), (17, 200), (46, 0x40), (46, 0xf0), (12, 0x86)]
        {
            let mut other = frame.clone();
            other[at] = value;
            assert_eq!(Packet::parse(&other), None, "byte {at}");
        }
        for bytes in 0..frame.len() {
            assert_eq!(Packet::parse(&frame[..bytes]), None);
        }
    }

    /// Any bytes are a frame, and none makes it panic.
    #[test]
    fn any_bytes_are_a_frame() {
        let frame = Writer::new(OWN, GUEST).datagram(&ends(), b"query");
        for at in 12..frame.len() {
            for value in 0..=255 {
                let mut other = frame.clone();
                other[at] = value;
                let _ = Packet::parse(&other);
            }
        }
    }
}
