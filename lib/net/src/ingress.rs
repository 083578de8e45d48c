//! Received frames: what we parse before smoltcp does.

use crate::arp::{self, arp_in};
use crate::discovery::{Message, announcement, answer, is_discovery, message_in};
use crate::dns::{self, Outcome};
use crate::half_open::Reply;
use crate::link::{ETHERNET_BYTES, Headed, Outlet, of_packets, source_mac};
use crate::listeners::Admission;
use crate::resync::{Nowhere, Replying, acknowledgement_in};
use crate::state::{State, to_smoltcp};
use crate::table::{ConnectionId, Ends};
use crate::trace::{Flow, Traced, segment_bytes, window_scale};
use core::cell::Cell;
use glass_lib_trace::{Group, is_on};
use smoltcp::phy::{Device, DeviceCapabilities, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, Icmpv6Packet, IpAddress, IpEndpoint, IpProtocol, Ipv4Packet, Ipv6Packet,
    TcpPacket, UdpPacket,
};

/// Of a server and a client (RFC 2131, section 4.1).
const DHCP_PORTS: (u16, u16) = (67, 68);

/// The kind of a frame, as far as it decides its receiver.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A segment between these two ends.
    Segment {
        ends: Ends,
        /// It wants to open a connection.
        opens: bool,
        /// It resets one.
        resets: bool,
        /// The shift of windows that it offers.
        scale: Option<u8>,
        /// Of a SYN, the longest segment that its sender receives.
        segment_bytes: Option<u16>,
    },
    /// A message of ARP.
    Arp,
    /// From a DHCP server.
    Dhcp,
    /// A message of IPv6 neighbour discovery.
    Discovery,
    /// Nothing that a stack may process.
    Invalid,
    /// Anything else, including invalid frames.
    Other,
}

impl Kind {
    /// Parses a frame's headers as far as they are valid. smoltcp verifies the checksums.
    pub(crate) fn of(frame: &[u8]) -> Kind {
        Kind::parse(frame).unwrap_or(Kind::Other)
    }

    fn parse(frame: &[u8]) -> Option<Kind> {
        let frame = EthernetFrame::new_checked(frame).ok()?;
        let version = frame.payload().first().map(|byte| byte >> 4);
        match (frame.ethertype(), version) {
            (EthernetProtocol::Ipv4, Some(4)) => {
                let packet = Ipv4Packet::new_checked(frame.payload()).ok()?;
                let addresses = (IpAddress::Ipv4(packet.dst_addr()), IpAddress::Ipv4(packet.src_addr()));
                Kind::of_payload(packet.next_header(), packet.payload(), addresses)
            }
            (EthernetProtocol::Ipv6, Some(6)) => {
                let packet = Ipv6Packet::new_checked(frame.payload()).ok()?;
                // Loopback addresses are never on a wire (RFC 4291, section 2.5.3).
                if packet.src_addr().is_loopback() || packet.dst_addr().is_loopback() {
                    return Some(Kind::Invalid);
                }
                // smoltcp would process the payload behind such a header, beside our connections.
                if packet.next_header() == IpProtocol::HopByHop && hides_segment(packet.payload()) {
                    return Some(Kind::Invalid);
                }
                let addresses = (IpAddress::Ipv6(packet.dst_addr()), IpAddress::Ipv6(packet.src_addr()));
                Kind::of_payload(packet.next_header(), packet.payload(), addresses)
            }
            (EthernetProtocol::Arp, _) => Some(Kind::Arp),
            _ => Some(Kind::Invalid),
        }
    }

