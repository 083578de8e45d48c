//! Acknowledgements in retransmitted segments.
//!
//! smoltcp 0.14.0 answers a segment that it has received before and then drops it, as RFC 9293
//! section 3.10.7.4 specifies. After a timeout its own acknowledgements have the sequence number of
//! the retransmitted data, which is old to the peer in turn. If the acknowledgements of both directions are
//! lost at the same time, two such ends retransmit until they time out, although the dropped segments contain the
//! missing acknowledgements. So we do what BSD does ("drop any data, but keep on
//! processing for RST or ACK"): we process the retransmitted segment a second time, without its data and with
//! the sequence number that is expected next.

use alloc::vec::Vec;
use core::cell::Cell;
use smoltcp::phy::TxToken;
use smoltcp::socket::tcp;
use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, IpAddress, IpProtocol, Ipv4Packet, Ipv6Packet, TcpPacket, TcpSeqNumber,
};

/// Sends a reply and records which sequence number it expects next.
pub(crate) struct Replying<'c, T> {
    pub(crate) transmit: T,
    pub(crate) expects: &'c Cell<Option<TcpSeqNumber>>,
}

impl<T: TxToken> TxToken for Replying<'_, T> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        self.transmit.consume(len, |frame| {
            let result = write(frame);
            self.expects.set(expected_by(frame));
            result
        })
    }
}

/// Takes a frame and drops it.
pub(crate) struct Nowhere;

impl TxToken for Nowhere {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        write(&mut alloc::vec![0; len])
    }
}

/// Acknowledgements that a peer repeats because it has not received the end of the connection.
///
/// smoltcp 0.14.0 wants to retransmit at the third of them. It has no data for that, and its retransmission timer
/// is off from then on, so the FIN is lost forever.
#[derive(Default)]
pub(crate) struct Repeated {
    number: Option<TcpSeqNumber>,
    /// How many of this number were passed on.
    passed: u8,
}

impl Repeated {
    /// Whether smoltcp must not receive this `frame` for `socket`: the timeout is what retransmits the end.
    pub(crate) fn drops(&mut self, socket: &tcp::Socket<'_>, frame: &[u8]) -> bool {
        let waits = matches!(socket.state(), tcp::State::FinWait1 | tcp::State::Closing | tcp::State::LastAck);
        if !waits || socket.send_queue() > 0 {
            return false;
        }
        let number = expected_by(frame);
        if number != self.number {
            *self = Repeated { number, passed: 0 };
        }
        if number.is_none() || self.passed < 2 {
            self.passed = self.passed.saturating_add(1);
            return false;
        }
        true
    }
}

/// The acknowledgement number of a frame that is nothing but an acknowledgement.
pub(crate) fn expected_by(frame: &[u8]) -> Option<TcpSeqNumber> {
    let (frame, layout) = Layout::of(frame)?;
    let packet = TcpPacket::new_checked(&frame[layout.segment.clone()]).ok()?;
    is_plain(&packet).then(|| packet.ack_number())
}

/// Whether a segment is nothing but an acknowledgement.
pub(crate) fn is_plain(packet: &TcpPacket<&[u8]>) -> bool {
    packet.ack() && !packet.syn() && !packet.fin() && !packet.rst() && packet.payload().is_empty()
}

/// The acknowledgement in `frame`, if all of its data is older than `expected`.
pub(crate) fn acknowledgement_in(frame: &[u8], expected: TcpSeqNumber) -> Option<Vec<u8>> {
    let (frame, layout) = Layout::of(frame)?;
    let packet = TcpPacket::new_checked(&frame[layout.segment.clone()]).ok()?;
    let old = packet.seq_number() + packet.payload().len() <= expected;
    if !packet.ack() || packet.syn() || packet.rst() || packet.payload().is_empty() || !old {
        return None;
    }
    without_data(frame, &layout, expected, 0)
}

/// The frame without its data, of which nothing but the headers has to be there, with this sequence number, and with `window_change`
/// exclusive-ored to its window.
pub(crate) fn without_data(frame: &[u8], layout: &Layout, number: TcpSeqNumber, window_change: u16) -> Option<Vec<u8>> {
    let header_bytes = usize::from(TcpPacket::new_checked(&frame[layout.segment.clone()]).ok()?.header_len());
    let mut frame = frame[..layout.segment.start + header_bytes].to_vec();
    let (head, segment) = frame.split_at_mut(layout.segment.start);
    layout.shorten(head, header_bytes);
    let (source, destination) = layout.addresses(head);
    let mut packet = TcpPacket::new_checked(segment).ok()?;
    packet.set_seq_number(number);
    packet.set_window_len(packet.window_len() ^ window_change);
    packet.set_psh(false);
    packet.set_fin(false);
    packet.fill_checksum(&source, &destination);
    Some(frame)
}

/// Where a frame's TCP segment is.
pub(crate) struct Layout {
    pub(crate) segment: core::ops::Range<usize>,
    pub(crate) version: EthernetProtocol,
}

