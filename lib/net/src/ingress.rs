//! Received frames: what we parse before smoltcp does, and all of TCP.

use crate::arp::{self, arp_in};
use crate::discovery::{Message, announcement, answer, is_discovery, message_in};
use crate::dns::{self, Outcome};
use crate::handshakes::Waiting;
use crate::icmp::{TooLong, too_long_in};
use crate::link::{ETHERNET_BYTES, Headed, Outlet, of_packets, source_mac};
use crate::listeners::Admission;
use crate::segment::send_segment;
use crate::state::State;
use crate::table::{ConnectionId, Ends};
use crate::trace::Flow;
use glass_lib_tcp::wire::Flags;
use glass_lib_tcp::{End, Header, Reply, Segment, State as TcpState};
use glass_lib_trace::{Group, is_on};
use smoltcp::phy::{ChecksumCapabilities, Device, DeviceCapabilities, RxToken, TxToken};
use smoltcp::time::Instant;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, Icmpv4Packet, Icmpv6Packet, IpAddress, IpEndpoint, IpProtocol,
    Ipv4Packet, Ipv6Packet, TcpPacket, UdpPacket,
};

/// Of a server and a client (RFC 2131, section 4.1).
const DHCP_PORTS: (u16, u16) = (67, 68);

/// The kind of a frame, as far as it decides its receiver.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Kind<'f> {
    /// A segment between these two ends, with the right checksum.
    Segment { ends: Ends, segment: Segment<'f> },
    /// A router has dropped a segment of ours.
    TooLong(TooLong),
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

impl<'f> Kind<'f> {
    /// Parses a frame's headers as far as they are valid. Those of a segment are parsed here and nowhere else; of other packets, smoltcp
    /// verifies the checksums.
    pub(crate) fn of(frame: &'f [u8], checksums: &ChecksumCapabilities) -> Kind<'f> {
        Kind::parse(frame, checksums).unwrap_or(Kind::Other)
    }

    fn parse(frame: &'f [u8], checksums: &ChecksumCapabilities) -> Option<Kind<'f>> {
        let frame = EthernetFrame::new_checked(frame).ok()?;
        let version = frame.payload().first().map(|byte| byte >> 4);
        match (frame.ethertype(), version) {
            (EthernetProtocol::Ipv4, Some(4)) => {
                let packet = Ipv4Packet::new_checked(frame.payload()).ok()?;
                let addresses = (IpAddress::Ipv4(packet.dst_addr()), IpAddress::Ipv4(packet.src_addr()));
                if packet.next_header() == IpProtocol::Tcp {
                    let is_whole = !packet.more_frags() && packet.frag_offset() == 0;
                    let is_right = !checksums.ipv4.rx() || packet.verify_checksum();
                    let segment = Some(packet.payload()).filter(|_| is_whole && is_right);
                    return Some(Kind::of_segment(segment, addresses, checksums));
                }
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
                if packet.next_header() == IpProtocol::Tcp {
                    return Some(Kind::of_segment(Some(packet.payload()), addresses, checksums));
                }
                Kind::of_payload(packet.next_header(), packet.payload(), addresses)
            }
            (EthernetProtocol::Arp, _) => Some(Kind::Arp),
            _ => Some(Kind::Invalid),
        }
    }

    /// `addresses` are the destination and the source.
    fn of_segment(
        segment: Option<&'f [u8]>,
        addresses: (IpAddress, IpAddress),
        checksums: &ChecksumCapabilities,
    ) -> Kind<'f> {
        let (destination, source) = addresses;
        let Some(bytes) = segment.filter(|_| source.is_unicast()) else { return Kind::Invalid };
        let Some(segment) = Segment::parse(bytes) else { return Kind::Invalid };
        let is_right = !checksums.tcp.rx() || TcpPacket::new_unchecked(bytes).verify_checksum(&source, &destination);
        if !is_right || segment.source_port == 0 || segment.destination_port == 0 {
            return Kind::Invalid;
        }
        let local = IpEndpoint::new(destination, segment.destination_port);
        let remote = IpEndpoint::new(source, segment.source_port);
        Kind::Segment { ends: Ends { local, remote }, segment }
    }

    fn of_payload(protocol: IpProtocol, payload: &[u8], addresses: (IpAddress, IpAddress)) -> Option<Kind<'f>> {
        match protocol {
            IpProtocol::Icmpv6 => {
                let packet = Icmpv6Packet::new_checked(payload).ok()?;
                let is_right = match addresses {
                    (IpAddress::Ipv6(destination), IpAddress::Ipv6(source)) => {
                        packet.verify_checksum(&source, &destination)
                    }
                    _ => false,
                };
                let report = too_long_in(payload, true).filter(|_| is_right).map(Kind::TooLong);
                report.or_else(|| is_discovery(packet.msg_type()).then_some(Kind::Discovery))
            }
            IpProtocol::Icmp => {
                let is_right = Icmpv4Packet::new_checked(payload).ok()?.verify_checksum();
                too_long_in(payload, false).filter(|_| is_right).map(Kind::TooLong)
            }
            IpProtocol::Udp if matches!(addresses.0, IpAddress::Ipv4(_)) => {
                let packet = UdpPacket::new_checked(payload).ok()?;
                ((packet.src_port(), packet.dst_port()) == DHCP_PORTS).then_some(Kind::Dhcp)
            }
            _ => None,
        }
    }
}

impl State {
    /// Gives one frame to its receiver, which may answer it by `transmit`.
    pub(crate) fn receive<T: TxToken>(
        &mut self,
        now: Instant,
        frame: &[u8],
        transmit: T,
        capabilities: &DeviceCapabilities,
    ) {
        if !self.link.borrow().accepts(frame) {
            return;
        }
        let kind = Kind::of(frame, &capabilities.checksum);
        if let Kind::Segment { ends, segment } = kind {
            // An address of a group is none of ours.
            if self.interface.has_ip_addr(ends.local.addr) {
                self.receive_segment(ends, &segment, source_mac(frame), transmit, &capabilities.checksum);
            } else {
                trace_unexpected(&segment);
            }
            return;
        }
        // smoltcp sends an answer as long as what it answers.
        if frame.len() > capabilities.max_transmission_unit {
            return;
        }
        let link = self.link.clone();
        let transmit = Outlet::answering(transmit, &link, self.now, frame);
        let device = OneFrame { receive: Some(frame), transmit: Some(transmit), capabilities };
        match kind {
            Kind::Discovery => self.receive_discovery(device, frame),
            Kind::Arp => self.receive_arp(device, frame),
            Kind::TooLong(report) => self.shorten(&report),
            Kind::Segment { .. } | Kind::Invalid => {}
            Kind::Dhcp | Kind::Other => match &mut self.dhcp {
                Some(dhcp) if kind == Kind::Dhcp => dhcp.receive(self.now, frame),
                _ => self.receive_datagram(now, device, frame),
            },
        }
    }

    /// A segment that has waited for room.
    pub(crate) fn receive_waiting<T: TxToken>(
        &mut self,
        waiting: &Waiting,
        transmit: T,
        checksums: &ChecksumCapabilities,
    ) {
        let Waiting { ends, from, header } = *waiting;
        let (source_port, destination_port) = (ends.remote.port, ends.local.port);
        let segment = Segment { source_port, destination_port, header, payload: &[] };
        self.receive_segment(ends, &segment, from, transmit, checksums);
    }

    /// A segment `from` this host.
    fn receive_segment<T: TxToken>(
        &mut self,
        ends: Ends,
        segment: &Segment,
        from: Option<EthernetAddress>,
        transmit: T,
        checksums: &ChecksumCapabilities,
    ) {
        let Header { flags, .. } = segment.header;
        let opens = flags.has(Flags::SYN) && !flags.has(Flags::ACK) && !flags.has(Flags::RST);
        let mut found = self.table.find(ends);
        if opens && found.is_some_and(|id| self.free_ends(id, &segment.header)) {
            found = None;
        }
        if found.is_none() && !opens && self.handshakes.reply(ends, segment) == Some(Reply::Opens) {
            found = self.open(ends);
            match found {
                // It has received our answer, so it is there.
                Some(_) => self.link.borrow_mut().confirm(self.now, ends.remote.addr, from),
                None => {
                    trace_unexpected(segment);
                    return self.keep_waiting(ends, from, segment.header);
                }
            }
        }
        let answer = match found {
            Some(id) => return self.receive_for(id, segment, from, transmit, checksums),
            None => {
                trace_unexpected(segment);
                self.answer_unexpected(ends, segment, from, opens)
            }
        };
        if let Some(header) = answer {
            if is_on(Group::Net) {
                Flow::default().sends(&header, 0, 0);
            }
            let outlet = Outlet::to(transmit, &self.link, self.now, ends.remote.addr, from);
            send_segment(outlet, ends, &header, [&[], &[]], None, checksums);
        }
    }

    /// What answers a segment that belongs to no connection.
    fn answer_unexpected(
        &mut self,
        ends: Ends,
        segment: &Segment,
        from: Option<EthernetAddress>,
        opens: bool,
    ) -> Option<Header> {
        if opens {
            return match self.admit(ends, from, segment) {
                Admission::Answer(header) => Some(header),
                Admission::Refuse => {
                    self.keep_waiting(ends, from, segment.header);
                    None
                }
                Admission::Pass => {
                    if !self.listeners.is_empty() {
                        self.missed.get_or_insert((ends.local.port, false));
                    }
                    segment.refusal()
                }
            };
        }
        match self.handshakes.reply(ends, segment) {
            Some(Reply::Resets) => {
                self.handshakes.remove(ends);
                self.counters.abandoned_opening += 1;
                None
            }
            Some(Reply::Refuse) | None => segment.refusal(),
            Some(Reply::Opens | Reply::Repeats | Reply::Ignore) => None,
        }
    }

    /// A segment for a connection.
    fn receive_for<T: TxToken>(
        &mut self,
        id: ConnectionId,
        segment: &Segment,
        from: Option<EthernetAddress>,
        transmit: T,
        checksums: &ChecksumCapabilities,
    ) {
        let connection = self.table.get(id);
        let (is_traced, (peer_shift, own_shift)) = (is_on(Group::Net), connection.tcp.shifts());
        if is_traced {
            connection.flow.received(segment, peer_shift);
        }
        let (was_closed, before) = (connection.tcp.state() == TcpState::Closed, connection.tcp.unacknowledged());
        connection.tcp.receive(self.now, segment);
        if connection.tcp.unacknowledged() < before {
            self.link.borrow_mut().confirm(self.now, connection.ends.remote.addr, from);
        }
        if !was_closed && connection.tcp.end() == Some(End::Reset) {
            self.counters.reset_by_peer += 1;
        }
        if let Some(answer) = connection.tcp.poll_answer(self.now) {
            if is_traced {
                connection.flow.sends(&answer.header, 0, own_shift);
            }
            let outlet = Outlet::to(transmit, &self.link, self.now, connection.ends.remote.addr, None);
            send_segment(outlet, connection.ends, &answer.header, [&[], &[]], None, checksums);
        }
        connection.wake();
        self.table.touch(id);
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
            return self.receive_control(now, device);
        };
        let OneFrame { transmit, capabilities, .. } = device;
        let short = if outcome == Outcome::Complete { None } else { dns::without_records(frame) };
        let frame = short.as_deref().unwrap_or(frame);
        self.receive_control(now, OneFrame { receive: Some(frame), transmit, capabilities });
        self.note_answer(server, outcome);
    }

    /// A frame for no connection: smoltcp answers it if necessary.
    fn receive_control<T: TxToken>(&mut self, now: Instant, mut device: OneFrame<'_, T>) {
        self.interface.poll_ingress_single(now, &mut device, &mut self.control);
    }
}

