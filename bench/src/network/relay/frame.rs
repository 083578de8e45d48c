//! Frames as a TAP device gives them, with the header of virtio-net in front (virtio 1.2, section 5.1.6), and the segments that a network
//! card would cut them into.

use std::ops::Range;

/// `struct virtio_net_hdr` of Linux, without the number of merged buffers.
pub const HEADER_BYTES: usize = 10;
const ETHERNET_BYTES: usize = 14;
/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the checksum field has the sum of the pseudo header.
const NEEDS_CHECKSUM: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_TCPV4`.
const SEGMENTS_OF_TCP4: u8 = 1;
const TCP: u8 = 6;
/// Where the fields are (RFC 791, section 3.1; RFC 9293, section 3.1).
const IP_LENGTH: usize = 2;
const IP_IDENTIFICATION: usize = 4;
const IP_PROTOCOL: usize = 9;
const IP_CHECKSUM: usize = 10;
const IP_ADDRESSES: Range<usize> = 12..20;
const TCP_SEQUENCE: usize = 4;
const TCP_DATA_OFFSET: usize = 12;
const TCP_FLAGS: usize = 13;
const TCP_CHECKSUM: usize = 16;
/// Flags of the last segment of a frame only, and of the first only.
const FIN_AND_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// Where the parts of a frame of TCP over IPv4 are.
#[derive(Debug, Clone, Copy)]
struct Layout {
    /// The start of the IP header, of the TCP header and of the data, from the start of the bytes.
    ip: usize,
    tcp: usize,
    data: usize,
    /// The end of the data: Ethernet may pad.
    end: usize,
    /// Data of each segment but the last.
    segment_bytes: usize,
}

/// A frame of one or more segments.
#[derive(Debug)]
pub struct Frame {
    bytes: Vec<u8>,
    /// `None` if it is anything else than TCP over IPv4.
    layout: Option<Layout>,
}

impl Frame {
    /// The frame in what a TAP device returned; `None` if that is too short for one.
    pub fn new(bytes: Vec<u8>) -> Option<Frame> {
        let layout = Layout::of(&bytes);
        (bytes.len() >= HEADER_BYTES + ETHERNET_BYTES).then_some(Frame { bytes, layout })
    }

    /// Whether it is TCP over IPv4.
    pub fn is_tcp(&self) -> bool {
        self.layout.is_some()
    }

    /// How many segments it consists of.
    pub fn segments(&self) -> usize {
        self.layout.map_or(1, Layout::segments)
    }

    /// The length of the Ethernet frame that segment `index` is sent in.
    pub fn wire_bytes(&self, index: usize) -> u64 {
        let whole = self.bytes.len() - HEADER_BYTES;
        let bytes = match self.layout {
            Some(layout) if layout.segments() > 1 => {
                layout.data - HEADER_BYTES + layout.data_of(&(index..index + 1)).len()
            }
            _ => whole,
        };
        bytes as u64
    }

    /// What a TAP device is given for these segments: `buffer` gets it where it is not simply the whole.
    pub fn piece<'b>(&'b self, segments: Range<usize>, buffer: &'b mut Vec<u8>) -> &'b [u8] {
        match self.layout {
            Some(layout) if segments.len() < layout.segments() => {
                layout.cut(&self.bytes, segments, buffer);
                buffer
            }
            _ => &self.bytes,
        }
    }
}

impl Layout {
    fn of(bytes: &[u8]) -> Option<Layout> {
        let ip = HEADER_BYTES + ETHERNET_BYTES;
        let start = *bytes.get(ip)?;
        let tcp = ip + usize::from(start & 0xf) * 4;
        let is_ip4 = bytes[ip - 2..ip] == [8, 0] && start >> 4 == 4;
        if !is_ip4 || *bytes.get(ip + IP_PROTOCOL)? != TCP {
            return None;
        }
        let data = tcp + usize::from(*bytes.get(tcp + TCP_DATA_OFFSET)? >> 4) * 4;
        let end = ip + usize::from(get(bytes, ip + IP_LENGTH));
        if data < tcp + TCP_CHECKSUM + 4 || data > end || end > bytes.len() {
            return None;
        }
        let is_cut = bytes[1] & 0x7f == SEGMENTS_OF_TCP4;
        let segment_bytes = if is_cut { usize::from(u16::from_ne_bytes([bytes[4], bytes[5]])) } else { 0 };
        let segment_bytes = if segment_bytes == 0 { end - data } else { segment_bytes };
        Some(Layout { ip, tcp, data, end, segment_bytes })
    }

    fn segments(self) -> usize {
        (self.end - self.data).div_ceil(self.segment_bytes.max(1)).max(1)
    }

    fn data_of(&self, segments: &Range<usize>) -> Range<usize> {
        let place = |index: usize| (self.data + index * self.segment_bytes).min(self.end);
        place(segments.start)..place(segments.end)
    }

    /// Writes a frame with only these segments, whose checksum its receiver may compute as that of the whole.
    fn cut(self, bytes: &[u8], segments: Range<usize>, into: &mut Vec<u8>) {
        let Layout { ip, tcp, data, segment_bytes, .. } = self;
        let range = self.data_of(&segments);
        into.clear();
        into.extend_from_slice(&bytes[..data]);
        into.extend_from_slice(&bytes[range]);
        let is_several = segments.len() > 1;
        into[0] = NEEDS_CHECKSUM;
        into[1] = if is_several { SEGMENTS_OF_TCP4 } else { 0 };
        let size = if is_several { segment_bytes as u16 } else { 0 };
        let words = [(data - HEADER_BYTES) as u16, size, (tcp - HEADER_BYTES) as u16, TCP_CHECKSUM as u16];
        for (place, word) in into[2..HEADER_BYTES].chunks_exact_mut(2).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        let ip_bytes = (into.len() - ip) as u16;
        put(into, ip + IP_LENGTH, ip_bytes);
        put(into, ip + IP_IDENTIFICATION, get(bytes, ip + IP_IDENTIFICATION).wrapping_add(segments.start as u16));
        put(into, ip + IP_CHECKSUM, 0);
        let checksum = !sum(&into[ip..tcp], 0);
        put(into, ip + IP_CHECKSUM, checksum);
        let [a, b, c, d] = [0, 1, 2, 3].map(|index| bytes[tcp + TCP_SEQUENCE + index]);
        let sequence = u32::from_be_bytes([a, b, c, d]).wrapping_add((segments.start * segment_bytes) as u32);
        into[tcp + TCP_SEQUENCE..][..4].copy_from_slice(&sequence.to_be_bytes());
        if segments.end < self.segments() {
            into[tcp + TCP_FLAGS] &= !FIN_AND_PSH;
        }
        if segments.start > 0 {
            into[tcp + TCP_FLAGS] &= !CWR;
        }
        let tcp_bytes = (into.len() - tcp) as u32;
        let addresses = ip + IP_ADDRESSES.start..ip + IP_ADDRESSES.end;
        let of_pseudo_header = sum(&into[addresses], tcp_bytes + u32::from(TCP));
        put(into, tcp + TCP_CHECKSUM, of_pseudo_header);
    }
}

fn get(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// The sum of the Internet's checksum (RFC 1071) of an even number of bytes, after `before`.
fn sum(bytes: &[u8], before: u32) -> u16 {
    let (words, _) = bytes.as_chunks::<2>();
    let mut sum = words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum::<u32>() + before;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    const IP: usize = HEADER_BYTES + ETHERNET_BYTES;
    const TCP_START: usize = IP + 20;
    /// With an option of 12 bytes, as timestamps are.
    const DATA: usize = TCP_START + 32;

    /// A frame of so much data that is to be cut into segments of `segment_bytes`, with the flags FIN, PSH, ACK and CWR.
    fn frame(data_bytes: usize, segment_bytes: u16) -> Frame {
        let mut bytes = vec![0; DATA];
        bytes.extend((0..data_bytes).map(|index| index as u8));
        bytes[..2].copy_from_slice(&[NEEDS_CHECKSUM, if segment_bytes > 0 { SEGMENTS_OF_TCP4 } else { 0 }]);
        bytes[4..6].copy_from_slice(&segment_bytes.to_ne_bytes());
        bytes[IP - 2] = 8;
        bytes[IP] = 0x45;
        let length = (bytes.len() - IP) as u16;
        put(&mut bytes, IP + IP_LENGTH, length);
        put(&mut bytes, IP + IP_IDENTIFICATION, 0xffff);
        bytes[IP + IP_PROTOCOL] = TCP;
        bytes[IP + 12..IP + 20].copy_from_slice(&[10, 77, 0, 1, 10, 77, 0, 2]);
        bytes[TCP_START + TCP_SEQUENCE..][..4].copy_from_slice(&0xffff_ff00_u32.to_be_bytes());
        bytes[TCP_START + TCP_DATA_OFFSET] = 8 << 4;
        bytes[TCP_START + TCP_FLAGS] = FIN_AND_PSH | 0x10 | CWR;
        Frame::new(bytes).unwrap()
    }

    fn piece(frame: &Frame, segments: Range<usize>) -> Vec<u8> {
        frame.piece(segments, &mut Vec::new()).to_vec()
    }

    fn sequence(bytes: &[u8]) -> u32 {
        u32::from_be_bytes(bytes[TCP_START + TCP_SEQUENCE..][..4].try_into().unwrap())
    }

    #[test]
    fn a_frame_is_cut_into_segments_of_the_requested_size() {
        let frame = frame(4000, 1448);
        assert!(frame.is_tcp());
        assert_eq!(frame.segments(), 3);
        assert_eq!([0, 1, 2].map(|index| frame.wire_bytes(index)), [1448, 1448, 4000 - 2 * 1448].map(|data| 66 + data));
        let pieces = [0, 1, 2].map(|index| piece(&frame, index..index + 1));
        let data: Vec<u8> = pieces.iter().flat_map(|piece| piece[DATA..].to_vec()).collect();
        assert!(data.iter().copied().eq((0..4000).map(|index| index as u8)));
        let start = 0xffff_ff00_u32;
        let starts = [0, 1448, 2896].map(|offset| start.wrapping_add(offset));
        assert_eq!([0, 1, 2].map(|index: usize| sequence(&pieces[index])), starts);
        assert_eq!([0, 1, 2].map(|index: usize| get(&pieces[index], IP + IP_IDENTIFICATION)), [0xffff, 0, 1]);
        // CWR of the first, FIN and PSH of the last.
        let flags = [0, 1, 2].map(|index: usize| pieces[index][TCP_START + TCP_FLAGS]);
        assert_eq!(flags, [0x10 | CWR, 0x10, 0x10 | FIN_AND_PSH]);
        for piece in &pieces {
            assert_eq!(usize::from(get(piece, IP + IP_LENGTH)), piece.len() - IP);
            assert_eq!(sum(&piece[IP..TCP_START], 0), 0xffff, "the checksum of the IP header");
            assert_eq!(piece[..2], [NEEDS_CHECKSUM, 0]);
            let expected = sum(&piece[IP + 12..IP + 20], (piece.len() - TCP_START) as u32 + 6);
            assert_eq!(get(piece, TCP_START + TCP_CHECKSUM), expected, "the sum of the pseudo header");
        }
    }

    #[test]
    fn neighbours_stay_in_one_frame() {
        let frame = frame(4000, 1448);
        let two = piece(&frame, 1..3);
        assert_eq!(two[..2], [NEEDS_CHECKSUM, SEGMENTS_OF_TCP4]);
        assert_eq!(u16::from_ne_bytes([two[4], two[5]]), 1448);
        let again = Frame::new(two).unwrap();
        assert_eq!(again.segments(), 2);
        assert_eq!(piece(&again, 1..2), piece(&frame, 2..3));
        assert_eq!(piece(&frame, 0..3), frame.bytes);
    }

    #[test]
    fn what_is_not_cut_is_passed_on_as_it_is() {
        let whole = frame(1000, 0);
        assert_eq!((whole.segments(), whole.wire_bytes(0)), (1, 1066));
        assert_eq!(piece(&whole, 0..1), whole.bytes);
        let empty = frame(0, 0);
        assert_eq!((empty.segments(), empty.wire_bytes(0), empty.is_tcp()), (1, 66, true));
        let mut query = vec![0; 52];
        query[IP - 2..IP].copy_from_slice(&[8, 6]);
        let query = Frame::new(query).unwrap();
        assert_eq!((query.is_tcp(), query.segments(), query.wire_bytes(0)), (false, 1, 42));
    }

    #[test]
    fn a_damaged_frame_is_no_tcp() {
        let intact = frame(4000, 1448).bytes;
        assert!(Frame::new(intact[..HEADER_BYTES + 13].to_vec()).is_none());
        for length in HEADER_BYTES + ETHERNET_BYTES..intact.len() {
            assert!(!Frame::new(intact[..length].to_vec()).unwrap().is_tcp(), "{length}");
        }
        let changed = |at: usize, byte: u8| {
            let mut bytes = intact.clone();
            bytes[at] = byte;
            Frame::new(bytes).unwrap().is_tcp()
        };
        assert!(!changed(TCP_START + TCP_DATA_OFFSET, 4 << 4), "a TCP header of 16 bytes");
        assert!(!changed(IP, 0x65), "IPv6");
        assert!(!changed(IP + IP_PROTOCOL, 17), "UDP");
    }
}
