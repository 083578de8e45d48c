//! The seam to a network card: what a [`Stack`](crate::Stack) needs of one, in terms of neither smoltcp nor virtio, and the frame device that
//! joins the two.

use core::num::{NonZeroU16, NonZeroUsize};
use smoltcp::phy::{self, Checksum, DeviceCapabilities, Medium, PacketMeta};
use smoltcp::time::Instant;

const ETHERNET_BYTES: usize = 14;

/// What a card does for the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CardLimits {
    /// The most bytes of a frame after its Ethernet header.
    pub mtu: usize,
    /// The card completes the TCP and UDP checksums of frames that are sent.
    pub completes_checksums: bool,
    /// The card drops received frames with a wrong TCP or UDP checksum.
    pub verifies_checksums: bool,
    /// Longest frame that the card cuts into TCP segments over IPv4, if it does.
    pub segment_v4_bytes_max: Option<NonZeroUsize>,
    /// The same over IPv6.
    pub segment_v6_bytes_max: Option<NonZeroUsize>,
}

/// A card that moves Ethernet frames. No call waits.
pub trait Card {
    /// The right to send a frame.
    type Transmit<'a>: CardTransmit
    where
        Self: 'a;

    /// What the card does for the stack. Constant.
    fn limits(&self) -> CardLimits;

    /// The next received frame, and the right to answer it immediately; `None` without room for an answer. The frame is memory that
    /// does not change while it is borrowed.
    fn receive(&mut self) -> Option<(&[u8], Self::Transmit<'_>)>;

    /// The right to send a frame, if there is room for one.
    fn transmit(&mut self) -> Option<Self::Transmit<'_>>;
}

/// The right to send one frame.
pub trait CardTransmit {
    /// Sends a frame of `bytes` bytes that `fill` writes, to be cut into TCP segments with `segment_bytes` of payload each if that is
    /// given.
    fn send<R>(self, bytes: usize, segment_bytes: Option<NonZeroU16>, fill: impl FnOnce(&mut [u8]) -> R) -> R;
}

/// A card as smoltcp's device.
#[derive(Debug)]
pub struct FrameDevice<C>(pub C);

impl<C: Card> phy::Device for FrameDevice<C> {
    type RxToken<'a>
        = Received<'a>
    where
        C: 'a;
    type TxToken<'a>
        = Sender<C::Transmit<'a>>
    where
        C: 'a;

    fn receive(&mut self, _timestamp: Instant) -> Option<(Received<'_>, Sender<C::Transmit<'_>>)> {
        let (frame, transmit) = self.0.receive()?;
        Some((Received(frame), Sender { transmit, meta: PacketMeta::default() }))
    }

    fn transmit(&mut self, _timestamp: Instant) -> Option<Sender<C::Transmit<'_>>> {
        Some(Sender { transmit: self.0.transmit()?, meta: PacketMeta::default() })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let limits = self.0.limits();
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = limits.mtu + ETHERNET_BYTES;
        let checksum = match (limits.completes_checksums, limits.verifies_checksums) {
            (true, true) => Checksum::None,
            (true, false) => Checksum::Rx,
            (false, true) => Checksum::Tx,
            (false, false) => Checksum::Both,
        };
        capabilities.checksum.tcp = checksum;
        capabilities.checksum.udp = checksum;
        capabilities.segmentation.tcpv4 = limits.segment_v4_bytes_max;
        capabilities.segmentation.tcpv6 = limits.segment_v6_bytes_max;
        capabilities
    }
}

/// A received frame.
#[derive(Debug)]
pub struct Received<'a>(&'a [u8]);

impl phy::RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, parse: F) -> R {
        parse(self.0)
    }
}

/// The right to send a frame, and how it is to be cut.
#[derive(Debug)]
pub struct Sender<T> {
    transmit: T,
    meta: PacketMeta,
}

