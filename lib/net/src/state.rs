//! The shared state of the two halves of the stack: connections, and smoltcp's interface for everything else.

use crate::autoconf::{Autoconf, Notice};
use crate::config::{Address, Config, Ipv6};
use crate::datagrams::Port;
use crate::dhcp::{Dhcp, Lease};
use crate::discovery::solicited_node;
use crate::handshakes::{Handshakes, WaitingSegments};
use crate::ingress::send_frame;
use crate::link::Link;
use crate::listeners::ListenerState;
use crate::names::Pending;
use crate::numbers::Numbers;
use crate::table::Table;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::net::{IpAddr, Ipv6Addr};
use core::task::Waker;
use core::time::Duration;
use glass_api::Instant;
use glass_lib_executor::sync::Notify;
use smoltcp::iface::{Interface, SocketHandle, SocketSet};
use smoltcp::phy::{DeviceCapabilities, TxToken};
use smoltcp::socket::dns;
use smoltcp::time;
use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr, Ipv4Cidr};

/// First ephemeral port (RFC 6335).
const EPHEMERAL_PORT_MIN: u16 = 49_152;
/// How long an IPv6 address is not reported as the network's while a DHCP server may give us an IPv4 address.
const DHCP_PATIENCE: Duration = Duration::from_secs(2);

/// Events of our IPv4 address that wait to be returned.
const LEASE_NOTICES_MAX: usize = 4;

/// What happened since the start. All of them only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections that were accepted.
    pub accepted: u64,
    /// SYNs without an answer because the listener's backlog was full.
    pub refused_backlog: u64,
    /// SYNs without an answer because of the bound on connections.
    pub refused_limit: u64,
    /// Connections that the peer reset.
    pub reset_by_peer: u64,
    /// Half-open connections that never opened.
    pub abandoned_opening: u64,
    /// Half-open connections that ended for newer ones.
    pub replaced_opening: u64,
    /// Closed connections that did not deliver their data in time, or whose peer kept sending.
    pub linger_cut: u64,
    /// Connections in TIME-WAIT that made room for new ones.
    pub time_wait_reclaimed: u64,
}

/// One of these per stack, behind an `Rc`.
pub(crate) struct Shared {
    pub(crate) state: RefCell<State>,
    /// Notified when our address changes.
    pub(crate) address_changed: Notify,
}

pub(crate) struct State {
    pub(crate) interface: Interface,
    /// What is between the interface's packets and the device's frames.
    pub(crate) link: Rc<RefCell<Link>>,
    /// Sockets that are not connections: the client of name servers, and the ports for datagrams.
    pub(crate) control: SocketSet<'static>,
    pub(crate) dhcp: Option<Dhcp>,
    /// Our IPv4 address, routes and, from DHCP, name servers.
    ipv4: Lease,
    /// What happened to our IPv4 address, and whether there was one of a DHCP server.
    pub(crate) lease_notices: Vec<Notice>,
    had_lease: bool,
    /// Our IPv6 addresses, and when the first one was there that other networks reach.
    pub(crate) ipv6: Option<Autoconf>,
    ipv6_since: Option<Instant>,
    /// The network was up at the end of the last poll.
    was_up: bool,
    /// The client of name servers, whether it has one, and its queries.
    pub(crate) names: SocketHandle,
    pub(crate) name_servers: Vec<IpAddress>,
    pub(crate) queries: Vec<Pending>,
    /// Who is woken when; see `names.rs`.
    pub(crate) alarms: BTreeMap<(Instant, u64), Waker>,
    pub(crate) config: Config,
    /// When the stack was made, and polled last.
    pub(crate) created: Instant,
    pub(crate) now: Instant,
    pub(crate) table: Table,
    /// Our address is new: announce it to the neighbours as soon as there is a listener.
    pub(crate) announce: bool,
    pub(crate) listeners: Vec<ListenerState>,
    pub(crate) listeners_made: u64,
    /// Connections whose handshake is not done.
    pub(crate) handshakes: Handshakes,
    pub(crate) numbers: Numbers,
    /// Ports that are open for datagrams.
    pub(crate) ports: Vec<Port>,
    pub(crate) ports_made: u64,
    /// Bytes that a frame carries after its Ethernet header, at most.
    pub(crate) mtu: usize,
    /// The first port that a peer wanted to reach without a listener, while there were others; and whether it was reported.
    pub(crate) missed: Option<(u16, bool)>,
    /// Segments that open connections and arrived while there was no room.
    pub(crate) waiting: WaitingSegments,
    pub(crate) counters: Counters,
    pub(crate) port_next: u16,
}

