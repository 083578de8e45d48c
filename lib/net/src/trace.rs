//! Trace events of connections: their segments between smoltcp and the device.

use crate::segment::segment_of;
use core::cell::Cell;
use glass_lib_trace::{Group, Name, is_on};
use smoltcp::phy::{PacketMeta, TxToken};
use smoltcp::wire::{IpAddress, TcpOption, TcpPacket, TcpSeqNumber};

/// What tasks wait for.
pub(crate) static CONNECT: Name = Name::new("connect");
pub(crate) static ACCEPT: Name = Name::new("accept");
pub(crate) static RECEIVE: Name = Name::new("receive");
pub(crate) static SEND: Name = Name::new("send");
pub(crate) static SEND_DATAGRAM: Name = Name::new("send datagram");
pub(crate) static RECEIVE_DATAGRAM: Name = Name::new("receive datagram");
pub(crate) static NAME: Name = Name::new("address of a name");
pub(crate) static ADDRESS: Name = Name::new("network address");

/// Largest shift of a window (RFC 7323, section 2.3).
const SCALE_MAX: u8 = 14;

const SEGMENT_BYTES_DEFAULT: u16 = 536;

/// A connection's state for the trace.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Flow {
    /// Never used twice; 0 for segments that belong to no connection.
    pub(crate) number: u32,
    /// Shifts of the windows that the peer and we offer.
    peer_scale: u8,
    own_scale: u8,
    /// The sequence number after everything that we have sent since the trace started.
    sent: Option<TcpSeqNumber>,
    /// The peer's last acknowledgement since then.
    acknowledged: Option<TcpSeqNumber>,
}

impl Flow {
    pub(crate) fn new(number: u32) -> Flow {
        Flow { number, ..Flow::default() }
    }

    /// Both ends scale their windows: `peer` is the peer's shift, and ours follows from the receive buffer as in smoltcp.
    pub(crate) fn set_scales(&mut self, peer: u8, receive_bytes: usize) {
        self.peer_scale = peer.min(SCALE_MAX);
        self.own_scale = (usize::BITS - receive_bytes.leading_zeros()).saturating_sub(u16::BITS) as u8;
    }

    /// Resets the state for a new trace.
    pub(crate) fn begin(&mut self) {
        self.sent = None;
        self.acknowledged = None;
    }

    /// Records a received frame in the trace.
    pub(crate) fn received(&mut self, frame: &[u8]) {
        let Some(segment) = Segment::of(frame) else { return };
        if segment.flags & ACK != 0 {
            self.acknowledged = Some(segment.numbers.1);
        }
        let (numbers, window) = (segment.raw_numbers(), segment.window(self.peer_scale));
        glass_lib_trace::segment_in(self.number, segment.flags, numbers, segment.payload_bytes, window);
    }

    /// Records a sent frame in the trace.
    fn sends(&mut self, frame: &[u8]) {
        let Some(segment) = Segment::of(frame) else { return };
        let (numbers, window) = (segment.raw_numbers(), segment.window(self.own_scale));
        if self.is_repeated(&segment) {
            glass_lib_trace::retransmit(self.number, segment.flags, numbers, segment.payload_bytes, window);
        }
        glass_lib_trace::segment_out(self.number, segment.flags, numbers, segment.payload_bytes, window);
        let end = segment.numbers.0 + segment.sequence_length;
        if segment.flags & RST == 0 && self.sent.is_none_or(|sent| sent < end) {
            self.sent = Some(end);
        }
    }

    /// Whether it is a retransmit. A keep-alive probe repeats a byte too, but only when
    /// everything is acknowledged.
    fn is_repeated(&self, segment: &Segment) -> bool {
        let Some(sent) = self.sent else { return false };
        let is_answered = self.acknowledged.is_some_and(|acknowledged| acknowledged >= sent);
        segment.sequence_length > 0 && segment.numbers.0 < sent && !is_answered
    }
}

const FIN: u16 = 1;
const SYN: u16 = 2;
const RST: u16 = 4;
const PSH: u16 = 8;
const ACK: u16 = 16;

/// A TCP header, as far as a trace shows it.
struct Segment {
    flags: u16,
    /// Sequence number and acknowledgement.
    numbers: (TcpSeqNumber, TcpSeqNumber),
    payload_bytes: u32,
    /// The payload, and one each for SYN and FIN.
    sequence_length: usize,
    window: u16,
}

impl Segment {
    /// Parses a frame's headers as far as they are valid. `None` if it is not a TCP segment.
    fn of(frame: &[u8]) -> Option<Segment> {
        let packet = segment_of(frame)?;
        let flags =
            [(packet.fin(), FIN), (packet.syn(), SYN), (packet.rst(), RST), (packet.psh(), PSH), (packet.ack(), ACK)];
        Some(Segment {
            flags: flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum(),
            numbers: (packet.seq_number(), packet.ack_number()),
            payload_bytes: packet.payload().len() as u32,
            sequence_length: packet.segment_len(),
            window: packet.window_len(),
        })
    }

    fn raw_numbers(&self) -> (u32, u32) {
        (self.numbers.0.0 as u32, self.numbers.1.0 as u32)
    }