    fn of_payload(protocol: IpProtocol, payload: &[u8], addresses: (IpAddress, IpAddress)) -> Option<Kind> {
        match protocol {
            IpProtocol::Tcp => {}
            IpProtocol::Icmpv6 => {
                let message = Icmpv6Packet::new_checked(payload).ok()?.msg_type();
                return is_discovery(message).then_some(Kind::Discovery);
            }
            IpProtocol::Udp if matches!(addresses.0, IpAddress::Ipv4(_)) => {
                let packet = UdpPacket::new_checked(payload).ok()?;
                return ((packet.src_port(), packet.dst_port()) == DHCP_PORTS).then_some(Kind::Dhcp);
            }
            _ => return None,
        }
        let packet = TcpPacket::new_checked(payload).ok()?;
        let local = IpEndpoint::new(addresses.0, packet.dst_port());
        let remote = IpEndpoint::new(addresses.1, packet.src_port());
        let opens = packet.syn() && !packet.ack() && !packet.rst();
        let scale = if packet.syn() { window_scale(&packet) } else { None };
        let segment_bytes = packet.syn().then(|| segment_bytes(&packet));
        Some(Kind::Segment { ends: Ends { local, remote }, opens, resets: packet.rst(), scale, segment_bytes })
    }
}

impl State {
    /// Passes one frame to smoltcp, with the connection that it is for. Returns the ends of a SYN, or of the
    /// acknowledgement that would complete a handshake, for which there is no room.
    pub(crate) fn receive<T: TxToken>(
        &mut self,
        now: Instant,
        frame: &[u8],
        transmit: T,
        capabilities: &DeviceCapabilities,
    ) -> Option<Ends> {
        if frame.len() > capabilities.max_transmission_unit && !self.large_frames {
            self.acknowledge_large_frames();
        }
        if !self.link.borrow().accepts(frame) {
            return None;
        }
        let link = self.link.clone();
        let transmit = Outlet::answering(transmit, &link, self.now, frame);
        let device = OneFrame { receive: Some(frame), transmit: Some(transmit), capabilities };
        let (ends, opens, resets, scale, segment_bytes) = match Kind::of(frame) {
            Kind::Segment { ends, opens, resets, scale, segment_bytes } => (ends, opens, resets, scale, segment_bytes),
            // An answer might be as long (`long_frames.rs`).
            _ if frame.len() > capabilities.max_transmission_unit => return None,
            Kind::Discovery => {
                self.receive_discovery(device, frame);
                return None;
            }
            Kind::Arp => {
                self.receive_arp(device, frame);
                return None;
            }
            Kind::Invalid => return None,
            kind => {
                match &mut self.dhcp {
                    Some(dhcp) if kind == Kind::Dhcp => dhcp.receive(self.now, frame),
                    _ => self.receive_datagram(now, device, frame),
                }
                return None;
            }
        };
        // smoltcp panics when it gets one of a group as its own.
        if !self.interface.has_ip_addr(ends.local.addr) {
            trace_unexpected(frame);
            return None;
        }
        let mut found = self.table.find(ends);
        if opens && found.is_some_and(|id| self.free_ends(id, frame)) {
            found = None;
        }
        match (found, opens) {
            (Some(id), _) => {
                self.note_syn(id, scale, segment_bytes);
                self.receive_segment(now, device, id, frame);
            }
            (None, true) => match self.admit(ends, frame, capabilities) {
                Admission::Refuse => {
                    trace_unexpected(frame);
                    return Some(ends);
                }
                Admission::Pass => {
                    if !self.listeners.is_empty() {
                        self.missed.get_or_insert((ends.local.port, false));
                    }
                    self.receive_control(now, device, frame);
                }
                Admission::Ignore => trace_unexpected(frame),
                Admission::Answer(answer) => {
                    trace_unexpected(frame);
                    if let Some(transmit) = device.transmit {
                        send_frame(transmit, &answer);
                    }
                }
            },
            (None, false) => match self.handshakes.reply(ends, frame) {
                Some(Reply::Complete) => match self.open(ends, capabilities) {
                    Some((id, syn)) => {
                        self.link.borrow_mut().confirm(self.now, ends.remote.addr, frame);
                        if let Kind::Segment { scale, segment_bytes, .. } = Kind::of(&syn) {
                            self.note_syn(id, scale, segment_bytes);
                        }
                        self.receive_segment(now, device, id, frame);
                    }
                    None => {
                        trace_unexpected(frame);
                        return Some(ends);
                    }
                },
                Some(Reply::Reset) => {
                    trace_unexpected(frame);
                    self.handshakes.end(ends);
                    self.counters.abandoned_opening += 1;
                }
                Some(Reply::Wrong) | None => self.receive_control(now, device, frame),
            },
        }
        if let (Some(id), true) = (found, resets) {
            self.note_reset(id);
        }
        None
    }

