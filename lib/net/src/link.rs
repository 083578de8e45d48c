//! Between IP and the card: which host a packet is sent to next, and Ethernet's header.
//!
//! smoltcp has packets of IP here, without hardware addresses: it would request one of them in a second, for all neighbours together, and
//! ignore a router outside of our prefix.

use crate::arp;
use crate::discovery::solicitation;
use crate::ingress::Frame;
use crate::neighbours::{Held, Neighbours};
use crate::routes::{Hop, Routes};
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::net::IpAddr;
use core::num::NonZeroU16;
use glass_api::Instant;
use smoltcp::phy::{Device, DeviceCapabilities, Medium, PacketMeta, TxToken};
use smoltcp::time;
use smoltcp::wire::{EthernetAddress, EthernetProtocol, IpAddress, IpCidr, Ipv4Packet, Ipv6Packet};

pub(crate) const ETHERNET_BYTES: usize = 14;

/// What a device is to smoltcp: one for packets of IP.
pub(crate) fn of_packets(mut capabilities: DeviceCapabilities) -> DeviceCapabilities {
    let without_header = |bytes: usize| bytes.saturating_sub(ETHERNET_BYTES);
    capabilities.medium = Medium::Ip;
    capabilities.max_transmission_unit = without_header(capabilities.max_transmission_unit);
    for longest in [&mut capabilities.segmentation.tcpv4, &mut capabilities.segmentation.tcpv6] {
        *longest = longest.and_then(|longest| without_header(longest.get()).try_into().ok());
    }
    capabilities
}

/// A device for its capabilities only.
pub(crate) struct Shape(pub(crate) DeviceCapabilities);

impl Device for Shape {
    type RxToken<'a> = Frame<'a>;
    type TxToken<'a> = Nowhere;

    fn receive(&mut self, _: time::Instant) -> Option<(Frame<'_>, Nowhere)> {
        None
    }

    fn transmit(&mut self, _: time::Instant) -> Option<Nowhere> {
        None
    }

    fn capabilities(&self) -> DeviceCapabilities {
        self.0.clone()
    }
}

/// Takes a frame and drops it.
pub(crate) struct Nowhere;

impl TxToken for Nowhere {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        write(&mut vec![0; len])
    }
}

/// Our end of the network.
pub(crate) struct Link {
    pub(crate) mac: EthernetAddress,
    pub(crate) neighbours: Neighbours,
    pub(crate) routes: Routes,
}

impl Link {
    pub(crate) fn new(mac: EthernetAddress) -> Link {
        Link { mac, neighbours: Neighbours::default(), routes: Routes::default() }
    }

    /// Whether a frame is for us, or for a group; which groups those are, is decided by their addresses of IP.
    pub(crate) fn accepts(&self, frame: &[u8]) -> bool {
        frame.get(..6).is_some_and(|to| to == self.mac.as_bytes() || to[0] & 1 != 0)
    }

    /// The hardware address for packets to `destination`; `None` if there is no way, or it is being resolved.
    pub(crate) fn lookup(&mut self, now: Instant, destination: IpAddress) -> Option<EthernetAddress> {
        match self.routes.hop(destination) {
            Hop::Group(mac) => Some(mac),
            Hop::Neighbour(address) => self.neighbours.lookup(now, address),
            Hop::None => None,
        }
    }

    /// The same for an answer to a host that did not have to prove that it exists: nothing is resolved for it.
    fn known(&mut self, now: Instant, destination: IpAddress) -> Option<EthernetAddress> {
        match self.routes.hop(destination) {
            Hop::Neighbour(address) if self.neighbours.contains(address) => self.neighbours.lookup(now, address),
            _ => None,
        }
    }

    /// Keeps a frame until the hardware address of its next host is known.
    fn hold(&mut self, destination: IpAddress, frame: Vec<u8>, segment_bytes: Option<NonZeroU16>) {
        if let Hop::Neighbour(address) = self.routes.hop(destination) {
            self.neighbours.hold(address, Held { frame, segment_bytes });
        }
    }

    /// A peer has acknowledged what we have sent, in a frame `from` this host.
    pub(crate) fn confirm(&mut self, now: Instant, peer: IpAddress, from: Option<EthernetAddress>) {
        let (Hop::Neighbour(hop), Some(from)) = (self.routes.hop(peer), from) else { return };
        // What a router forwards may take another way than what we send.
        if hop == IpAddr::from(peer) || !self.neighbours.differs(hop, from) {
            self.neighbours.confirm(now, hop, from);
        }
    }

    /// Whether [`Link::next_frame`] may return one.
    pub(crate) fn has_frames(&self) -> bool {
        self.neighbours.has_work()
    }

    /// The next frame to send, with the size of its segments: what waited for an address, or a request for one.
    pub(crate) fn next_frame(&mut self) -> Option<(Vec<u8>, Option<NonZeroU16>)> {
        if let Some((mac, Held { mut frame, segment_bytes })) = self.neighbours.next_released() {
            put_addresses(&mut frame, self.mac, mac);
            return Some((frame, segment_bytes));
        }
        while let Some(request) = self.neighbours.next_request() {
            let frame = match (request.address, self.routes.source(request.address)) {
                (IpAddr::V4(target), Some(IpAddr::V4(source))) => arp::request(self.mac, source, target, request.to),
                (IpAddr::V6(target), Some(IpAddr::V6(source))) => solicitation(self.mac, source, target, request.to),
                _ => continue,
            };
            return Some((frame, None));
        }
        None
    }