impl State {
    pub(crate) fn new(
        interface: Interface,
        capabilities: DeviceCapabilities,
        mac: EthernetAddress,
        mtu: usize,
        config: Config,
        mut numbers: Numbers,
        now: Instant,
    ) -> State {
        let mut control = SocketSet::new(Vec::new());
        let names = control.add(dns::Socket::new(&[], Vec::new()));
        let (ipv4, dhcp, ipv6) = begin(&config, mac, capabilities, &mut numbers, now);
        let port_next = first_port(&mut numbers);
        let mut state = State {
            interface,
            link: Rc::new(RefCell::new(Link::new(mac))),
            control,
            dhcp,
            ipv4,
            lease_notices: Vec::new(),
            had_lease: false,
            ipv6,
            ipv6_since: None,
            was_up: false,
            names,
            name_servers: Vec::new(),
            queries: Vec::new(),
            alarms: BTreeMap::new(),
            config,
            created: now,
            now,
            table: Table::default(),
            announce: true,
            listeners: Vec::new(),
            listeners_made: 0,
            handshakes: Handshakes::default(),
            numbers,
            ports: Vec::new(),
            ports_made: 0,
            mtu,
            missed: None,
            waiting: WaitingSegments::default(),
            counters: Counters::default(),
            port_next,
        };
        state.configure();
        state
    }

    /// Takes the addresses of another configuration, as at the start.
    pub(crate) fn move_to(&mut self, mac: EthernetAddress, config: Config, capabilities: DeviceCapabilities) {
        self.config = config;
        (self.ipv4, self.dhcp, self.ipv6) = begin(&self.config, mac, capabilities, &mut self.numbers, self.now);
        (self.had_lease, self.ipv6_since, self.announce) = (false, None, true);
        self.lease_notices.clear();
        self.link.borrow_mut().mac = mac;
        self.configure();
    }

    /// Whether our address is to be announced now: it is new, and there is a listener.
    pub(crate) fn wants_to_announce(&self) -> bool {
        self.announce && !self.listeners.is_empty()
    }

    /// Our address, once there is one: the IPv4 address if there are both.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        if let Some(ipv4) = self.ipv4.address {
            return Some(ipv4.address().into());
        }
        let is_due = self.ipv6_due().is_some_and(|at| at <= self.now);
        is_due.then(|| self.far_ipv6().map(IpAddr::from)).flatten()
    }

    /// When our IPv6 address is the network's, unless we have an IPv4 address then.
    fn ipv6_due(&self) -> Option<Instant> {
        self.ipv6_since.map(|since| if self.dhcp.is_some() { since + DHCP_PATIENCE } else { since })
    }

    /// When the network is up by itself.
    pub(crate) fn next_up(&self) -> Option<Instant> {
        self.ipv6_due().filter(|_| !self.was_up && self.ipv4.address.is_none())
    }

    /// Whether the network has become up, or down.
    pub(crate) fn has_changed(&mut self) -> bool {
        let is_up = self.address().is_some();
        core::mem::replace(&mut self.was_up, is_up) != is_up
    }

    /// The IPv6 address that other networks reach.
    pub(crate) fn far_ipv6(&self) -> Option<Ipv6Addr> {
        self.ipv6.as_ref()?.addresses().map(|(address, _)| address).find(|address| !address.is_unicast_link_local())
    }

    /// Whether we have an address of the kind that reaches `remote`.
    pub(crate) fn can_reach(&self, remote: IpAddress) -> bool {
        match remote {
            IpAddress::Ipv4(_) => self.ipv4.address.is_some(),
            IpAddress::Ipv6(remote) if remote.is_loopback() => false,
            IpAddress::Ipv6(remote) if remote.is_unicast_link_local() || remote.is_multicast() => self.ipv6.is_some(),
            IpAddress::Ipv6(_) => self.far_ipv6().is_some(),
        }
    }

    /// Applies what a DHCP server has given us; returns whether that changed something. Connections from an address end with it.
    pub(crate) fn poll_dhcp(&mut self) -> bool {
        let Some(lease) = self.dhcp.as_mut().and_then(Dhcp::poll) else { return false };
        let address = |lease: &Lease| lease.address.map(|address| address.address());
        let (before, after) = (address(&self.ipv4), address(&lease));
        if before != after {
            self.announce = true;
            self.lease_notices.extend(before.map(Notice::Lost));
            self.lease_notices.extend(after.filter(|_| self.had_lease).map(Notice::Regained));
            // Those of two changes at most, if the platform takes none.
            let excess = self.lease_notices.len().saturating_sub(LEASE_NOTICES_MAX);
            self.lease_notices.drain(..excess);
        }
        self.had_lease |= after.is_some();
        self.ipv4 = lease;
        self.configure();
        true
    }

    /// Takes the first IPv6 address when it is time, and removes addresses, routers and name servers that are not valid any more; returns
    /// whether that changed something.
    pub(crate) fn poll_ipv6(&mut self) -> bool {
        let changed = self.ipv6.as_mut().is_some_and(|ipv6| ipv6.advance(self.now));
        if changed {
            self.configure();
        }
        changed
    }

    /// Whether a message of neighbour discovery is to be sent.
    pub(crate) fn wants_to_discover(&self) -> bool {
        let listens = !self.listeners.is_empty();
        self.ipv6.as_ref().is_some_and(|ipv6| ipv6.has_frame(self.now, listens))
    }

    /// Sends one in `transmit`'s frame. Returns whether it did.
    pub(crate) fn discover(&mut self, transmit: impl TxToken) -> bool {
        let listens = !self.listeners.is_empty();
        let frame = self.ipv6.as_mut().and_then(|ipv6| ipv6.next_frame(self.now, listens));
        if let Some(frame) = &frame {
            send_frame(transmit, frame);
        }
        frame.is_some()
    }

    /// Makes smoltcp's addresses, routes and name servers the ones that we have.
    pub(crate) fn configure(&mut self) {
        let ipv6 = self.ipv6.as_ref();
        let own_ipv6 = ipv6.into_iter().flat_map(Autoconf::addresses);
        let own_ipv6 = own_ipv6.map(|(address, bits)| IpCidr::new(address.into(), bits));
        let addresses: Vec<IpCidr> = self.ipv4.address.map(IpCidr::Ipv4).into_iter().chain(own_ipv6).collect();
        if addresses != self.interface.ip_addrs() {
            // There is room for the groups of as many (feature `iface-max-multicast-group-count-8`).
            for group in groups(self.interface.ip_addrs()) {
                let _ = self.interface.leave_multicast_group(group);
            }
            for group in groups(&addresses) {
                let _ = self.interface.join_multicast_group(group);
            }
            self.interface.update_ip_addrs(|list| {
                list.clear();
                // There is room for as many as there can be (feature `iface-max-addr-count-6`).
                list.extend(addresses.iter().copied().take(list.capacity()));
            });
        }
        for (_, connection) in self.table.iter_mut() {
            if !addresses.iter().any(|own| own.address() == connection.ends.local.addr) {
                connection.tcp.expire();
                connection.wake();
            }
        }
        let mut link = self.link.borrow_mut();
        link.set_addresses(&addresses);
        link.routes.configured.clone_from(&self.ipv4.routes);
        link.routes.gateway_v4 = self.ipv4.router;
        link.routes.gateway_v6 = ipv6.and_then(Autoconf::gateway);
        drop(link);

        let servers: Vec<IpAddress> = match self.config.name_servers.as_slice() {
            [] => {
                let advertised = ipv6.into_iter().flat_map(Autoconf::name_servers);
                self.ipv4.name_servers.iter().copied().chain(advertised.map(IpAddress::Ipv6)).collect()
            }
            given => given.iter().copied().map(IpAddress::from).collect(),
        };
        self.set_name_servers(servers);
        self.ipv6_since = self.far_ipv6().map(|_| self.ipv6_since.unwrap_or(self.now));
        self.table.touch_all();
    }

    /// An unused port.
    pub(crate) fn free_port(&mut self) -> Option<u16> {
        for _ in EPHEMERAL_PORT_MIN..=u16::MAX {
            let port = self.port_next;
            self.port_next = if port == u16::MAX { EPHEMERAL_PORT_MIN } else { port + 1 };
            let listening = self.listeners.iter().any(|listener| listener.port == port);
            if !listening && !self.has_port(port) && !self.table.uses_port(port) {
                return Some(port);
            }
        }
        None
    }
}

