//! Which host a packet is sent to next.

use alloc::vec::Vec;
use core::net::IpAddr;
use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr, Ipv4Address, Ipv4Cidr, Ipv6Address};

/// Routes of a DHCP server that are used, the first ones.
const ROUTES_MAX: usize = 16;

/// Where packets to an address are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hop {
    /// To several hosts, at this hardware address.
    Group(EthernetAddress),
    /// To this host, the receiver or a router.
    Neighbour(IpAddr),
    /// There is no way.
    None,
}

/// A route of IPv4 (RFC 3442).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) prefix: Ipv4Cidr,
    /// The router; `None` if the prefix's hosts are neighbours.
    pub(crate) router: Option<Ipv4Address>,
}

/// All routes.
#[derive(Default)]
pub(crate) struct Routes {
    /// Ours, with the prefixes of our neighbours.
    pub(crate) addresses: Vec<IpCidr>,
    /// Further routes.
    pub(crate) configured: Vec<Route>,
    /// The routers for everything else; any neighbour can be one, whether in one of our prefixes or not.
    pub(crate) gateway_v4: Option<Ipv4Address>,
    pub(crate) gateway_v6: Option<Ipv6Address>,
}

impl Routes {
    pub(crate) fn hop(&self, destination: IpAddress) -> Hop {
        if let Some(mac) = Routes::group(destination) {
            return Hop::Group(mac);
        }
        let is_own = self.addresses.iter().any(|own| own.address() == destination);
        if is_own || destination.is_unspecified() {
            return Hop::None;
        }
        match destination {
            IpAddress::Ipv4(destination) => self.hop_v4(destination),
            IpAddress::Ipv6(destination) => self.hop_v6(destination),
        }
    }

    fn hop_v4(&self, destination: Ipv4Address) -> Hop {
        let own = self.addresses.iter().filter_map(|own| if let IpCidr::Ipv4(own) = own { Some(*own) } else { None });
        if own.clone().any(|own| own.broadcast() == Some(destination)) {
            return Hop::Group(EthernetAddress::BROADCAST);
        }
        if destination.is_loopback() {
            return Hop::None;
        }
        let near = own.filter(|own| own.prefix_len() < 32).map(|prefix| Route { prefix, router: None });
        let routes =
            near.chain(self.configured.iter().copied()).filter(|route| route.prefix.contains_addr(&destination));
        let router = match routes.max_by_key(|route| route.prefix.prefix_len()) {
            Some(route) => route.router,
            None if self.gateway_v4.is_none() => return Hop::None,
            None => self.gateway_v4,
        };
        Hop::Neighbour(router.unwrap_or(destination).into())
    }

    fn hop_v6(&self, destination: Ipv6Address) -> Hop {
        if destination.is_loopback() {
            return Hop::None;
        }
        let is_near = |own: &IpCidr| match own {
            IpCidr::Ipv6(own) => own.prefix_len() < 128 && own.contains_addr(&destination),
            IpCidr::Ipv4(_) => false,
        };
        if destination.is_unicast_link_local() || self.addresses.iter().any(is_near) {
            return Hop::Neighbour(destination.into());
        }
        self.gateway_v6.map_or(Hop::None, |router| Hop::Neighbour(router.into()))
    }

    /// Whether a host can be the next one on a packet's way.
    pub(crate) fn is_neighbour(&self, address: IpAddr) -> bool {
        self.hop(address.into()) == Hop::Neighbour(address)
            || self.gateway_v4.is_some_and(|router| address == IpAddr::V4(router))
            || self.gateway_v6.is_some_and(|router| address == IpAddr::V6(router))
            || self.configured.iter().any(|route| route.router.is_some_and(|router| address == IpAddr::V4(router)))
    }

    /// Our address for requests to a neighbour: one with its prefix, if there is one.
    pub(crate) fn source(&self, neighbour: IpAddr) -> Option<IpAddr> {
        let neighbour = IpAddress::from(neighbour);
        let ours = || self.addresses.iter().filter(|own| own.address().version() == neighbour.version());
        let near = ours().find(|own| own.contains_addr(&neighbour));
        near.or_else(|| ours().next_back()).map(|own| own.address().into())
    }

    /// The hardware address of a group of hosts (RFC 1112, section 6.4; RFC 2464, section 7).
    pub(crate) fn group(destination: IpAddress) -> Option<EthernetAddress> {
        match destination {
            IpAddress::Ipv4(address) if address.is_broadcast() => Some(EthernetAddress::BROADCAST),
            IpAddress::Ipv4(address) if address.is_multicast() => {
                let [_, a, b, c] = address.octets();
                Some(EthernetAddress([1, 0, 0x5e, a & 0x7f, b, c]))
            }
            IpAddress::Ipv6(address) if address.is_multicast() => {
                let [.., a, b, c, d] = address.octets();
                Some(EthernetAddress([0x33, 0x33, a, b, c, d]))
            }
            _ => None,
        }
    }
}

