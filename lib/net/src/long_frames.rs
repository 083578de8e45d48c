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
        if let TcpOption::MaxSegmentSize(_) = option {
            segment[next - 2..next].copy_from_slice(&bytes.to_be_bytes());
        }
        at = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::num::NonZeroUsize;
    use smoltcp::phy::Checksum;

    #[test]
    fn frames_are_long_with_ipv6_if_the_device_cuts_them_and_computes_checksums() {
        for (has_ipv6, checksum, tso_v6, is_long) in [
            (true, Checksum::None, true, true),
            (true, Checksum::Rx, true, true),
            (true, Checksum::Both, true, false),
            (false, Checksum::None, true, false),
            (true, Checksum::None, false, false),
        ] {
            let mut capabilities = DeviceCapabilities::default();
            capabilities.max_transmission_unit = 1514;
            capabilities.checksum.tcp = checksum;
            capabilities.segmentation.tcpv4 = NonZeroUsize::new(60_000);
            capabilities.segmentation.tcpv6 = NonZeroUsize::new(50_000).filter(|_| tso_v6);
            let (shape, found) = Shape::of(capabilities, has_ipv6);
            let expected = if is_long { (50_000, NonZeroUsize::new(50_000)) } else { (1514, None) };
            let capabilities = shape.capabilities();
            assert_eq!(found, is_long);
            assert_eq!((capabilities.max_transmission_unit, capabilities.segmentation.tcpv6), expected);
        }
    }

    /// Takes a frame and keeps into which segments it is to be cut.
    struct Recorder<'r>(&'r mut Option<NonZeroU16>);

    impl TxToken for Recorder<'_> {
        fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
            Nowhere.consume(len, write)
        }

        fn set_meta(&mut self, meta: PacketMeta) {
            *self.0 = meta.segmentation_offload_size;
        }
    }

    #[test]
    fn only_what_is_longer_than_a_segment_is_cut() {
        for (peer_bytes, segment_bytes) in [(9000, 1440), (1000, 1000), (10, 64)] {
            let sent = |payload_bytes| {
                let mut cut = None;
                let cutting = Cutting { transmit: Recorder(&mut cut), cut: Cut::new(1500, 40, peer_bytes) };
                cutting.consume(14 + 40 + 20 + payload_bytes, |_| ());
                cut.map(|bytes| usize::from(bytes.get()))
            };
            assert_eq!((sent(0), sent(segment_bytes)), (None, None));
            assert_eq!(sent(segment_bytes + 1), Some(segment_bytes));
        }
    }
}
