//! Our IPv6 addresses, and the routers and name servers of the network: stateless address autoconfiguration (RFC 4862) and router
//! discovery (RFC 4861, section 6.3; RFC 8106), without I/O.
//!
//! Everything that an advertisement contains is bounded, and so is how often it changes our addresses, because smoltcp forgets its
//! neighbours when they change: a prefix is added, deprecated and removed once, and remains for two hours at least.
//!
//! An address is used at once, while we check whether another host has it; if so, we give it up (optimistic duplicate address detection,
//! RFC 4429). The last 64 bits of our addresses are made of the network card's address.

use crate::config::Ipv6;
use crate::discovery::{PrefixOption, RouterAdvert, announcement, probe, router_solicitation};
use alloc::vec::Vec;
use core::net::Ipv6Addr;
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
const PREFIX_BITS: u8 = 64;

/// What happened to our addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
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
    routers: Vec<(Ipv6Addr, Instant)>,
    servers: Vec<(Ipv6Addr, Instant)>,
    own: Vec<Own>,
    /// Addresses that other hosts have.
    duplicates: Vec<Ipv6Addr>,
    notices: Vec<Notice>,
}

struct Prefix {
    /// With zeros for our part.
    prefix: Ipv6Addr,
    on_link: bool,
    /// Not for new connections, once it was advertised as such.
    deprecated: bool,
    valid_until: Instant,
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
            _ => self.routers.first().map(|(address, _)| *address),
        }
    }

    pub(crate) fn name_servers(&self) -> impl Iterator<Item = Ipv6Addr> {
        self.servers.iter().map(|(address, _)| *address)
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
        let is_full = self.prefixes.len() == PREFIXES_MAX;
        match self.prefixes.iter_mut().find(|known| known.prefix == prefix) {
            Some(known) => {
                known.valid_until = valid_until.max(known.valid_until.min(now + VALID_MIN));
                known.deprecated |= option.preferred.is_zero();
            }
            None if option.valid.is_zero() || is_full => {}
            None => self.prefixes.push(Prefix {
                prefix,
                on_link: option.on_link,
                deprecated: option.preferred.is_zero(),
                valid_until: valid_until.max(now + VALID_MIN),
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
        self.routers.retain(|(_, until)| now < *until);
        self.servers.retain(|(_, until)| now < *until);
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
        let others = self.routers.iter().chain(&self.servers).map(|(_, until)| *until);
        prefixes.chain(others).chain(self.solicit_at).chain(self.starts_at).min()
    }
}

/// Remembers `address` in a list for `lifetime`; removes it if that is 0.
fn keep(list: &mut Vec<(Ipv6Addr, Instant)>, count_max: usize, address: Ipv6Addr, now: Instant, lifetime: Duration) {
    if lifetime.is_zero() {
        list.retain(|(known, _)| *known != address);
    } else if let Some((_, until)) = list.iter_mut().find(|(known, _)| *known == address) {
        *until = now + lifetime;
    } else if list.len() < count_max {
        list.push((address, now + lifetime));
    }
}
