//! Long frames of TCP, which the device cuts into segments, over IPv6.
//!
//! smoltcp 0.14.0 drops a packet of IPv6 that is longer than the MTU, and does not pass on into which segments it is to be cut. So if the
//! device cuts such frames, smoltcp gets the longest one as its MTU, and what follows from the real one is done here, for IPv4 too: our
//! maximum segment size in a SYN, and the size of segments.

use core::num::NonZeroU16;
use smoltcp::phy::{Device, DeviceCapabilities, PacketMeta, TxToken};
use smoltcp::time::Instant;
use smoltcp::wire::{TcpOption, TcpPacket};

use crate::ingress::Frame;
use crate::resync::Nowhere;
use crate::segment::{segment_of, segment_start};

const ETHERNET_BYTES: usize = 14;
const TCP_BYTES: usize = 20;
/// A peer that wants shorter segments does not get them.
const SEGMENT_BYTES_MIN: usize = 64;

/// What smoltcp gets to know of a device.
pub(crate) struct Shape(pub(crate) DeviceCapabilities);

impl Shape {
    /// The device's own, or with the longest frame as its MTU, and whether that is the case.
    pub(crate) fn of(mut capabilities: DeviceCapabilities, has_ipv6: bool) -> (Shape, bool) {
        let segmentation = &capabilities.segmentation;
        let (Some(_), Some(longest)) = (segmentation.tcpv4, segmentation.tcpv6) else {
            return (Shape(capabilities), false);
        };
        // A device that cuts frames computes checksums.
        let is_long = has_ipv6 && !capabilities.checksum.tcp.tx();
        if is_long {
            capabilities.max_transmission_unit = longest.get();
        } else {
            capabilities.segmentation.tcpv6 = None;
        }
        (Shape(capabilities), is_long)
    }
}

/// A device for its capabilities only.
impl Device for Shape {
    type RxToken<'a> = Frame<'a>;
    type TxToken<'a> = Nowhere;

    fn receive(&mut self, _: Instant) -> Option<(Frame<'_>, Nowhere)> {
        None
    }

    fn transmit(&mut self, _: Instant) -> Option<Nowhere> {
        None
    }

    fn capabilities(&self) -> DeviceCapabilities {
        self.0.clone()
    }
}

/// How the frames of a connection are cut.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    /// Headers of Ethernet, IP and TCP.
    header_bytes: usize,
    /// The longest segment that we receive, and that we send.
    receive_bytes: u16,
    send_bytes: NonZeroU16,
}

impl Cut {
    /// For a device with the MTU `mtu` and a peer that receives segments of `peer_bytes`.
    pub(crate) fn new(mtu: usize, ip_header_bytes: usize, peer_bytes: usize) -> Option<Cut> {
        let longest = mtu.saturating_sub(ip_header_bytes + TCP_BYTES);
        let send_bytes = longest.min(peer_bytes.max(SEGMENT_BYTES_MIN));
        Some(Cut {
            header_bytes: ETHERNET_BYTES + ip_header_bytes + TCP_BYTES,
            receive_bytes: u16::try_from(longest).ok()?,
            send_bytes: NonZeroU16::new(u16::try_from(send_bytes).ok()?)?,
        })
    }
}

/// Sends a frame of a connection; as it is, if there is no `cut`.
pub(crate) struct Cutting<T> {
    pub(crate) transmit: T,
    pub(crate) cut: Option<Cut>,
}

impl<T: TxToken> TxToken for Cutting<T> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(mut self, len: usize, write: F) -> R {
        let Some(cut) = self.cut else { return self.transmit.consume(len, write) };
        let is_long = len.saturating_sub(cut.header_bytes) > usize::from(cut.send_bytes.get());
        let mut meta = PacketMeta::default();
        meta.segmentation_offload_size = is_long.then_some(cut.send_bytes);
        self.transmit.set_meta(meta);
        self.transmit.consume(len, |frame| {
            let result = write(frame);
            offer_segments(frame, cut.receive_bytes);
            result
        })
    }

    fn set_meta(&mut self, meta: PacketMeta) {
        self.transmit.set_meta(meta);
    }
}

/// Puts our maximum segment size into a SYN, whose checksum the device computes.
fn offer_segments(frame: &mut [u8], bytes: u16) {
    let Some(packet) = segment_of(frame).filter(TcpPacket::syn) else { return };
    let (end, mut at) = (usize::from(packet.header_len()), TCP_BYTES);
    let Some(segment) = segment_start(frame).and_then(|start| frame.get_mut(start..)) else { return };
    while let Ok((rest, option)) = TcpOption::parse(&segment[at..end]) {
        let next = end - rest.len();
        match option {
            TcpOption::MaxSegmentSize(_) => return segment[next - 2..next].copy_from_slice(&bytes.to_be_bytes()),
            TcpOption::EndOfList => return,
            _ => at = next,
        }
    }
}