    /// The window in bytes; that of a SYN is never scaled.
    fn window(&self, scale: u8) -> u32 {
        u32::from(self.window) << if self.flags & SYN != 0 { 0 } else { scale }
    }
}

/// The shift that a SYN offers for its sender's windows.
pub(crate) fn window_scale(packet: &TcpPacket<&[u8]>) -> Option<u8> {
    options(packet).find_map(|option| if let TcpOption::WindowScale(shift) = option { Some(shift) } else { None })
}

/// The longest segment that the sender of a SYN receives; without the option, the least that each host does (RFC 9293, section 3.7.1).
pub(crate) fn segment_bytes(packet: &TcpPacket<&[u8]>) -> u16 {
    let offered = options(packet)
        .find_map(|option| if let TcpOption::MaxSegmentSize(bytes) = option { Some(bytes) } else { None });
    offered.unwrap_or(SEGMENT_BYTES_DEFAULT)
}

fn options<'p>(packet: &TcpPacket<&'p [u8]>) -> impl Iterator<Item = TcpOption<'p>> {
    let mut options = packet.options();
    core::iter::from_fn(move || {
        let (rest, option) = TcpOption::parse(options).ok()?;
        options = rest;
        (option != TcpOption::EndOfList).then_some(option)
    })
}

/// The remote address as the trace has it: 0 unless it is IPv4.
pub(crate) fn address_number(address: IpAddress) -> u32 {
    match address {
        IpAddress::Ipv4(address) => address.to_bits(),
        IpAddress::Ipv6(_) => 0,
    }
}

/// Records the frame that is sent with this token in the trace.
pub(crate) struct Traced<'c, T> {
    pub(crate) transmit: T,
    pub(crate) flow: &'c Cell<Flow>,
}

impl<T: TxToken> TxToken for Traced<'_, T> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        self.transmit.consume(len, |frame| {
            let result = write(frame);
            if is_on(Group::Net) {
                let mut flow = self.flow.get();
                flow.sends(frame);
                self.flow.set(flow);
            }
            result
        })
    }

    fn set_meta(&mut self, meta: PacketMeta) {
        self.transmit.set_meta(meta);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::tests::frame as frame_between;
    use alloc::vec::Vec;
    use smoltcp::wire::TcpControl;

    fn frame(seq: i32, ack: Option<i32>, control: TcpControl, bytes: usize) -> Vec<u8> {
        let ends = (IpAddress::v4(10, 0, 0, 1), IpAddress::v4(10, 0, 0, 2));
        frame_between(ends, seq, ack, control, &[0; 100][..bytes])
    }

    fn data(seq: i32, bytes: usize) -> Vec<u8> {
        frame(seq, Some(1), TcpControl::None, bytes)
    }

    fn is_repeated(flow: &Flow, frame: &[u8]) -> bool {
        flow.is_repeated(&Segment::of(frame).unwrap())
    }

    #[test]
    fn what_was_sent_before_and_not_acknowledged_is_a_retransmit() {
        let mut flow = Flow::new(1);
        assert!(!is_repeated(&flow, &data(1000, 100)), "the trace does not show what was sent before it");
        flow.sends(&data(1000, 100));
        assert!(is_repeated(&flow, &data(1000, 100)) && is_repeated(&flow, &data(1099, 100)));
        assert!(!is_repeated(&flow, &data(1100, 100)));
        assert!(!is_repeated(&flow, &data(1000, 0)), "an acknowledgement repeats nothing");
        // What is repeated in part was sent as a whole.
        flow.sends(&data(1000, 10));
        assert!(is_repeated(&flow, &data(1050, 50)));
        // A reset may have any number.
        flow.sends(&frame(9000, None, TcpControl::Rst, 0));
        assert!(!is_repeated(&flow, &data(1100, 100)));
        flow.received(&frame(1, Some(1099), TcpControl::None, 0));
        assert!(is_repeated(&flow, &data(1099, 1)));
        flow.received(&frame(1, Some(1100), TcpControl::None, 0));
        assert!(!is_repeated(&flow, &data(1099, 1)), "it asks whether the peer is there");
    }

    #[test]
    fn a_segment_that_acknowledges_nothing_has_no_acknowledgement() {
        let mut flow = Flow::new(1);
        flow.sends(&data(-1000, 100));
        // The field is 0 then, which is after the data.
        flow.received(&frame(1, None, TcpControl::Rst, 0));
        assert!(is_repeated(&flow, &data(-1000, 100)));
        flow.received(&frame(1, Some(0), TcpControl::Rst, 0));
        assert!(!is_repeated(&flow, &data(-1000, 100)));
    }

    #[test]
    fn a_new_trace_begins_with_nothing() {
        let mut flow = Flow::new(1);
        flow.sends(&data(1000, 100));
        flow.received(&frame(1, Some(1050), TcpControl::None, 0));
        // Meanwhile the rest was acknowledged: this probes whether the peer is there.
        flow.begin();
        assert!(!is_repeated(&flow, &data(1099, 1)));
    }
}