impl<T: CardTransmit> phy::TxToken for Sender<T> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, fill: F) -> R {
        self.transmit.send(len, self.meta.segmentation_offload_size, fill)
    }

    fn set_meta(&mut self, meta: PacketMeta) {
        self.meta = meta;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;
    use smoltcp::phy::{Device, RxToken, TxToken};

    /// Sends to itself, while there is room for one frame.
    struct Loopback {
        limits: CardLimits,
        frame: Option<(Vec<u8>, Option<NonZeroU16>)>,
        taken: Vec<u8>,
    }

    struct Transmit<'a>(&'a mut Option<(Vec<u8>, Option<NonZeroU16>)>);

    impl CardTransmit for Transmit<'_> {
        fn send<R>(self, bytes: usize, segment_bytes: Option<NonZeroU16>, fill: impl FnOnce(&mut [u8]) -> R) -> R {
            let mut frame = vec![0; bytes];
            let result = fill(&mut frame);
            *self.0 = Some((frame, segment_bytes));
            result
        }
    }

    impl Card for Loopback {
        type Transmit<'a> = Transmit<'a>;
        fn limits(&self) -> CardLimits {
            self.limits
        }
        fn receive(&mut self) -> Option<(&[u8], Transmit<'_>)> {
            self.taken = self.frame.take()?.0;
            Some((&self.taken, Transmit(&mut self.frame)))
        }
        fn transmit(&mut self) -> Option<Transmit<'_>> {
            self.frame.is_none().then_some(Transmit(&mut self.frame))
        }
    }

    fn device(completes_checksums: bool, verifies_checksums: bool) -> FrameDevice<Loopback> {
        let segment_v4_bytes_max = NonZeroUsize::new(65535).filter(|_| completes_checksums);
        let segment_v6_bytes_max = NonZeroUsize::new(65534).filter(|_| completes_checksums);
        let limits = CardLimits {
            mtu: 1500,
            completes_checksums,
            verifies_checksums,
            segment_v4_bytes_max,
            segment_v6_bytes_max,
        };
        FrameDevice(Loopback { limits, frame: None, taken: Vec::new() })
    }

    #[test]
    fn the_stack_is_told_what_it_need_not_do() {
        for (completes, verifies, checksum) in [
            (false, false, Checksum::Both),
            (true, false, Checksum::Rx),
            (false, true, Checksum::Tx),
            (true, true, Checksum::None),
        ] {
            let capabilities = device(completes, verifies).capabilities();
            assert_eq!(
                (capabilities.checksum.tcp.rx(), capabilities.checksum.tcp.tx()),
                (checksum.rx(), checksum.tx())
            );
            assert_eq!(
                (capabilities.checksum.udp.rx(), capabilities.checksum.udp.tx()),
                (checksum.rx(), checksum.tx())
            );
            assert!(
                capabilities.checksum.ipv4.rx()
                    && capabilities.checksum.icmpv4.tx()
                    && capabilities.checksum.icmpv6.rx()
            );
            let longest = |bytes| NonZeroUsize::new(bytes).filter(|_| completes);
            assert_eq!(
                (capabilities.segmentation.tcpv4, capabilities.segmentation.tcpv6),
                (longest(65535), longest(65534))
            );
            assert_eq!(capabilities.max_transmission_unit, 1514);
        }
    }

    #[test]
    fn frames_pass_with_what_the_card_must_know() {
        let mut device = device(true, true);
        let mut sender = device.transmit(Instant::ZERO).unwrap();
        let mut meta = PacketMeta::default();
        meta.segmentation_offload_size = NonZeroU16::new(1460);
        sender.set_meta(meta);
        assert_eq!(sender.consume(3, |frame| frame.copy_from_slice(&[1, 2, 3])), ());
        assert_eq!(device.0.frame.as_ref().unwrap().1, NonZeroU16::new(1460));
        assert!(device.transmit(Instant::ZERO).is_none());
        let (received, answer) = device.receive(Instant::ZERO).unwrap();
        assert_eq!(received.consume(<[u8]>::to_vec), [1, 2, 3]);
        answer.consume(1, |frame| frame[0] = 9);
        assert_eq!(device.0.frame, Some((vec![9], None)));
        assert!(device.receive(Instant::ZERO).is_some() && device.receive(Instant::ZERO).is_none());
    }
}