/// Whether a TCP segment is behind an extension header.
fn hides_segment(header: &[u8]) -> bool {
    header.first() == Some(&IpProtocol::Tcp.into())
}

/// Records a segment for no connection in the trace.
fn trace_unexpected(segment: &Segment) {
    if is_on(Group::Net) {
        Flow::default().received(segment, 0);
    }
}

/// Sends a frame as it is.
pub(crate) fn send_frame(transmit: impl TxToken, frame: &[u8]) {
    transmit.consume(frame.len(), |bytes| bytes.copy_from_slice(frame));
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

    const V4: (IpAddress, IpAddress) = (IpAddress::v4(10, 0, 0, 1), IpAddress::v4(10, 0, 0, 2));
    const V6: (IpAddress, IpAddress) =
        (IpAddress::v6(0xfd00, 0, 0, 0, 0, 0, 0, 1), IpAddress::v6(0xfd00, 0, 0, 0, 0, 0, 0, 2));
    const LOOPBACK: IpAddress = IpAddress::v6(0, 0, 0, 0, 0, 0, 0, 1);

    fn segment(addresses: (IpAddress, IpAddress)) -> Vec<u8> {
        frame(addresses, &Header { flags: Flags::ACK, ..Header::default() }, &[])
    }

    fn kind(frame: &[u8]) -> Kind<'_> {
        Kind::of(frame, &ChecksumCapabilities::default())
    }

    #[test]
    fn what_a_stack_would_process_although_it_must_not_is_invalid() {
        assert!(matches!(kind(&segment(V6)), Kind::Segment { .. }));
        assert_eq!(kind(&segment((LOOPBACK, V6.1))), Kind::Invalid);
        assert_eq!(kind(&segment((V6.0, LOOPBACK))), Kind::Invalid);
        // From a group.
        assert_eq!(kind(&segment((IpAddress::v4(224, 0, 0, 1), V4.1))), Kind::Invalid);
        // A header of options for each hop, then a segment, or something else.
        let mut frame = segment(V6);
        frame[20] = 0;
        for (next, expected) in [(6, Kind::Invalid), (58, Kind::Other)] {
            frame[54] = next;
            assert_eq!(kind(&frame), expected);
        }
    }

    #[test]
    fn a_fragment_and_a_wrong_checksum_are_invalid() {
        for (at, with_ipv4) in [(20, true), (21, true), (24, false), (50, false)] {
            let mut frame = segment(V4);
            assert!(matches!(kind(&frame), Kind::Segment { .. }));
            // More fragments, an offset, IP's checksum, TCP's.
            frame[at] ^= 0x21;
            if with_ipv4 {
                Ipv4Packet::new_unchecked(&mut frame[ETHERNET_BYTES..]).fill_checksum();
            }
            assert_eq!(kind(&frame), Kind::Invalid, "byte {at}");
        }
    }

    #[test]
    fn a_packet_is_of_the_version_that_its_frame_says() {
        for (addresses, other) in [(V4, 0x60), (V6, 0x45)] {
            let mut frame = segment(addresses);
            frame[14] = other;
            assert_eq!(kind(&frame), Kind::Invalid);
        }
        let mut frame = segment(V4);
        frame[12..14].copy_from_slice(&[0x88, 0xa8]);
        assert_eq!(kind(&frame), Kind::Invalid);
    }
}