    /// Takes over our addresses. Neighbours stay known as long as these do.
    pub(crate) fn set_addresses(&mut self, addresses: &[IpCidr]) {
        if addresses != self.routes.addresses {
            self.routes.addresses = addresses.to_vec();
            self.neighbours.clear();
        }
    }
}

/// The host that a frame is from.
pub(crate) fn source_mac(frame: &[u8]) -> Option<EthernetAddress> {
    let mac = EthernetAddress::from_bytes(frame.get(6..12)?);
    mac.is_unicast().then_some(mac)
}

/// The source and the destination of the packet in a frame.
pub(crate) fn addresses_in(frame: &[u8]) -> Option<(IpAddress, IpAddress)> {
    let packet = frame.get(ETHERNET_BYTES..)?;
    match packet.first()? >> 4 {
        4 => {
            let packet = Ipv4Packet::new_checked(packet).ok()?;
            Some((packet.src_addr().into(), packet.dst_addr().into()))
        }
        6 => {
            let packet = Ipv6Packet::new_checked(packet).ok()?;
            Some((packet.src_addr().into(), packet.dst_addr().into()))
        }
        _ => None,
    }
}

fn put_addresses(frame: &mut [u8], from: EthernetAddress, to: EthernetAddress) {
    frame[..6].copy_from_slice(to.as_bytes());
    frame[6..12].copy_from_slice(from.as_bytes());
}

/// A packet's place in a frame, whose header names the version of IP.
pub(crate) struct Headed<T>(pub(crate) T);

impl<T: TxToken> TxToken for Headed<T> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        self.0.consume(ETHERNET_BYTES + len, |frame| {
            let (header, packet) = frame.split_at_mut(ETHERNET_BYTES);
            let result = write(packet);
            let is_ipv6 = packet.first().is_some_and(|byte| byte >> 4 == 6);
            let version = if is_ipv6 { EthernetProtocol::Ipv6 } else { EthernetProtocol::Ipv4 };
            header[12..].copy_from_slice(&u16::from(version).to_be_bytes());
            result
        })
    }

    fn set_meta(&mut self, meta: PacketMeta) {
        self.0.set_meta(meta);
    }
}

/// Sends a frame to the next host on the way of the packet in it, or keeps it until that one's hardware address is known.
pub(crate) struct Outlet<'l, T> {
    pub(crate) transmit: T,
    pub(crate) link: &'l RefCell<Link>,
    pub(crate) now: Instant,
    /// The packet's destination, where it is certain: then it is written where it is sent from.
    pub(crate) remote: Option<IpAddress>,
    /// The host to which an answer is sent if no other is known.
    pub(crate) asker: Option<EthernetAddress>,
    /// Nothing but a packet to `remote` is sent.
    pub(crate) is_segment: bool,
    pub(crate) meta: PacketMeta,
}

impl<'l, T: TxToken> Outlet<'l, T> {
    /// For packets to anywhere.
    pub(crate) fn new(transmit: T, link: &'l RefCell<Link>, now: Instant) -> Outlet<'l, T> {
        Outlet { transmit, link, now, remote: None, asker: None, is_segment: false, meta: PacketMeta::default() }
    }

    /// For a segment of a connection, or one that answers what came `from` a host.
    pub(crate) fn to(
        transmit: T,
        link: &'l RefCell<Link>,
        now: Instant,
        remote: IpAddress,
        from: Option<EthernetAddress>,
    ) -> Outlet<'l, T> {
        Outlet { remote: Some(remote), asker: from, is_segment: true, ..Outlet::new(transmit, link, now) }
    }

    /// For the answer to a frame.
    pub(crate) fn answering(transmit: T, link: &'l RefCell<Link>, now: Instant, frame: &[u8]) -> Outlet<'l, T> {
        let remote = addresses_in(frame).map(|(source, _)| source);
        Outlet { remote, asker: source_mac(frame), ..Outlet::new(transmit, link, now) }
    }
}

impl<T: TxToken> TxToken for Outlet<'_, T> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(mut self, len: usize, write: F) -> R {
        let mut link = self.link.borrow_mut();
        let own = link.mac;
        let mac = match (self.remote, self.asker) {
            (Some(remote), None) => link.lookup(self.now, remote),
            (Some(remote), Some(asker)) => link.known(self.now, remote).or(Some(asker)),
            (None, asker) => asker,
        };
        if let Some(mac) = mac {
            drop(link);
            return self.transmit.consume(len, |frame| {
                let result = write(frame);
                // smoltcp's reports of groups are sent together with anything else.
                let destination = if self.is_segment { None } else { addresses_in(frame) };
                let group = destination.and_then(|(_, destination)| Routes::group(destination));
                put_addresses(frame, own, group.unwrap_or(mac));
                result
            });
        }
        let mut frame = vec![0; len];
        let result = write(&mut frame);
        let Some((_, destination)) = addresses_in(&frame) else { return result };
        match link.lookup(self.now, destination) {
            Some(mac) => {
                put_addresses(&mut frame, own, mac);
                self.transmit.set_meta(self.meta);
                self.transmit.consume(len, |bytes| bytes.copy_from_slice(&frame));
            }
            None => link.hold(destination, frame, self.meta.segmentation_offload_size),
        }
        result
    }

    fn set_meta(&mut self, meta: PacketMeta) {
        self.meta = meta;
        self.transmit.set_meta(meta);
    }
}