impl Layout {
    /// The frame without padding, and its layout, if it holds a TCP segment.
    pub(crate) fn of(frame: &[u8]) -> Option<(&[u8], Layout)> {
        let version = EthernetFrame::new_checked(frame).ok()?.ethertype();
        let start = EthernetFrame::<&[u8]>::header_len();
        let packet = &frame[start..];
        let (header_bytes, total_bytes, protocol) = match version {
            EthernetProtocol::Ipv4 => {
                let packet = Ipv4Packet::new_checked(packet).ok()?;
                (usize::from(packet.header_len()), usize::from(packet.total_len()), packet.next_header())
            }
            EthernetProtocol::Ipv6 => {
                let packet = Ipv6Packet::new_checked(packet).ok()?;
                (packet.header_len(), packet.total_len(), packet.next_header())
            }
            _ => return None,
        };
        if protocol != IpProtocol::Tcp {
            return None;
        }
        let frame = frame.get(..start + total_bytes)?;
        let segment = start + header_bytes..frame.len();
        (segment.start <= segment.end).then_some((frame, Layout { segment, version }))
    }

    /// The source and the destination in the headers of a frame with this layout.
    pub(crate) fn addresses(&self, frame: &[u8]) -> (IpAddress, IpAddress) {
        let packet = &frame[EthernetFrame::<&[u8]>::header_len()..];
        if self.version == EthernetProtocol::Ipv4 {
            let packet = Ipv4Packet::new_unchecked(packet);
            (packet.src_addr().into(), packet.dst_addr().into())
        } else {
            let packet = Ipv6Packet::new_unchecked(packet);
            (packet.src_addr().into(), packet.dst_addr().into())
        }
    }

    /// Changes the headers in `head` to those of a segment of `segment_bytes`.
    fn shorten(&self, head: &mut [u8], segment_bytes: usize) {
        let start = EthernetFrame::<&[u8]>::header_len();
        let total_bytes = (self.segment.start - start + segment_bytes) as u16;
        let head = &mut head[start..];
        if self.version == EthernetProtocol::Ipv4 {
            let mut packet = Ipv4Packet::new_unchecked(head);
            packet.set_total_len(total_bytes);
            packet.fill_checksum();
        } else {
            Ipv6Packet::new_unchecked(head).set_payload_len(segment_bytes as u16);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smoltcp::wire::TcpControl;

    const OURS: IpAddress = IpAddress::v4(10, 0, 0, 1);
    const THEIRS: IpAddress = IpAddress::v4(10, 0, 0, 2);

    fn frame(ours: IpAddress, theirs: IpAddress, seq: i32, control: TcpControl, payload: &[u8]) -> Vec<u8> {
        crate::segment::tests::frame((theirs, ours), seq, Some(5000), control, payload)
    }

    #[test]
    fn an_old_segment_gives_its_acknowledgement() {
        let ends =
            [(OURS, THEIRS), (IpAddress::v6(0xfd00, 0, 0, 0, 0, 0, 0, 1), IpAddress::v6(0xfd00, 0, 0, 0, 0, 0, 0, 2))];
        for (ours, theirs) in ends {
            let old = frame(ours, theirs, 100, TcpControl::Fin, &[1; 50]);
            let made = acknowledgement_in(&old, TcpSeqNumber(200)).unwrap();
            // The result equals a plain acknowledgement, including checksums.
            assert_eq!(made, frame(ours, theirs, 200, TcpControl::None, &[]));
            assert_eq!(expected_by(&made), Some(TcpSeqNumber(5000)));
        }
    }

    #[test]
    fn what_is_new_or_no_data_is_left_alone() {
        let made = |seq, control, payload: &[u8]| {
            acknowledgement_in(&frame(OURS, THEIRS, seq, control, payload), TcpSeqNumber(200))
        };
        assert!(made(150, TcpControl::None, &[1; 50]).is_some());
        assert!(made(151, TcpControl::None, &[1; 50]).is_none());
        assert!(made(100, TcpControl::None, &[]).is_none());
        assert!(made(100, TcpControl::Rst, &[1]).is_none());
        assert!(made(100, TcpControl::Syn, &[1]).is_none());
    }

    #[test]
    fn padding_is_no_data() {
        let mut padded = frame(OURS, THEIRS, 100, TcpControl::None, &[]);
        padded.extend_from_slice(&[0; 6]);
        assert!(acknowledgement_in(&padded, TcpSeqNumber(200)).is_none());
    }

    #[test]
    fn only_a_plain_acknowledgement_expects_something() {
        let expected = |control, payload: &[u8]| expected_by(&frame(OURS, THEIRS, 100, control, payload));
        assert_eq!(expected(TcpControl::None, &[]), Some(TcpSeqNumber(5000)));
        assert_eq!(expected(TcpControl::None, &[1]), None);
        assert_eq!(expected(TcpControl::Fin, &[]), None);
        assert_eq!(expected(TcpControl::Rst, &[]), None);
        assert_eq!(expected(TcpControl::Syn, &[]), None);
    }
}