/// What gives a stack its addresses: its IPv4 address if it is fixed, or else the client of DHCP, and IPv6's configuration.
fn begin(
    config: &Config,
    mac: EthernetAddress,
    capabilities: DeviceCapabilities,
    numbers: &mut Numbers,
    now: Instant,
) -> (Lease, Option<Dhcp>, Option<Autoconf>) {
    let mut ipv4 = Lease::default();
    let mut dhcp = None;
    match config.address {
        Address::Dhcp => dhcp = Some(Dhcp::new(mac, capabilities, numbers.next(), now)),
        Address::Static { address, prefix_bits, gateway } => {
            (ipv4.address, ipv4.router) = (Some(Ipv4Cidr::new(address, prefix_bits)), gateway);
        }
    }
    (ipv4, dhcp, (config.ipv6 != Ipv6::Off).then(|| Autoconf::new(mac, config.ipv6, now)))
}

/// A port that is used first, which a peer cannot guess.
pub(crate) fn first_port(numbers: &mut Numbers) -> u16 {
    EPHEMERAL_PORT_MIN + (numbers.next() >> 48) as u16 % (u16::MAX - EPHEMERAL_PORT_MIN)
}

/// The groups in which neighbours expect hosts with these addresses, for switches that filter frames (RFC 4291, section 2.8).
fn groups(addresses: &[IpCidr]) -> Vec<Ipv6Addr> {
    let ipv6 = addresses.iter().filter_map(|own| if let IpCidr::Ipv6(own) = own { Some(own.address()) } else { None });
    ipv6.map(solicited_node).collect()
}

pub(crate) fn to_smoltcp(now: Instant) -> time::Instant {
    time::Instant::from_micros(i64::try_from(now.0 / 1000).unwrap_or(i64::MAX))
}

pub(crate) fn from_smoltcp(at: time::Instant) -> Instant {
    Instant(u64::try_from(at.total_micros()).unwrap_or(0).saturating_mul(1000))
}
