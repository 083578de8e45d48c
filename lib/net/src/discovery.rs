//! Messages of IPv6 neighbour discovery (RFC 4861), as bytes.

use alloc::vec;
use alloc::vec::Vec;
use core::net::Ipv6Addr;
use core::time::Duration;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, Icmpv6Message, Icmpv6Packet, Icmpv6Repr,
    IpProtocol, Ipv6Packet, Ipv6Repr, NdiscNeighborFlags, NdiscRepr,
};

/// A router has not forwarded a message with this hop limit.
const HOP_LIMIT: u8 = 255;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
const OPTION_SOURCE_MAC: u8 = 1;
const OPTION_TARGET_MAC: u8 = 2;
const OPTION_PREFIX: u8 = 3;
const OPTION_NAME_SERVERS: u8 = 25;

/// A received message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Message<'f> {
    /// From a router.
    RouterAdvert(RouterAdvert<'f>),
    /// A neighbour requests the hardware address of `target`, and may give its own; without a source of its own, it checks that the
    /// address is free.
    Solicit { source: Ipv6Addr, target: Ipv6Addr, mac: Option<EthernetAddress> },
    /// A neighbour has the address `target`, at `mac`. It `is_answer` to a request, or `overrides` what we know.
    Advert { target: Ipv6Addr, mac: Option<EthernetAddress>, is_answer: bool, overrides: bool },
}

/// What a router advertises.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RouterAdvert<'f> {
    pub(crate) router: Ipv6Addr,
    /// How long it is a default router; 0 if it is none.
    pub(crate) lifetime: Duration,
    /// Valid: whole options, none of which is empty.
    options: &'f [u8],
}

/// A prefix of addresses (RFC 4861, section 4.6.2).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PrefixOption {
    pub(crate) prefix: Ipv6Addr,
    pub(crate) bits: u8,
    /// All addresses with the prefix are neighbours.
    pub(crate) on_link: bool,
    /// Hosts choose their addresses themselves.
    pub(crate) autonomous: bool,
    pub(crate) valid: Duration,
    pub(crate) preferred: Duration,
}

impl<'f> RouterAdvert<'f> {
    #[cfg(test)]
    pub(crate) fn new(router: Ipv6Addr, lifetime: Duration, options: &'f [u8]) -> RouterAdvert<'f> {
        RouterAdvert { router, lifetime, options }
    }

    /// The router's hardware address.
    pub(crate) fn mac(&self) -> Option<EthernetAddress> {
        mac_in(self.options, OPTION_SOURCE_MAC)
    }

    pub(crate) fn prefixes(&self) -> impl Iterator<Item = PrefixOption> {
        options(self.options).filter_map(|option| {
            let option: &[u8; 32] = option.try_into().ok().filter(|option: &&[u8; 32]| option[0] == OPTION_PREFIX)?;
            Some(PrefixOption {
                prefix: address_at(option, 16)?,
                bits: option[2],
                on_link: option[3] & 0x80 != 0,
                autonomous: option[3] & 0x40 != 0,
                valid: seconds_at(option, 4)?,
                preferred: seconds_at(option, 8)?,
            })
        })
    }

    /// Name servers, and how long each may be used (RFC 8106, section 5.1).
    pub(crate) fn name_servers(&self) -> impl Iterator<Item = (Ipv6Addr, Duration)> {
        let lists = options(self.options).filter(|option| option[0] == OPTION_NAME_SERVERS);
        lists.flat_map(|option| {
            let lifetime = seconds_at(option, 4).unwrap_or_default();
            let addresses = option.get(8..).unwrap_or_default().as_chunks::<16>().0;
            addresses.iter().map(move |bytes| (Ipv6Addr::from(*bytes), lifetime))
        })
    }
}

/// The options, up to the first invalid one.
fn options(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    core::iter::from_fn(move || {
        let length = 8 * usize::from(*bytes.get(1)?);
        let (option, rest) = bytes.split_at_checked(length).filter(|_| length > 0)?;
        bytes = rest;
        Some(option)
    })
}

/// The hardware address in an option of this kind (RFC 4861, section 4.6.1).
fn mac_in(bytes: &[u8], kind: u8) -> Option<EthernetAddress> {
    let option = options(bytes).find(|option| option[0] == kind)?;
    let mac = EthernetAddress::from_bytes(option.get(2..8)?);
    mac.is_unicast().then_some(mac)
}

fn seconds_at(option: &[u8], at: usize) -> Option<Duration> {
    let seconds = option.get(at..)?.first_chunk::<4>()?;
    Some(Duration::from_secs(u32::from_be_bytes(*seconds).into()))
}

fn address_at(option: &[u8], at: usize) -> Option<Ipv6Addr> {
    Some(Ipv6Addr::from(*option.get(at..)?.first_chunk::<16>()?))
}

/// The message in a frame, if it is valid (RFC 4861, sections 6.1.2, 7.1.1 and 7.1.2) and one of those that concern a host.
pub(crate) fn message_in(frame: &[u8]) -> Option<Message<'_>> {
    let frame = frame.get(EthernetFrame::<&[u8]>::header_len()..)?;
    let packet = Ipv6Packet::new_checked(frame).ok()?;
    if packet.version() != 6 || packet.next_header() != IpProtocol::Icmpv6 || packet.hop_limit() != HOP_LIMIT {
        return None;
    }
    let (source, destination) = (packet.src_addr(), packet.dst_addr());
    let message = Icmpv6Packet::new_checked(packet.payload()).ok()?;
    if message.msg_code() != 0 || !message.verify_checksum(&source, &destination) {
        return None;
    }
    let bytes = message.payload();
    if options(bytes).map(<[u8]>::len).sum::<usize>() != bytes.len() {
        return None;
    }
    match message.msg_type() {
        Icmpv6Message::RouterAdvert if source.is_unicast_link_local() => Some(Message::RouterAdvert(RouterAdvert {
            router: source,
            lifetime: Duration::from_secs(message.router_lifetime().secs()),
            options: bytes,
        })),
        Icmpv6Message::NeighborSolicit if is_unicast(message.target_addr()) => {
            Some(Message::Solicit { source, target: message.target_addr(), mac: mac_in(bytes, OPTION_SOURCE_MAC) })
        }
        Icmpv6Message::NeighborAdvert if is_unicast(message.target_addr()) => {
            let flags = message.neighbor_flags();
            Some(Message::Advert {
                target: message.target_addr(),
                mac: mac_in(bytes, OPTION_TARGET_MAC),
                is_answer: flags.contains(NdiscNeighborFlags::SOLICITED) && !destination.is_multicast(),
                overrides: flags.contains(NdiscNeighborFlags::OVERRIDE),
            })
        }
        _ => None,
    }
}