/// The routes in the value of a DHCP server's option 121, if it is valid: for each one a prefix length, as many bytes of the prefix
/// as that needs, and a router, which is 0.0.0.0 for neighbours (RFC 3442).
pub(crate) fn classless_routes(mut bytes: &[u8]) -> Option<Vec<Route>> {
    let mut routes = Vec::new();
    while let Some((&bits, rest)) = bytes.split_first() {
        let (prefix, rest) = rest.split_at_checked(usize::from(bits).div_ceil(8)).filter(|_| bits <= 32)?;
        let (router, rest) = rest.split_first_chunk::<4>()?;
        let mut address = [0; 4];
        address[..prefix.len()].copy_from_slice(prefix);
        let router = Some(Ipv4Address::from(*router)).filter(|router| !router.is_unspecified());
        if router.is_none_or(|router| IpAddress::from(router).is_unicast() && !router.is_loopback()) {
            routes.push(Route { prefix: Ipv4Cidr::new(address.into(), bits).network(), router });
        }
        bytes = rest;
    }
    routes.truncate(ROUTES_MAX);
    Some(routes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTER: Ipv4Address = Ipv4Address::new(10, 156, 0, 1);

    fn v4(text: &str) -> Ipv4Address {
        text.parse().unwrap()
    }

    fn hop(routes: &Routes, destination: &str) -> Hop {
        routes.hop(destination.parse::<IpAddr>().unwrap().into())
    }

    fn neighbour(address: &str) -> Hop {
        Hop::Neighbour(address.parse().unwrap())
    }

    fn own(address: &str, bits: u8) -> IpCidr {
        IpCidr::new(address.parse::<IpAddr>().unwrap().into(), bits)
    }

    #[test]
    fn a_router_may_be_outside_of_every_prefix() {
        let routes =
            Routes { addresses: [own("10.156.0.18", 32)].into(), gateway_v4: Some(ROUTER), ..Routes::default() };
        for destination in ["192.0.2.7", "10.156.0.19", "10.156.0.1"] {
            assert_eq!(hop(&routes, destination), neighbour("10.156.0.1"));
        }
        assert!(routes.is_neighbour(ROUTER.into()) && !routes.is_neighbour(v4("10.156.0.19").into()));
        assert_eq!(routes.source(ROUTER.into()), Some(v4("10.156.0.18").into()));
        let far = "2001:db8:1::1".parse().ok();
        let routes = Routes { addresses: [own("fd00::2", 128)].into(), gateway_v6: far, ..Routes::default() };
        assert_eq!(hop(&routes, "fd00::3"), neighbour("2001:db8:1::1"));
        assert!(routes.is_neighbour(IpAddr::from(far.unwrap())));
    }

    #[test]
    fn groups_neighbours_and_others() {
        let addresses = [own("10.0.0.2", 24), own("fd00::2", 64), own("fe80::2", 64)].into();
        let mut routes = Routes { addresses, ..Routes::default() };
        assert_eq!(hop(&routes, "10.0.0.9"), neighbour("10.0.0.9"));
        for nowhere in ["10.0.1.9", "10.0.0.2", "127.0.0.1", "0.0.0.0", "2001:db8::1", "::1", "::", "fe80::2"] {
            assert_eq!(hop(&routes, nowhere), Hop::None, "{nowhere}");
        }
        for broadcast in ["10.0.0.255", "255.255.255.255"] {
            assert_eq!(hop(&routes, broadcast), Hop::Group(EthernetAddress::BROADCAST));
        }
        assert_eq!(hop(&routes, "224.129.2.3"), Hop::Group(EthernetAddress([1, 0, 0x5e, 1, 2, 3])));
        assert_eq!(hop(&routes, "ff02::1:ff00:2"), Hop::Group(EthernetAddress([0x33, 0x33, 0xff, 0, 0, 2])));
        for near in ["fd00::9", "fe80::9"] {
            assert_eq!(hop(&routes, near), neighbour(near));
        }
        routes.gateway_v6 = "fe80::1".parse().ok();
        assert_eq!(hop(&routes, "2001:db8::1"), neighbour("fe80::1"));
        assert_eq!(routes.source("fe80::9".parse().unwrap()), "fe80::2".parse().ok());
        assert_eq!(routes.source("2001:db8:1::1".parse().unwrap()), "fe80::2".parse().ok());
    }

    #[test]
    fn the_longest_prefix_counts() {
        let configured = [
            Route { prefix: Ipv4Cidr::new(v4("10.0.0.0"), 8), router: Some(v4("10.0.0.7")) },
            Route { prefix: Ipv4Cidr::new(v4("10.9.0.0"), 16), router: None },
        ];
        let addresses = [own("10.0.0.2", 24)].into();
        let routes =
            Routes { addresses, configured: configured.into(), gateway_v4: Some(v4("10.0.0.1")), gateway_v6: None };
        assert_eq!(hop(&routes, "10.0.0.9"), neighbour("10.0.0.9"));
        assert_eq!(hop(&routes, "10.1.0.9"), neighbour("10.0.0.7"));
        assert_eq!(hop(&routes, "10.9.0.9"), neighbour("10.9.0.9"));
        assert_eq!(hop(&routes, "11.9.0.9"), neighbour("10.0.0.1"));
    }

    #[test]
    fn routes_of_a_server_are_read_as_they_are_or_not_at_all() {
        // Google's cloud: the router is a neighbour, and everything else is behind it.
        let option = [32, 10, 156, 0, 1, 0, 0, 0, 0, 0, 10, 156, 0, 1];
        let routes = classless_routes(&option).unwrap();
        assert_eq!(routes[0], Route { prefix: Ipv4Cidr::new(ROUTER, 32), router: None });
        assert_eq!(routes[1], Route { prefix: Ipv4Cidr::new(Ipv4Address::UNSPECIFIED, 0), router: Some(ROUTER) });
        for bytes in (1..option.len()).filter(|bytes| *bytes != 9) {
            assert_eq!(classless_routes(&option[..bytes]), None, "{bytes} bytes");
        }
        assert_eq!(classless_routes(&[33, 10, 156, 0, 1, 0, 0, 0, 0, 0]), None);
        assert_eq!(classless_routes(&[0, 224, 0, 0, 1]), Some(Vec::new()), "no host is such a router");
        assert_eq!(classless_routes(&[0, 10, 0, 0, 1].repeat(100)).map(|routes| routes.len()), Some(ROUTES_MAX));
    }
}
