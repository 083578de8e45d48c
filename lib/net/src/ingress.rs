//! Frames on their way in: what we look at before smoltcp gets them.

use crate::listeners::Admission;
use crate::resync::{Nowhere, Replying, acknowledgement_in};
use crate::state::State;
use core::cell::Cell;
use smoltcp::iface::SocketHandle;
use smoltcp::phy::{Device, DeviceCapabilities, PacketMeta, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, IpAddress, IpEndpoint, IpProtocol, Ipv4Packet, Ipv6Packet, TcpPacket,
};

/// The two ends that a segment names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Opening {
    pub(crate) local: IpEndpoint,
    pub(crate) remote: IpEndpoint,
}

/// The segments that change which connections there are.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    /// A peer wants to connect.
    Open(Opening),
    /// A peer resets.
    Reset(Opening),
    /// Anything else.
    Other,
}

impl Segment {
    /// Reads a frame's headers as far as they make sense. Checksums are left to smoltcp.
    pub(crate) fn of(frame: &[u8]) -> Segment {
        Segment::parse(frame).unwrap_or(Segment::Other)
    }

    fn parse(frame: &[u8]) -> Option<Segment> {
        let frame = EthernetFrame::new_checked(frame).ok()?;
        match frame.ethertype() {
            EthernetProtocol::Ipv4 => {
                let packet = Ipv4Packet::new_checked(frame.payload()).ok()?;
                let ends = (IpAddress::Ipv4(packet.dst_addr()), IpAddress::Ipv4(packet.src_addr()));
                Segment::of_payload(packet.next_header(), packet.payload(), ends)
            }
            EthernetProtocol::Ipv6 => {
                let packet = Ipv6Packet::new_checked(frame.payload()).ok()?;
                let ends = (IpAddress::Ipv6(packet.dst_addr()), IpAddress::Ipv6(packet.src_addr()));
                Segment::of_payload(packet.next_header(), packet.payload(), ends)
            }
            _ => None,
        }
    }

    fn of_payload(protocol: IpProtocol, payload: &[u8], ends: (IpAddress, IpAddress)) -> Option<Segment> {
        if protocol != IpProtocol::Tcp {
            return None;
        }
        let packet = TcpPacket::new_checked(payload).ok()?;
        if !packet.syn() && !packet.rst() {
            return None;
        }
        let local = IpEndpoint::new(ends.0, packet.dst_port());
        let remote = IpEndpoint::new(ends.1, packet.src_port());
        match (packet.syn(), packet.ack(), packet.rst()) {
            (true, false, false) => Some(Segment::Open(Opening { local, remote })),
            (_, _, true) => Some(Segment::Reset(Opening { local, remote })),
            _ => None,
        }
    }
}

impl State {
    /// Hands one frame to smoltcp, with a socket that can take it if it opens a connection.
    pub(crate) fn receive<T: TxToken>(
        &mut self,
        now: Instant,
        frame: &[u8],
        meta: PacketMeta,
        transmit: T,
        capabilities: &DeviceCapabilities,
    ) {
        self.counters.frames_received += 1;
        if frame.len() > capabilities.max_transmission_unit && !self.large_frames {
            self.acknowledge_large_frames();
        }
        let mut made = None;
        let mut resets = None;
        match Segment::of(frame) {
            Segment::Open(opening) => match self.admit(opening) {
                Admission::Pass => {}
                Admission::Refuse => return,
                Admission::Made { listener_id, handle } => made = Some((listener_id, handle)),
            },
            Segment::Reset(Opening { local, remote }) => resets = self.find(local, remote),
            Segment::Other => {}
        }
        let expects = Cell::new(None);
        let transmit = Replying { transmit, expects: &expects };
        let mut device = OneFrame { receive: Some((frame, meta)), transmit: Some(transmit), capabilities };
        self.interface.poll_ingress_single(now, &mut device, &mut self.sockets);
        if let Some(acknowledgement) = expects.get().and_then(|expected| acknowledgement_in(frame, expected)) {
            self.counters.repeated_segments += 1;
            let receive = Some((&acknowledgement[..], meta));
            let mut device = OneFrame { receive, transmit: Some(Nowhere), capabilities };
            self.interface.poll_ingress_single(now, &mut device, &mut self.sockets);
        }
        if let Some((listener_id, handle)) = made {
            self.admitted(listener_id, handle);
        }
        if let Some(handle) = resets {
            self.note_reset(handle);
        }
    }

    fn note_reset(&mut self, handle: SocketHandle) {
        // A reset with a wrong sequence number changes nothing.
        if self.socket(handle).state() == tcp::State::Closed && !self.reset.contains(&handle) {
            self.reset.push(handle);
            self.counters.reset_by_peer += 1;
        }
    }
}

/// A device that receives one frame, which is in memory already.
struct OneFrame<'f, T> {
    receive: Option<(&'f [u8], PacketMeta)>,
    transmit: Option<T>,
    capabilities: &'f DeviceCapabilities,
}

struct Frame<'f>(&'f [u8], PacketMeta);

impl<'f, T: TxToken> Device for OneFrame<'f, T> {
    type RxToken<'a>
        = Frame<'f>
    where
        Self: 'a;
    type TxToken<'a>
        = T
    where
        Self: 'a;

    fn receive(&mut self, _: Instant) -> Option<(Frame<'f>, T)> {
        let (frame, meta) = self.receive.take()?;
        Some((Frame(frame, meta), self.transmit.take()?))
    }

    fn transmit(&mut self, _: Instant) -> Option<T> {
        self.transmit.take()
    }

    fn capabilities(&self) -> DeviceCapabilities {
        self.capabilities.clone()
    }
}

impl RxToken for Frame<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(self.0)
    }

    fn meta(&self) -> PacketMeta {
        self.1
    }
}
