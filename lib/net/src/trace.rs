//! Trace events of connections: their segments.

use glass_lib_tcp::wire::Flags;
use glass_lib_tcp::{Header, Segment};
use glass_lib_trace::Name;
use smoltcp::wire::{IpAddress, TcpSeqNumber};

/// What tasks wait for.
pub(crate) static CONNECT: Name = Name::new("connect");
pub(crate) static ACCEPT: Name = Name::new("accept");
pub(crate) static RECEIVE: Name = Name::new("receive");
pub(crate) static SEND: Name = Name::new("send");
pub(crate) static SEND_DATAGRAM: Name = Name::new("send datagram");
pub(crate) static RECEIVE_DATAGRAM: Name = Name::new("receive datagram");
pub(crate) static NAME: Name = Name::new("address of a name");
pub(crate) static ADDRESS: Name = Name::new("network address");

/// A connection's state for the trace.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Flow {
    /// Never used twice; 0 for segments that belong to no connection.
    pub(crate) number: u32,
    /// The sequence number after everything that we have sent since the trace started.
    sent: Option<TcpSeqNumber>,
    /// The peer's last acknowledgement since then.
    acknowledged: Option<TcpSeqNumber>,
}

impl Flow {
    pub(crate) fn new(number: u32) -> Flow {
        Flow { number, ..Flow::default() }
    }

    /// Resets the state for a new trace.
    pub(crate) fn begin(&mut self) {
        self.sent = None;
        self.acknowledged = None;
    }

    /// Records a received segment, whose sender's windows have this shift, in the trace.
    pub(crate) fn received(&mut self, segment: &Segment, shift: u8) {
        let header = &segment.header;
        if header.flags.has(Flags::ACK) {
            self.acknowledged = Some(TcpSeqNumber(header.ack as i32));
        }
        let bytes = segment.payload.len() as u32;
        let numbers = (header.seq, header.ack);
        glass_lib_trace::segment_in(self.number, header.flags.0.into(), numbers, bytes, window(header, shift));
    }

    /// Records a sent segment, whose windows have this shift, in the trace.
    pub(crate) fn sends(&mut self, header: &Header, payload_bytes: usize, shift: u8) {
        let (numbers, window) = ((header.seq, header.ack), window(header, shift));
        let (flags, bytes) = (header.flags.0.into(), payload_bytes as u32);
        if self.is_repeated(header, payload_bytes) {
            glass_lib_trace::retransmit(self.number, flags, numbers, bytes, window);
        }
        glass_lib_trace::segment_out(self.number, flags, numbers, bytes, window);
        let end = TcpSeqNumber(header.seq as i32) + length(header, payload_bytes);
        if !header.flags.has(Flags::RST) && self.sent.is_none_or(|sent| sent < end) {
            self.sent = Some(end);
        }
    }

    /// Whether it is a retransmit. A keep-alive probe repeats a number too, but only when
    /// everything is acknowledged.
    fn is_repeated(&self, header: &Header, payload_bytes: usize) -> bool {
        let Some(sent) = self.sent else { return false };
        let is_answered = self.acknowledged.is_some_and(|acknowledged| acknowledged >= sent);
        length(header, payload_bytes) > 0 && TcpSeqNumber(header.seq as i32) < sent && !is_answered
    }
}

/// Sequence numbers that a segment takes: its payload, and one each for SYN and FIN.
fn length(header: &Header, payload_bytes: usize) -> usize {
    payload_bytes + usize::from(header.flags.has(Flags::SYN)) + usize::from(header.flags.has(Flags::FIN))
}

/// The window in bytes; that of a SYN is never scaled.
fn window(header: &Header, shift: u8) -> u32 {
    u32::from(header.window) << if header.flags.has(Flags::SYN) { 0 } else { shift }
}

/// The remote address as the trace has it: 0 unless it is IPv4.
pub(crate) fn address_number(address: IpAddress) -> u32 {
    match address {
        IpAddress::Ipv4(address) => address.to_bits(),
        IpAddress::Ipv6(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(seq: i32, flags: Flags) -> Header {
        Header { seq: seq as u32, ack: 1, flags, ..Header::default() }
    }

    fn data(seq: i32) -> Header {
        header(seq, Flags::ACK)
    }

    /// The peer sends this acknowledgement, or a reset without one.
    fn receive(flow: &mut Flow, ack: Option<i32>) {
        let flags = if ack.is_some() { Flags::ACK } else { Flags::RST };
        let header = Header { ack: ack.unwrap_or(0) as u32, flags, ..Header::default() };
        flow.received(&Segment { source_port: 1, destination_port: 2, header, payload: &[] }, 0);
    }

    #[test]
    fn what_was_sent_before_and_not_acknowledged_is_a_retransmit() {
        let mut flow = Flow::new(1);
        assert!(!flow.is_repeated(&data(1000), 100), "the trace does not show what was sent before it");
        flow.sends(&data(1000), 100, 0);
        assert!(flow.is_repeated(&data(1000), 100) && flow.is_repeated(&data(1099), 100));
        assert!(!flow.is_repeated(&data(1100), 100));
        assert!(!flow.is_repeated(&data(1000), 0), "an acknowledgement repeats nothing");
        // What is repeated in part was sent as a whole.
        flow.sends(&data(1000), 10, 0);
        assert!(flow.is_repeated(&data(1050), 50));
        // A reset may have any number.
        flow.sends(&header(9000, Flags::RST), 0, 0);
        assert!(!flow.is_repeated(&data(1100), 100));
        receive(&mut flow, Some(1099));
        assert!(flow.is_repeated(&data(1099), 1));
        receive(&mut flow, Some(1100));
        assert!(!flow.is_repeated(&data(1099), 1), "it asks whether the peer is there");
    }

    #[test]
    fn a_segment_that_acknowledges_nothing_has_no_acknowledgement() {
        let mut flow = Flow::new(1);
        flow.sends(&data(-1000), 100, 0);
        // The field is 0 then, which is after the data.
        receive(&mut flow, None);
        assert!(flow.is_repeated(&data(-1000), 100));
        receive(&mut flow, Some(0));
        assert!(!flow.is_repeated(&data(-1000), 100));
    }

    #[test]
    fn a_new_trace_begins_with_nothing() {
        let mut flow = Flow::new(1);
        flow.sends(&data(1000), 100, 0);
        receive(&mut flow, Some(1050));
        // Meanwhile the rest was acknowledged: this probes whether the peer is there.
        flow.begin();
        assert!(!flow.is_repeated(&data(1099), 1));
    }
}