    /// A message of ARP: answered if it requests our address. A neighbour that requests it is remembered; others only if they are known.
    fn receive_arp<T: TxToken>(&mut self, device: OneFrame<'_, Outlet<'_, T>>, frame: &[u8]) {
        let Some(arp) = arp_in(frame) else { return };
        let mut link = self.link.borrow_mut();
        let is_ours = self.interface.has_ip_addr(arp.target);
        let is_neighbour = link.routes.is_neighbour(arp.sender.into());
        match (is_ours, arp.is_request) {
            (true, true) if is_neighbour => link.neighbours.learn(self.now, arp.sender.into(), arp.mac),
            (true, false) => link.neighbours.answer(self.now, arp.sender.into(), arp.mac),
            _ => link.neighbours.update(self.now, arp.sender.into(), arp.mac),
        }
        if is_ours
            && arp.is_request
            && let Some(outlet) = device.transmit
        {
            let reply = arp::reply((link.mac, arp.target), (arp.mac, arp.sender));
            send_frame(outlet.transmit, &reply);
        }
    }

    /// A message of IPv6 neighbour discovery (RFC 4861, section 7.2).
    fn receive_discovery<T: TxToken>(&mut self, device: OneFrame<'_, Outlet<'_, T>>, frame: &[u8]) {
        let Some(ipv6) = &mut self.ipv6 else { return };
        // A switch may return our own frames.
        if frame.get(6..12) == Some(ipv6.mac().as_bytes()) {
            return;
        }
        let mut link = self.link.borrow_mut();
        match message_in(frame) {
            Some(Message::RouterAdvert(advert)) => {
                ipv6.receive(self.now, &advert);
                if let (Some(mac), true) = (advert.mac(), ipv6.gateway() == Some(advert.router)) {
                    link.neighbours.learn(self.now, advert.router.into(), mac);
                }
                drop(link);
                self.configure();
            }
            Some(Message::Advert { target, .. }) if self.interface.has_ip_addr(target) => {
                drop(link);
                if ipv6.contest(self.now, target) {
                    self.configure();
                }
            }
            Some(Message::Advert { target, mac: Some(mac), is_answer, overrides }) => {
                let address = target.into();
                match (is_answer, overrides || !link.neighbours.differs(address, mac)) {
                    (true, true) => link.neighbours.answer(self.now, address, mac),
                    (false, true) => link.neighbours.update(self.now, address, mac),
                    (_, false) => {}
                }
            }
            Some(Message::Solicit { source, target, mac }) if self.interface.has_ip_addr(target) => {
                let Some(outlet) = device.transmit else { return };
                if !source.is_unspecified() {
                    let known = mac.filter(|_| link.routes.is_neighbour(source.into()));
                    if let Some(mac) = known {
                        link.neighbours.learn(self.now, source.into(), mac);
                    }
                    let Some(to) = mac.or(source_mac(frame)) else { return };
                    send_frame(outlet.transmit, &answer(link.mac, target, source, to));
                    return;
                }
                drop(link);
                if ipv6.contest(self.now, target) {
                    self.configure();
                } else {
                    send_frame(outlet.transmit, &announcement(ipv6.mac(), target));
                }
            }
            Some(Message::Advert { .. } | Message::Solicit { .. }) | None => {}
        }
    }

    /// A frame that is no segment. Of a name server's, which may contain less than it should, smoltcp only checks whose answer it is.
    fn receive_datagram<T: TxToken>(&mut self, now: Instant, device: OneFrame<'_, T>, frame: &[u8]) {
        let Some((server, outcome)) = dns::outcome_in(frame).filter(|_| !self.queries.is_empty()) else {
            return self.receive_control(now, device, frame);
        };
        let OneFrame { transmit, capabilities, .. } = device;
        let short = if outcome == Outcome::Complete { None } else { dns::without_records(frame) };
        let frame = short.as_deref().unwrap_or(frame);
        self.receive_control(now, OneFrame { receive: Some(frame), transmit, capabilities }, frame);
        self.note_answer(server, outcome);
    }

