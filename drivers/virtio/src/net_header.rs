//! The header in front of each frame (virtio 1.2, section 5.1.6): what the driver requests of the device for a frame that is sent, and what the
//! device reports about a frame that was received.

use core::num::NonZeroU16;
use glass_drivers_device::{Offload, Verdict, verify as verify_frame};

/// Its length.
pub const HEADER_BYTES: usize = 12;
const FLAG_NEEDS_CHECKSUM: u8 = 1;
const FLAG_DATA_VALID: u8 = 2;
/// Where a received header has the number of buffers of its frame.
const BUFFERS_AT: usize = 10;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;

/// In how many buffers the device reports a frame to be, if both have agreed on merged buffers (virtio 1.2, section 5.1.6.4).
pub fn buffers(header: &[u8; HEADER_BYTES]) -> u16 {
    u16::from_le_bytes([header[BUFFERS_AT], header[BUFFERS_AT + 1]])
}

/// Whether a received frame is of a kind that both have agreed on: one segment, or merged segments of TCP over IPv4 or IPv6 (virtio 1.2,
/// section 5.1.6.4.1).
pub fn is_agreed(header: &[u8; HEADER_BYTES], merged_v4: bool, merged_v6: bool) -> bool {
    match header[1] {
        GSO_NONE => true,
        GSO_TCPV4 => merged_v4,
        GSO_TCPV6 => merged_v6,
        _ => false,
    }
}

/// Whether a received frame may be passed to a stack that does not check TCP and UDP checksums.
/// One pass over the payload, or none where the device vouches for it.
pub fn verify(header: &[u8; HEADER_BYTES], frame: &[u8]) -> Verdict {
    if header[0] & (FLAG_NEEDS_CHECKSUM | FLAG_DATA_VALID) != 0 {
        return Verdict::Good;
    }
    verify_frame(frame)
}

/// Prepares a frame whose TCP or UDP checksum is to be completed by the device, and which it is
/// to segment with `segment_bytes` of payload each, if that is given.
pub fn prepare(header: &mut [u8; HEADER_BYTES], frame: &mut [u8], segment_bytes: Option<NonZeroU16>) {
    let Offload { checksum, segmentation } = Offload::prepare(frame, segment_bytes);
    if let Some(checksum) = checksum {
        header[0] = FLAG_NEEDS_CHECKSUM;
        header[6..8].copy_from_slice(&checksum.start.to_le_bytes());
        header[8..10].copy_from_slice(&checksum.offset.to_le_bytes());
    }
    if let Some(segmentation) = segmentation {
        header[1] = if segmentation.is_ipv6 { GSO_TCPV6 } else { GSO_TCPV4 };
        header[2..4].copy_from_slice(&segmentation.headers_bytes.to_le_bytes());
        header[4..6].copy_from_slice(&segmentation.payload_bytes.to_le_bytes());
    }
}
