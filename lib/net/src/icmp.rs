//! Reports of routers that a segment was too long for the next link (RFC 1191, RFC 8201).

use crate::segment::ip_header_bytes;
use crate::state::State;
use crate::table::Ends;
use glass_lib_tcp::wire;
use smoltcp::wire::{IpAddress, IpEndpoint, IpProtocol, Ipv4Packet, Ipv6Packet};

/// "Destination unreachable" and "fragmentation needed" of ICMP for IPv4; "packet too big" of ICMPv6.
const UNREACHABLE_V4: [u8; 2] = [3, 4];
const TOO_BIG_V6: [u8; 2] = [2, 0];
/// Of a message, before the packet that it quotes.
const HEADER_BYTES: usize = 8;
/// Each path passes this (RFC 791, RFC 8200); a report of less is not taken at its word.
const MTU_MIN_V4: u32 = 576;
const MTU_MIN_V6: u32 = 1280;

/// A report: the ends of the connection, the sequence number of the segment, and the longest packet that the link passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooLong {
    ends: Ends,
    number: u32,
    mtu: u32,
}

/// The report in a message of ICMP whose checksum is right, if it is one about a segment of ours.
pub(crate) fn too_long_in(message: &[u8], is_ipv6: bool) -> Option<TooLong> {
    let (head, quoted) = message.split_at_checked(HEADER_BYTES)?;
    let kind = if is_ipv6 { TOO_BIG_V6 } else { UNREACHABLE_V4 };
    if head[..2] != kind {
        return None;
    }
    // IPv4 has 16 bits for it; the ones before them are 0.
    let mtu = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
    let (source, destination, segment): (IpAddress, IpAddress, &[u8]) = if is_ipv6 {
        let packet = Ipv6Packet::new_unchecked(quoted.get(..40)?);
        let is_segment = packet.version() == 6 && packet.next_header() == IpProtocol::Tcp;
        (packet.src_addr().into(), packet.dst_addr().into(), quoted.get(40..).filter(|_| is_segment)?)
    } else {
        let packet = Ipv4Packet::new_unchecked(quoted.get(..20)?);
        let is_segment = packet.version() == 4 && packet.next_header() == IpProtocol::Tcp;
        let header_bytes = usize::from(packet.header_len()).max(20);
        (packet.src_addr().into(), packet.dst_addr().into(), quoted.get(header_bytes..).filter(|_| is_segment)?)
    };
    let fields = segment.first_chunk::<8>()?;
    let port = |at: usize| u16::from_be_bytes([fields[at], fields[at + 1]]);
    let (local, remote) = (IpEndpoint::new(source, port(0)), IpEndpoint::new(destination, port(2)));
    let number = u32::from_be_bytes([fields[4], fields[5], fields[6], fields[7]]);
    let mtu = mtu.max(if is_ipv6 { MTU_MIN_V6 } else { MTU_MIN_V4 });
    Some(TooLong { ends: Ends { local, remote }, number, mtu })
}

impl State {
    /// Sends shorter segments on a connection.
    pub(crate) fn shorten(&mut self, report: &TooLong) {
        let TooLong { ends, number, mtu } = *report;
        if let Some(id) = self.table.find(ends) {
            let bytes = (mtu as usize).saturating_sub(ip_header_bytes(ends) + wire::HEADER_BYTES);
            let now = self.now;
            self.tcp(id).limit_segment(now, number, u16::try_from(bytes).unwrap_or(u16::MAX));
            self.table.touch(id);
        }
    }
}
