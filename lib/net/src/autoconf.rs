//! Our IPv6 addresses, and the routers and name servers of the network: stateless address autoconfiguration (RFC 4862) and router
//! discovery (RFC 4861, section 6.3; RFC 8106), without I/O.
//!
//! Everything that an advertisement contains is bounded, and so is how often it changes our addresses, because connections end and
//! neighbours are forgotten when they change: a prefix is added, deprecated and removed once, and remains for two hours at least. One that is deprecated,
//! or was not advertised for half an hour, makes room for a new one if there is none.
//!
//! An address is used at once, while we check whether another host has it; if so, we give it up (optimistic duplicate address detection,
//! RFC 4429). The last 64 bits of our addresses are made of the network card's address.

use crate::config::Ipv6;
use crate::discovery::{PrefixOption, RouterAdvert, announcement, probe, router_solicitation};
use alloc::vec::Vec;
use core::net::{Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use glass_api::Instant;
use smoltcp::wire::EthernetAddress;

/// Prefixes, routers and name servers that are remembered; further ones are ignored.
const PREFIXES_MAX: usize = 4;
const ROUTERS_MAX: usize = 4;
const SERVERS_MAX: usize = 3;
/// How long after the start we look for routers and take the first address, so that this does not delay a service's first answer: with
/// TCG it takes 7 ms. Hosts are to wait up to a second there (RFC 4861, section 6.3.7; RFC 4862, section 5.4.2).
pub(crate) const START_DELAY: Duration = Duration::from_millis(100);
/// When the routers' advertisements are requested again; each time twice as long after the last one, up to an hour (RFC 7559).
const SOLICITATION_INTERVAL: Duration = Duration::from_secs(4);
const SOLICITATION_INTERVAL_MAX: Duration = Duration::from_secs(3600);
/// How long another host may object to an address (RFC 4861, section 10: `RETRANS_TIMER`).
const PROBE_TIME: Duration = Duration::from_secs(1);
/// No advertisement makes an address invalid sooner (RFC 4862, section 5.5.3 e; for a new prefix, too).
const VALID_MIN: Duration = Duration::from_secs(2 * 3600);
/// What was not advertised for so long, the longest time between two advertisements of a router (RFC 4861, section 6.2.1), makes room for
/// what is new: otherwise invented ones would keep the real ones out for as long as they say. A router's are never that old.
const SILENT_MAX: Duration = Duration::from_secs(1800 + 60);
const PREFIX_BITS: u8 = 64;

/// What happened to our addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// The lease of this address has ended and was not renewed, or a DHCP server gives us another address.
    Lost(Ipv4Addr),
    /// A DHCP server gives us this address, after another one or none for a while.
    Regained(Ipv4Addr),
    /// A router's advertisement gave us this address.
    Configured(Ipv6Addr),
    /// Another host has this address, so we do not use it.
    Duplicate(Ipv6Addr),
}

/// The state.
pub(crate) struct Autoconf {
    mac: EthernetAddress,
    setting: Ipv6,
    /// Until then we have no address.
    starts_at: Option<Instant>,
    /// When the next router solicitation is sent, and the interval until the one after it.
    solicit_at: Option<Instant>,
    interval: Duration,
    prefixes: Vec<Prefix>,
    routers: Vec<Kept>,
    servers: Vec<Kept>,
    own: Vec<Own>,
    /// Addresses that other hosts have.
    duplicates: Vec<Ipv6Addr>,
    notices: Vec<Notice>,
}

/// An address of a router or a name server.
struct Kept {
    address: Ipv6Addr,
    until: Instant,
    seen_at: Instant,
}

struct Prefix {
    /// With zeros for our part.
    prefix: Ipv6Addr,
    on_link: bool,
    /// Not for new connections, once it was advertised as such.
    deprecated: bool,
    valid_until: Instant,
    seen_at: Instant,
}

/// One of our addresses.
struct Own {
    address: Ipv6Addr,
    bits: u8,
    probed_at: Option<Instant>,
    announced: bool,
}

/// The address with this prefix whose last 64 bits are made of the card's address (RFC 2464, section 4).
fn address_of(prefix: Ipv6Addr, mac: EthernetAddress) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    let bits = u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    Ipv6Addr::from_bits(prefix.to_bits() | u128::from(bits))
}

impl Autoconf {
    pub(crate) fn new(mac: EthernetAddress, setting: Ipv6, now: Instant) -> Autoconf {
        let starts_at = (setting == Ipv6::Auto).then(|| now + START_DELAY);
        let mut autoconf = Autoconf {
            mac,
            setting,
            starts_at,
            solicit_at: starts_at,
            interval: SOLICITATION_INTERVAL,
            prefixes: Vec::new(),
            routers: Vec::new(),
            servers: Vec::new(),
            own: Vec::new(),
            duplicates: Vec::new(),
            notices: Vec::new(),
        };
        autoconf.update();
        autoconf
    }

