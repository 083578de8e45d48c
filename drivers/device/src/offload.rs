//! Checksums and segmentation of frames, which a network card does for a stack: the place of the TCP or UDP checksum, its initial value, and
//! how to segment. Pure functions over bytes; nothing here trusts a length.

use crate::checksum::Sum;
use core::num::NonZeroU16;

const ETHERNET_BYTES: usize = 14;
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const TCP: u8 = 6;
const UDP: u8 = 17;
const IPV6_HOP_BY_HOP: u8 = 0;
const IPV6_ROUTING: u8 = 43;
const IPV6_FRAGMENT: u8 = 44;
const IPV6_DESTINATION: u8 = 60;
/// A frame with more extension headers is not parsed further.
const IPV6_EXTENSIONS_MAX: usize = 8;

/// The part of a frame that a TCP or UDP checksum covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Payload {
    protocol: u8,
    /// Offsets in the frame.
    start: usize,
    end: usize,
    /// Offset of source and destination, one after the other.
    addresses: (usize, usize),
}

impl Payload {
    fn checksum_offset(&self) -> usize {
        if self.protocol == TCP { 16 } else { 6 }
    }

    /// The sum of the pseudo header.
    fn pseudo_sum(&self, frame: &[u8]) -> Sum {
        let bytes = (self.end - self.start) as u32;
        let sum = Sum::default().with(&frame[self.addresses.0..self.addresses.1]);
        sum.with_word((bytes >> 16) as u16).with_word(bytes as u16).with_word(u16::from(self.protocol))
    }
}

/// The payload of a frame, as far as checksums are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    Checked(Payload),
    Fragment,
    /// Neither TCP nor UDP, or cut short: the stack above decides.
    Other,
}

fn content(frame: &[u8]) -> Content {
    match frame.get(12..ETHERNET_BYTES) {
        Some(ethertype) if ethertype == ETHERTYPE_IPV4 => ipv4(frame),
        Some(ethertype) if ethertype == ETHERTYPE_IPV6 => ipv6(frame),
        _ => Content::Other,
    }
}

fn ipv4(frame: &[u8]) -> Content {
    let Some(header) = frame[ETHERNET_BYTES..].first_chunk::<20>() else { return Content::Other };
    let header_bytes = usize::from(header[0] & 15) * 4;
    // A segment to be cut may be longer than the field can say; then it is 0.
    let total_bytes = match u16::from_be_bytes([header[2], header[3]]) {
        0 => frame.len() - ETHERNET_BYTES,
        bytes => usize::from(bytes),
    };
    if header[0] >> 4 != 4 || header_bytes < 20 {
        return Content::Other;
    }
    // More fragments, or an offset.
    if u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0 {
        return Content::Fragment;
    }
    let addresses = (ETHERNET_BYTES + 12, ETHERNET_BYTES + 20);
    payload(frame, header[9], ETHERNET_BYTES + header_bytes, ETHERNET_BYTES + total_bytes, addresses)
}

fn ipv6(frame: &[u8]) -> Content {
    let Some(header) = frame[ETHERNET_BYTES..].first_chunk::<40>() else { return Content::Other };
    if header[0] >> 4 != 6 {
        return Content::Other;
    }
    let mut start = ETHERNET_BYTES + 40;
    let end = match u16::from_be_bytes([header[4], header[5]]) {
        0 => frame.len(),
        bytes => start + usize::from(bytes),
    };
    let mut protocol = header[6];
    for _ in 0..IPV6_EXTENSIONS_MAX {
        match protocol {
            IPV6_FRAGMENT => return Content::Fragment,
            IPV6_HOP_BY_HOP | IPV6_ROUTING | IPV6_DESTINATION => {
                let Some(&[next, length]) = frame.get(start..start + 2).and_then(|bytes| bytes.first_chunk::<2>())
                else {
                    return Content::Other;
                };
                protocol = next;
                start += 8 * (usize::from(length) + 1);
            }
            _ => return payload(frame, protocol, start, end, (ETHERNET_BYTES + 8, ETHERNET_BYTES + 40)),
        }
    }
    Content::Other
}

fn payload(frame: &[u8], protocol: u8, start: usize, end: usize, addresses: (usize, usize)) -> Content {
    let header_bytes = match protocol {
        TCP => 20,
        UDP => 8,
        _ => return Content::Other,
    };
    if end > frame.len() || start + header_bytes > end {
        return Content::Other;
    }
    Content::Checked(Payload { protocol, start, end, addresses })
}

/// What to do with a received frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Its checksum is right, or the device vouches for it, or it has none.
    Good,
    /// Its checksum is wrong.
    Wrong,
    /// A part of a datagram: its checksum can be verified only when all parts have arrived.
    Fragment,
}

/// Whether a received frame may be passed to a stack that does not check TCP and UDP checksums. One pass over the payload.
pub fn verify(frame: &[u8]) -> Verdict {
    let payload = match content(frame) {
        Content::Other => return Verdict::Good,
        Content::Fragment => return Verdict::Fragment,
        Content::Checked(payload) => payload,
    };
    let bytes = &frame[payload.start..payload.end];
    let is_absent = payload.protocol == UDP && bytes[6..8] == [0, 0] && payload.addresses.1 == ETHERNET_BYTES + 20;
    if is_absent || payload.pseudo_sum(frame).with(bytes).fold() == 0xffff {
        return Verdict::Good;
    }
    Verdict::Wrong
}

/// What a card is to do with a frame that is sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offload {
    /// Completes the TCP or UDP checksum, whose field has the sum of the pseudo header.
    pub checksum: Option<PartialChecksum>,
    /// Segments the frame, which has a checksum to be completed then.
    pub segmentation: Option<Segmentation>,
}

/// The checksum of the bytes from `start` to the end of the frame, put at `start + offset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartialChecksum {
    /// Where the TCP or UDP header starts, in bytes from the start of the frame.
    pub start: u16,
    /// Where that header has the checksum.
    pub offset: u16,
}

/// TCP segments to make of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segmentation {
    /// Payload of each in bytes; the last one may have less.
    pub payload_bytes: u16,
    /// All headers in bytes, Ethernet's included. Each segment has a copy.
    pub headers_bytes: u16,
    /// Whether they are over IPv6, not IPv4.
    pub is_ipv6: bool,
}

impl Offload {
    /// Prepares a frame whose TCP or UDP checksum is to be completed by the card, and which it is to segment with `segment_bytes` of payload
    /// each, if that is given.
    pub fn prepare(frame: &mut [u8], segment_bytes: Option<NonZeroU16>) -> Offload {
        let Content::Checked(payload) = content(frame) else { return Offload::default() };
        let sum = payload.pseudo_sum(frame).fold();
        let (start, offset) = (payload.start, payload.checksum_offset());
        frame[start + offset..start + offset + 2].copy_from_slice(&sum.to_be_bytes());
        let segmentation = segment_bytes.filter(|_| payload.protocol == TCP).map(|bytes| Segmentation {
            payload_bytes: bytes.get(),
            headers_bytes: (start + usize::from(frame[start + 12] >> 4) * 4) as u16,
            is_ipv6: frame[12..ETHERNET_BYTES] == ETHERTYPE_IPV6,
        });
        Offload { checksum: Some(PartialChecksum { start: start as u16, offset: offset as u16 }), segmentation }
    }
}