/// Whether a message is one of neighbour discovery.
pub(crate) fn is_discovery(message: Icmpv6Message) -> bool {
    matches!(
        message,
        Icmpv6Message::RouterSolicit
            | Icmpv6Message::RouterAdvert
            | Icmpv6Message::NeighborSolicit
            | Icmpv6Message::NeighborAdvert
            | Icmpv6Message::Redirect
    )
}

fn is_unicast(address: Ipv6Addr) -> bool {
    !address.is_multicast() && !address.is_unspecified() && !address.is_loopback()
}

/// The frame in which `source` requests the routers' advertisements.
pub(crate) fn router_solicitation(mac: EthernetAddress, source: Ipv6Addr) -> Vec<u8> {
    frame(mac, source, ALL_ROUTERS, NdiscRepr::RouterSolicit { lladdr: Some(mac.into()) })
}

/// The frame that requests whether another host has the address `target` (RFC 4862, section 5.4.2).
pub(crate) fn probe(mac: EthernetAddress, target: Ipv6Addr) -> Vec<u8> {
    let message = NdiscRepr::NeighborSolicit { target_addr: target, lladdr: None };
    frame(mac, Ipv6Addr::UNSPECIFIED, solicited_node(target), message)
}

/// The frame in which `source` requests the hardware address of `target`, from all hosts that may have it or from the one that had it last.
pub(crate) fn solicitation(
    mac: EthernetAddress,
    source: Ipv6Addr,
    target: Ipv6Addr,
    to: Option<EthernetAddress>,
) -> Vec<u8> {
    let message = NdiscRepr::NeighborSolicit { target_addr: target, lladdr: Some(mac.into()) };
    match to {
        Some(to) => frame_to(to, mac, source, target, message),
        None => frame(mac, source, solicited_node(target), message),
    }
}

/// The frame that answers the request of `asker`, which is at `to`, for the hardware address of our address `target`. It does not replace
/// what the neighbour has: see [`announcement`].
pub(crate) fn answer(mac: EthernetAddress, target: Ipv6Addr, asker: Ipv6Addr, to: EthernetAddress) -> Vec<u8> {
    let lladdr = Some(mac.into());
    let message = NdiscRepr::NeighborAdvert { flags: NdiscNeighborFlags::SOLICITED, target_addr: target, lladdr };
    frame_to(to, mac, target, asker, message)
}

/// The group of the hosts that may have an address (RFC 4291, section 2.7.1).
pub(crate) fn solicited_node(target: Ipv6Addr) -> Ipv6Addr {
    let [.., one, two, three] = target.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(one), u16::from_be_bytes([two, three]))
}

/// The frame that reports to all neighbours that we have the address `target`. As the address was not proven to be ours alone, it does
/// not replace what they have (RFC 4429, section 3.3).
pub(crate) fn announcement(mac: EthernetAddress, target: Ipv6Addr) -> Vec<u8> {
    let lladdr = Some(mac.into());
    let flags = NdiscNeighborFlags::empty();
    frame(mac, target, ALL_NODES, NdiscRepr::NeighborAdvert { flags, target_addr: target, lladdr })
}

/// A frame for a group.
fn frame(mac: EthernetAddress, source: Ipv6Addr, destination: Ipv6Addr, message: NdiscRepr) -> Vec<u8> {
    // The group's hardware address (RFC 2464, section 7).
    let [.., a, b, c, d] = destination.octets();
    frame_to(EthernetAddress([0x33, 0x33, a, b, c, d]), mac, source, destination, message)
}