    /// The network card's address.
    pub(crate) fn mac(&self) -> EthernetAddress {
        self.mac
    }

    /// Our addresses with their prefix lengths, the one for most connections first.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = (Ipv6Addr, u8)> {
        self.own.iter().map(|own| (own.address, own.bits))
    }

    /// The default router.
    pub(crate) fn gateway(&self) -> Option<Ipv6Addr> {
        match self.setting {
            Ipv6::Static { gateway, .. } => gateway,
            _ => self.routers.first().map(|router| router.address),
        }
    }

    pub(crate) fn name_servers(&self) -> impl Iterator<Item = Ipv6Addr> {
        self.servers.iter().map(|server| server.address)
    }

    /// The oldest event that was not returned yet.
    pub(crate) fn take_notice(&mut self) -> Option<Notice> {
        (!self.notices.is_empty()).then(|| self.notices.remove(0))
    }

    /// Applies a router's advertisement.
    pub(crate) fn receive(&mut self, now: Instant, advert: &RouterAdvert) {
        if self.setting != Ipv6::Auto {
            return;
        }
        keep(&mut self.routers, ROUTERS_MAX, advert.router, now, advert.lifetime);
        if !advert.lifetime.is_zero() {
            self.solicit_at = None;
        }
        for prefix in advert.prefixes() {
            self.receive_prefix(now, &prefix);
        }
        for (server, lifetime) in advert.name_servers() {
            keep(&mut self.servers, SERVERS_MAX, server, now, lifetime);
        }
        self.update();
    }

    fn receive_prefix(&mut self, now: Instant, option: &PrefixOption) {
        let prefix = Ipv6Addr::from_bits(option.prefix.to_bits() & u128::MAX << 64);
        let invalid = prefix.is_multicast() || prefix.is_unspecified() || prefix.is_unicast_link_local();
        if !option.autonomous || option.bits != PREFIX_BITS || option.preferred > option.valid || invalid {
            return;
        }
        let valid_until = now + option.valid;
        let is_new = !self.prefixes.iter().any(|known| known.prefix == prefix) && !option.valid.is_zero();
        if is_new && !option.preferred.is_zero() && self.prefixes.len() == PREFIXES_MAX {
            let oldest = self.prefixes.iter().enumerate().min_by_key(|(_, known)| (!known.deprecated, known.seen_at));
            let oldest = oldest.filter(|(_, known)| known.deprecated || known.seen_at + SILENT_MAX <= now);
            if let Some((at, _)) = oldest {
                self.prefixes.remove(at);
            }
        }
        let is_full = self.prefixes.len() == PREFIXES_MAX;
        match self.prefixes.iter_mut().find(|known| known.prefix == prefix) {
            Some(known) => {
                known.valid_until = valid_until.max(known.valid_until.min(now + VALID_MIN));
                known.deprecated |= option.preferred.is_zero();
                known.seen_at = now;
            }
            None if option.valid.is_zero() || is_full => {}
            None => self.prefixes.push(Prefix {
                prefix,
                on_link: option.on_link,
                deprecated: option.preferred.is_zero(),
                valid_until: valid_until.max(now + VALID_MIN),
                seen_at: now,
            }),
        }
    }

    /// Another host has `address`, or wants it at the same time. Returns whether we give it up: later, hosts could take addresses from
    /// each other.
    pub(crate) fn contest(&mut self, now: Instant, address: Ipv6Addr) -> bool {
        let is_young = |own: &Own| own.probed_at.is_none_or(|at| now < at + PROBE_TIME);
        if !self.own.iter().any(|own| own.address == address && is_young(own)) {
            return false;
        }
        self.duplicates.push(address);
        self.notices.push(Notice::Duplicate(address));
        self.update();
        true
    }

    /// Takes the first address when it is time, and removes what is not valid any more. Returns whether that changed something.
    pub(crate) fn advance(&mut self, now: Instant) -> bool {
        let starts = self.starts_at.take_if(|at| *at <= now).is_some();
        let count = self.prefixes.len() + self.routers.len() + self.servers.len();
        self.prefixes.retain(|prefix| now < prefix.valid_until);
        self.routers.retain(|router| now < router.until);
        self.servers.retain(|server| now < server.until);
        let changed = starts || count != self.prefixes.len() + self.routers.len() + self.servers.len();
        if changed {
            self.update();
        }
        changed
    }

    /// Makes the list of our addresses again.
    fn update(&mut self) {
        if self.starts_at.is_some() {
            return;
        }
        let mut wanted = Vec::with_capacity(PREFIXES_MAX + 1);
        if let Ipv6::Static { address, prefix_bits, .. } = self.setting {
            wanted.push((address, prefix_bits));
        }
        for deprecated in [false, true] {
            let prefixes = self.prefixes.iter().filter(|prefix| prefix.deprecated == deprecated);
            wanted.extend(prefixes.map(|prefix| {
                let bits = if prefix.on_link { PREFIX_BITS } else { 128 };
                (address_of(prefix.prefix, self.mac), bits)
            }));
        }
        wanted.push((address_of(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), self.mac), PREFIX_BITS));
        wanted.retain(|(address, _)| !self.duplicates.contains(address));
        let mut before = core::mem::take(&mut self.own);
        for (address, bits) in wanted {
            let own = match before.iter().position(|own| own.address == address) {
                Some(index) => before.remove(index),
                None => {
                    if self.setting == Ipv6::Auto && !address.is_unicast_link_local() {
                        self.notices.push(Notice::Configured(address));
                    }
                    Own { address, bits, probed_at: None, announced: false }
                }
            };
            self.own.push(own);
        }
        // The events of one change at most, if the platform takes none.
        let excess = self.notices.len().saturating_sub(PREFIXES_MAX + 1);
        self.notices.drain(..excess);
    }

    /// The link-local address that solicitations come from.
    fn link_local(&self) -> Option<Ipv6Addr> {
        self.own.iter().map(|own| own.address).find(Ipv6Addr::is_unicast_link_local)
    }

    /// Whether [`Autoconf::next_frame`] returns one.
    pub(crate) fn has_frame(&self, now: Instant, listens: bool) -> bool {
        let is_new = |own: &Own| own.probed_at.is_none() || listens && !own.announced;
        self.own.iter().any(is_new) || self.solicit_at.is_some_and(|at| at <= now)
    }

    /// The next frame to send. Addresses are announced when there is a listener (see `announce.rs`).
    pub(crate) fn next_frame(&mut self, now: Instant, listens: bool) -> Option<Vec<u8>> {
        if let Some(own) = self.own.iter_mut().find(|own| own.probed_at.is_none()) {
            own.probed_at = Some(now);
            return Some(probe(self.mac, own.address));
        }
        if let Some(own) = self.own.iter_mut().find(|own| listens && !own.announced) {
            own.announced = true;
            return Some(announcement(self.mac, own.address));
        }
        self.solicit_at.filter(|at| *at <= now)?;
        self.solicit_at = Some(now + self.interval);
        self.interval = (self.interval * 2).min(SOLICITATION_INTERVAL_MAX);
        // Without a link-local address there is no IPv6 here (RFC 4862, section 5.4.5).
        Some(router_solicitation(self.mac, self.link_local()?))
    }

    /// When something changes, or is to be sent, by itself.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let prefixes = self.prefixes.iter().map(|prefix| prefix.valid_until);
        let others = self.routers.iter().chain(&self.servers).map(|kept| kept.until);
        prefixes.chain(others).chain(self.solicit_at).chain(self.starts_at).min()
    }
}