    /// A frame for no connection: smoltcp answers it if necessary.
    fn receive_control<T: TxToken>(&mut self, now: Instant, device: OneFrame<'_, T>, frame: &[u8]) {
        trace_unexpected(frame);
        let OneFrame { receive, transmit, capabilities } = device;
        let flow = Cell::default();
        let transmit = transmit.map(|transmit| Traced { transmit, flow: &flow });
        let mut device = OneFrame { receive, transmit, capabilities };
        self.interface.poll_ingress_single(now, &mut device, &mut self.control);
    }

    fn receive_segment<T: TxToken>(&mut self, now: Instant, device: OneFrame<'_, T>, id: ConnectionId, frame: &[u8]) {
        let OneFrame { receive, transmit, capabilities } = device;
        let expects = Cell::new(None);
        let connection = self.table.get(id);
        let queued = connection.socket().send_queue();
        let flow = Cell::default();
        if is_on(Group::Net) {
            connection.flow.received(frame);
            flow.set(connection.flow);
        }
        if connection.repeats(frame) {
            return;
        }
        let transmit =
            transmit.map(|transmit| Replying { transmit: Traced { transmit, flow: &flow }, expects: &expects });
        let sockets = &mut connection.sockets;
        let mut device = OneFrame { receive, transmit, capabilities };
        self.interface.poll_ingress_single(now, &mut device, sockets);
        if is_on(Group::Net) {
            connection.flow = flow.get();
        }
        if let Some(acknowledgement) = expects.get().and_then(|expected| acknowledgement_in(frame, expected)) {
            let mut device = OneFrame { receive: Some(&acknowledgement[..]), transmit: Some(Nowhere), capabilities };
            self.interface.poll_ingress_single(now, &mut device, sockets);
        }
        let left = connection.socket().send_queue();
        let acknowledged = queued.saturating_sub(left);
        if let Some(control) = connection.window.acknowledged(acknowledged, queued) {
            connection.socket().set_congestion_control(control);
        }
        if let Some(next) = expects.get() {
            connection.recovery.expects(next);
        }
        connection.recovery.keep(frame, acknowledged > 0, &capabilities.checksum);
        if acknowledged > 0 {
            self.link.borrow_mut().confirm(self.now, connection.remote(), frame);
            connection.recovery.acknowledged(self.now, left);
            if connection.window.misses_more() {
                self.retransmit(id, capabilities);
            }
        }
        self.table.touch(id);
    }

    /// Lets smoltcp retransmit the first segment of a connection: see [`crate::recovery`].
    pub(crate) fn retransmit(&mut self, id: ConnectionId, capabilities: &DeviceCapabilities) {
        let connection = self.table.get(id);
        let states = [tcp::State::Established, tcp::State::CloseWait, tcp::State::FinWait1, tcp::State::Closing];
        if connection.socket().send_queue() == 0 || !states.contains(&connection.socket().state()) {
            return;
        }
        for acknowledgement in connection.recovery.repetitions() {
            let mut device = OneFrame { receive: Some(&acknowledgement[..]), transmit: Some(Nowhere), capabilities };
            self.interface.poll_ingress_single(to_smoltcp(self.now), &mut device, &mut connection.sockets);
        }
    }

    /// Records what a SYN offers.
    fn note_syn(&mut self, id: ConnectionId, scale: Option<u8>, segment_bytes: Option<u16>) {
        if let Some(bytes) = segment_bytes {
            self.table.get(id).segment_bytes = bytes.into();
        }
        if let Some(scale) = scale {
            let receive_bytes = self.table.get(id).socket().recv_capacity();
            self.table.get(id).flow.set_scales(scale, receive_bytes);
        }
    }

    fn note_reset(&mut self, id: ConnectionId) {
        let connection = self.table.get(id);
        // A reset with a wrong sequence number changes nothing.
        if connection.socket().state() == tcp::State::Closed && !connection.reset {
            connection.reset = true;
            self.counters.reset_by_peer += 1;
        }
    }
}

/// Whether a TCP segment is behind an extension header.
fn hides_segment(header: &[u8]) -> bool {
    header.first() == Some(&IpProtocol::Tcp.into())
}