fn frame_to(
    to: EthernetAddress,
    mac: EthernetAddress,
    source: Ipv6Addr,
    destination: Ipv6Addr,
    message: NdiscRepr,
) -> Vec<u8> {
    let message = Icmpv6Repr::Ndisc(message);
    let ip = Ipv6Repr {
        src_addr: source,
        dst_addr: destination,
        next_header: IpProtocol::Icmpv6,
        payload_len: message.buffer_len(),
        hop_limit: HOP_LIMIT,
    };
    let ethernet = EthernetRepr { src_addr: mac, dst_addr: to, ethertype: EthernetProtocol::Ipv6 };
    let mut bytes = vec![0; ethernet.buffer_len() + ip.buffer_len() + message.buffer_len()];
    let mut frame = EthernetFrame::new_unchecked(&mut bytes[..]);
    ethernet.emit(&mut frame);
    let mut packet = Ipv6Packet::new_unchecked(frame.payload_mut());
    ip.emit(&mut packet);
    let mut content = Icmpv6Packet::new_unchecked(packet.payload_mut());
    message.emit(&source, &destination, &mut content, &ChecksumCapabilities::default());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 1]);
    const OURS: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 1);
    const THEIRS: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 9);
    const THEIR_MAC: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 9]);

    #[test]
    fn what_is_sent_is_valid() {
        let probe = probe(MAC, OURS);
        assert_eq!(probe[..6], [0x33, 0x33, 0xff, 0, 0, 1]);
        assert_eq!(
            message_in(&probe),
            Some(Message::Solicit { source: Ipv6Addr::UNSPECIFIED, target: OURS, mac: None })
        );
        let announcement = announcement(MAC, OURS);
        assert_eq!(announcement[..6], [0x33, 0x33, 0, 0, 0, 1]);
        let advert = |is_answer| Message::Advert { target: OURS, mac: Some(MAC), is_answer, overrides: false };
        assert_eq!(message_in(&announcement), Some(advert(false)));
        let answer = answer(MAC, OURS, THEIRS, THEIR_MAC);
        assert_eq!((&answer[..6], message_in(&answer)), (THEIR_MAC.as_bytes(), Some(advert(true))));
        for (to, expected) in [(None, [0x33, 0x33, 0xff, 0, 0, 9]), (Some(THEIR_MAC), THEIR_MAC.0)] {
            let request = super::solicitation(MAC, OURS, THEIRS, to);
            assert_eq!(request[..6], expected);
            let found = message_in(&request);
            assert_eq!(found, Some(Message::Solicit { source: OURS, target: THEIRS, mac: Some(MAC) }));
        }
        let solicitation = router_solicitation(MAC, OURS);
        assert_eq!(solicitation[..6], [0x33, 0x33, 0, 0, 0, 2]);
        // Type, code; option 1 with our address.
        assert_eq!((solicitation[54], solicitation[55]), (133, 0));
        assert_eq!(solicitation[62..], [1, 1, 2, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn damaged_and_forwarded_messages_are_dropped() {
        let good = announcement(MAC, OURS);
        for at in 14..good.len() {
            // A message may have any traffic class and flow label.
            if (15..18).contains(&at) {
                continue;
            }
            let mut bad = good.clone();
            bad[at] ^= 0x81;
            assert_eq!(message_in(&bad), None, "byte {at}");
        }
        for bytes in 0..good.len() {
            assert_eq!(message_in(&good[..bytes]), None);
        }
    }

    #[test]
    fn options_end_at_the_first_invalid_one() {
        let lengths = |bytes| options(bytes).map(<[u8]>::len).collect::<Vec<_>>();
        assert_eq!(lengths(&[1, 1, 0, 0, 0, 0, 0, 0, 5, 0]), [8]);
        assert_eq!(lengths(&[1, 2, 0, 0, 0, 0, 0, 0]), [0; 0]);
        assert_eq!(lengths(&[1]), [0; 0]);
    }

    #[test]
    fn a_prefix_says_who_has_its_addresses_and_who_chooses_them() {
        for (flags, on_link, autonomous) in
            [(0xc0, true, true), (0x80, true, false), (0x40, false, true), (0x3f, false, false)]
        {
            let option = [&[3, 4, 64, flags][..], &[0; 28]].concat();
            let advert = RouterAdvert::new(OURS, Duration::ZERO, &option);
            let found: Vec<_> = advert.prefixes().map(|prefix| (prefix.on_link, prefix.autonomous)).collect();
            assert_eq!(found, [(on_link, autonomous)]);
        }
    }

    #[test]
    fn a_target_that_no_host_can_have_is_invalid() {
        for target in [ALL_NODES, Ipv6Addr::UNSPECIFIED, Ipv6Addr::LOCALHOST] {
            assert_eq!(message_in(&probe(MAC, target)), None);
            assert_eq!(message_in(&announcement(MAC, target)), None);
        }
    }
}