/// Remembers `address` in a list for `lifetime`; removes it if that is 0.
fn keep(list: &mut Vec<Kept>, count_max: usize, address: Ipv6Addr, now: Instant, lifetime: Duration) {
    if lifetime.is_zero() {
        return list.retain(|known| known.address != address);
    }
    let (until, seen_at) = (now + lifetime, now);
    if let Some(known) = list.iter_mut().find(|known| known.address == address) {
        (known.until, known.seen_at) = (until, seen_at);
        return;
    }
    if list.len() == count_max {
        let oldest = list.iter().enumerate().min_by_key(|(_, known)| known.seen_at);
        let Some((at, _)) = oldest.filter(|(_, known)| known.seen_at + SILENT_MAX <= now) else { return };
        list.remove(at);
    }
    list.push(Kept { address, until, seen_at });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discovery::message_in;

    const MAC: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 1]);
    const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 1);
    const START: Instant = Instant(0);
    const HOUR: Duration = Duration::from_secs(3600);

    fn router(number: u16) -> Ipv6Addr {
        Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, number)
    }

    fn prefix(number: u16) -> Ipv6Addr {
        Ipv6Addr::new(0x2001, 0xdb8, 0, number, 0, 0, 0, 0)
    }

    fn own(number: u16) -> Ipv6Addr {
        address_of(prefix(number), MAC)
    }

    /// With a link-local address, for which everything is sent.
    fn started() -> Autoconf {
        let mut autoconf = Autoconf::new(MAC, Ipv6::Auto, START);
        assert!(autoconf.advance(START + START_DELAY));
        while autoconf.next_frame(START + START_DELAY, true).is_some() {}
        autoconf
    }

    /// A prefix that is valid for some hours.
    fn prefix_option(number: u16, hours: u32) -> Vec<u8> {
        let seconds = (hours * 3600).to_be_bytes();
        [&[3, 4, 64, 0xc0][..], &seconds, &seconds, &[0; 4], &prefix(number).octets()].concat()
    }

    fn server_option(number: u16, hours: u32) -> Vec<u8> {
        [&[25, 3, 0, 0][..], &(hours * 3600).to_be_bytes(), &router(number).octets()].concat()
    }

    fn receive(autoconf: &mut Autoconf, now: Instant, router: Ipv6Addr, hours: u32, options: &[Vec<u8>]) {
        let options = options.concat();
        autoconf.receive(now, &RouterAdvert::new(router, HOUR * hours, &options));
    }

    fn addresses(autoconf: &Autoconf) -> Vec<Ipv6Addr> {
        autoconf.addresses().map(|(address, _)| address).collect()
    }

    #[test]
    fn an_advertisement_counts_until_its_end_and_nothing_else_changes_anything() {
        let mut autoconf = started();
        let begin = START + HOUR;
        let options = [prefix_option(1, 5), prefix_option(2, 6), server_option(1, 2)];
        receive(&mut autoconf, begin, router(1), 3, &options);
        receive(&mut autoconf, begin, router(2), 4, &[]);
        receive(&mut autoconf, begin, router(3), 4, &[]);
        let state = |autoconf: &Autoconf| {
            let servers: Vec<_> = autoconf.name_servers().collect();
            (servers.len(), autoconf.gateway(), addresses(autoconf).len())
        };
        let mut expected = (1, Some(router(1)), 3);
        // Each ends after so many hours.
        for (hours, after) in [
            (2, (0, Some(router(1)), 3)),
            (3, (0, Some(router(2)), 3)),
            (4, (0, None, 3)),
            (5, (0, None, 2)),
            (6, (0, None, 1)),
        ] {
            let end = begin + HOUR * hours;
            assert_eq!(autoconf.next_deadline(), Some(end));
            assert!(!autoconf.advance(Instant(end.0 - 1)));
            assert_eq!(state(&autoconf), expected);
            assert!(autoconf.advance(end));
            assert_eq!(state(&autoconf), after);
            expected = after;
        }
        assert_eq!(autoconf.next_deadline(), None);
    }

    #[test]
    fn what_is_remembered_is_bounded_and_a_lifetime_of_0_makes_room() {
        let mut autoconf = started();
        for number in 1..=5 {
            receive(&mut autoconf, START, router(number), 3, &[prefix_option(number, 3), server_option(number, 3)]);
        }
        let servers = |autoconf: &Autoconf| autoconf.name_servers().collect::<Vec<_>>();
        assert_eq!(servers(&autoconf), [router(1), router(2), router(3)]);
        assert_eq!(autoconf.routers.len(), 4);
        assert_eq!(addresses(&autoconf), [own(1), own(2), own(3), own(4), LINK_LOCAL]);
        receive(&mut autoconf, START, router(1), 0, &[server_option(2, 0)]);
        assert_eq!((autoconf.gateway(), servers(&autoconf)), (Some(router(2)), [router(1), router(3)].to_vec()));
        receive(&mut autoconf, START, router(5), 3, &[server_option(5, 3)]);
        assert_eq!((autoconf.routers.len(), servers(&autoconf)), (4, [router(1), router(3), router(5)].to_vec()));
        // A prefix that is not valid is not remembered either.
        let mut autoconf = started();
        receive(&mut autoconf, START, router(1), 3, &[prefix_option(1, 0)]);
        assert_eq!(addresses(&autoconf), [LINK_LOCAL]);
    }

    #[test]
    fn what_is_not_advertised_any_more_makes_room_for_what_is() {
        let mut autoconf = started();
        for number in 1..=4 {
            receive(
                &mut autoconf,
                START,
                router(number),
                2,
                &[prefix_option(number, 2000), server_option(number, 2000)],
            );
        }
        // One of them is advertised as a router does, and a new one is there too.
        let (mut now, end) = (START, START + SILENT_MAX);
        while now < end {
            now = (now + Duration::from_secs(600)).min(end);
            receive(&mut autoconf, now, router(2), 2, &[prefix_option(2, 2000), server_option(2, 2000)]);
            let before = addresses(&autoconf);
            receive(&mut autoconf, now, router(9), 2, &[prefix_option(9, 2000), server_option(9, 2000)]);
            assert_eq!(addresses(&autoconf) == before, now < end, "{now}");
        }
        assert_eq!(addresses(&autoconf), [own(2), own(3), own(4), own(9), LINK_LOCAL]);
        assert_eq!(autoconf.gateway(), Some(router(2)));
        assert_eq!(autoconf.name_servers().collect::<Vec<_>>(), [router(2), router(3), router(9)]);
        // One that is not to be used for new connections makes room at once, but not for another such one.
        let mut deprecated = prefix_option(3, 2000);
        deprecated[8..12].fill(0);
        receive(&mut autoconf, now, router(2), 2, &[deprecated.clone()]);
        let mut other = deprecated;
        other[16..32].copy_from_slice(&prefix(7).octets());
        receive(&mut autoconf, now, router(2), 2, &[other]);
        assert!(addresses(&autoconf).contains(&own(3)));
        receive(&mut autoconf, now, router(2), 2, &[prefix_option(8, 2000)]);
        assert_eq!(addresses(&autoconf), [own(2), own(4), own(9), own(8), LINK_LOCAL]);
    }

    #[test]
    fn an_address_can_be_contested_for_a_second_and_only_itself() {
        let mut autoconf = started();
        let probed = START + HOUR;
        receive(&mut autoconf, probed, router(1), 3, &[prefix_option(1, 3)]);
        assert!(autoconf.next_frame(probed, false).is_some());
        let last = Instant((probed + PROBE_TIME).0 - 1);
        assert!(!autoconf.contest(last, LINK_LOCAL), "it is older");
        assert!(!autoconf.contest(last, own(2)), "it is not ours");
        assert!(!autoconf.contest(probed + PROBE_TIME, own(1)));
        assert!(autoconf.contest(last, own(1)));
        assert_eq!(addresses(&autoconf), [LINK_LOCAL]);
    }

    #[test]
    fn addresses_are_probed_then_routers_requested_and_announced_once_something_listens() {
        let mut autoconf = Autoconf::new(MAC, Ipv6::Auto, START);
        let now = START + START_DELAY;
        assert!(!autoconf.has_frame(START, true));
        assert!(!autoconf.advance(Instant(now.0 - 1)) && autoconf.advance(now));
        let kind = |frame: Vec<u8>| frame[54];
        let mut send = |listens| {
            let has_frame = autoconf.has_frame(now, listens);
            let frame = autoconf.next_frame(now, listens);
            assert_eq!(has_frame, frame.is_some());
            frame.map(kind)
        };
        assert_eq!([false, false, false, true, true].map(&mut send), [Some(135), Some(133), None, Some(136), None]);
    }

    #[test]
    fn without_a_link_local_address_no_router_is_requested() {
        let mut autoconf = Autoconf::new(MAC, Ipv6::Auto, START);
        let now = START + START_DELAY;
        autoconf.advance(now);
        assert!(message_in(&autoconf.next_frame(now, false).unwrap()).is_some());
        assert!(autoconf.contest(now, LINK_LOCAL));
        assert_eq!(autoconf.next_frame(now, false), None);
        assert!(!autoconf.has_frame(now, false));
    }

    #[test]
    fn a_static_address_has_its_router_and_is_no_news() {
        let (address, gateway) = (Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2), Some(router(7)));
        let mut autoconf = Autoconf::new(MAC, Ipv6::Static { address, prefix_bits: 56, gateway }, START);
        receive(&mut autoconf, START, router(1), 3, &[prefix_option(1, 3), server_option(1, 3)]);
        assert_eq!(autoconf.addresses().collect::<Vec<_>>(), [(address, 56), (LINK_LOCAL, 64)]);
        assert_eq!((autoconf.gateway(), autoconf.name_servers().count()), (gateway, 0));
        assert_eq!(autoconf.take_notice(), None);
    }

    #[test]
    fn the_last_notices_wait_for_a_platform_that_takes_none() {
        let mut autoconf = started();
        for number in 1..=4 {
            receive(&mut autoconf, START, router(1), 3, &[prefix_option(number, 3)]);
            assert!(autoconf.contest(START, own(number)));
        }
        let notices = core::iter::from_fn(|| autoconf.take_notice()).collect::<Vec<_>>();
        let (gone, configured) = (Notice::Duplicate, Notice::Configured);
        assert_eq!(notices, [gone(own(2)), configured(own(3)), gone(own(3)), configured(own(4)), gone(own(4))]);
    }
}