/// Records a segment for no connection in the trace.
fn trace_unexpected(frame: &[u8]) {
    if is_on(Group::Net) {
        Flow::default().received(frame);
    }
}

/// Sends a frame of no connection.
pub(crate) fn send_frame(transmit: impl TxToken, frame: &[u8]) {
    let flow = Cell::default();
    Traced { transmit, flow: &flow }.consume(frame.len(), |bytes| bytes.copy_from_slice(frame));
}

/// A device that receives the packet of one frame, which is in memory already.
struct OneFrame<'f, T> {
    receive: Option<&'f [u8]>,
    transmit: Option<T>,
    capabilities: &'f DeviceCapabilities,
}

pub(crate) struct Frame<'f>(pub(crate) &'f [u8]);

impl<'f, T: TxToken> Device for OneFrame<'f, T> {
    type RxToken<'a>
        = Frame<'f>
    where
        Self: 'a;
    type TxToken<'a>
        = Headed<T>
    where
        Self: 'a;

    fn receive(&mut self, _: Instant) -> Option<(Frame<'f>, Headed<T>)> {
        let packet = self.receive.take()?.get(ETHERNET_BYTES..)?;
        Some((Frame(packet), Headed(self.transmit.take()?)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Headed<T>> {
        // Only an answer to this frame is sent here; `State::send` sends everything else.
        None
    }

    fn capabilities(&self) -> DeviceCapabilities {
        of_packets(self.capabilities.clone())
    }
}

impl RxToken for Frame<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::tests::frame;
    use alloc::vec::Vec;
    use smoltcp::wire::TcpControl;

    const V4: (IpAddress, IpAddress) = (IpAddress::v4(10, 0, 0, 1), IpAddress::v4(10, 0, 0, 2));
    const V6: (IpAddress, IpAddress) =
        (IpAddress::v6(0xfd00, 0, 0, 0, 0, 0, 0, 1), IpAddress::v6(0xfd00, 0, 0, 0, 0, 0, 0, 2));
    const LOOPBACK: IpAddress = IpAddress::v6(0, 0, 0, 0, 0, 0, 0, 1);

    fn segment(addresses: (IpAddress, IpAddress)) -> Vec<u8> {
        frame(addresses, 1, None, TcpControl::None, &[])
    }

    #[test]
    fn only_a_syn_without_an_acknowledgement_and_a_reset_opens_a_connection() {
        for (syn, ack, rst, is_open) in [
            (true, false, false, true),
            (false, false, false, false),
            (true, true, false, false),
            (true, false, true, false),
            (false, false, true, false),
        ] {
            let mut frame = segment(V4);
            let mut packet = TcpPacket::new_unchecked(&mut frame[34..]);
            packet.set_syn(syn);
            packet.set_ack(ack);
            packet.set_rst(rst);
            let Kind::Segment { opens, resets, .. } = Kind::of(&frame) else { panic!("it is a segment") };
            assert_eq!((opens, resets), (is_open, rst));
        }
    }

    #[test]
    fn what_a_stack_would_process_although_it_must_not_is_invalid() {
        assert!(matches!(Kind::of(&segment(V6)), Kind::Segment { .. }));
        assert_eq!(Kind::of(&segment((LOOPBACK, V6.1))), Kind::Invalid);
        assert_eq!(Kind::of(&segment((V6.0, LOOPBACK))), Kind::Invalid);
        // A header of options for each hop, then a segment, or something else.
        let mut frame = segment(V6);
        frame[20] = 0;
        for (next, kind) in [(6, Kind::Invalid), (58, Kind::Other)] {
            frame[54] = next;
            assert_eq!(Kind::of(&frame), kind);
        }
    }

    #[test]
    fn a_packet_is_of_the_version_that_its_frame_says() {
        for (addresses, other) in [(V4, 0x60), (V6, 0x45)] {
            let mut frame = segment(addresses);
            frame[14] = other;
            assert_eq!(Kind::of(&frame), Kind::Invalid);
        }
        let mut frame = segment(V4);
        frame[12..14].copy_from_slice(&[0x88, 0xa8]);
        assert_eq!(Kind::of(&frame), Kind::Invalid);
    }
}
