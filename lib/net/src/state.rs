//! The shared state of the two halves of the stack: smoltcp's interface and sockets, and our tables of them.

use crate::config::{Address, Config};
use crate::datagrams::Port;
use crate::half_open::Handshakes;
use crate::listeners::ListenerState;
use crate::refused::Refused;
use crate::table::Table;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::net::IpAddr;
use glass_api::Instant;
use glass_executor::sync::Notify;
use smoltcp::iface::{Interface, SocketHandle, SocketSet};
use smoltcp::socket::{dhcpv4, dns};
use smoltcp::time;
use smoltcp::wire::{IpAddress, IpCidr, Ipv4Address};

/// First ephemeral port (RFC 6335).
const EPHEMERAL_PORT_MIN: u16 = 49_152;

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
    /// Sockets that are not connections: the clients of DHCP and of name servers, and the ports for datagrams.
    pub(crate) control: SocketSet<'static>,
    dhcp: Option<SocketHandle>,
    /// The client of name servers, whether it has one, and its queries.
    pub(crate) names: SocketHandle,
    pub(crate) has_name_server: bool,
    pub(crate) queries: usize,
    pub(crate) config: Config,
    /// When the stack was polled last.
    pub(crate) now: Instant,
    pub(crate) table: Table,
    /// Our address is new: announce it to the neighbours as soon as there is a listener.
    pub(crate) announce: bool,
    /// The device merges frames, so each one is acknowledged without delay.
    pub(crate) large_frames: bool,
    pub(crate) listeners: Vec<ListenerState>,
    pub(crate) listeners_made: u64,
    /// Connections whose handshake is not done.
    pub(crate) handshakes: Handshakes,
    /// Where the seeds of handshakes come from.
    seeds: u64,
    /// Ports that are open for datagrams.
    pub(crate) ports: Vec<Port>,
    /// Bytes that a frame carries after its Ethernet header, at most.
    pub(crate) mtu: usize,
    /// The first port that a peer wanted to reach without a listener, while there were others; and whether it was reported.
    pub(crate) missed: Option<(u16, bool)>,
    /// SYNs that arrived while there was no room.
    pub(crate) refused: Refused,
    pub(crate) counters: Counters,
    port_next: u16,
}

impl State {
    pub(crate) fn new(mut interface: Interface, mtu: usize, config: Config, seed: u64, now: Instant) -> State {
        let mut control = SocketSet::new(Vec::new());
        let names = control.add(dns::Socket::new(&[], Vec::new()));
        let mut dhcp = None;
        match config.address {
            Address::Dhcp => {
                let mut socket = dhcpv4::Socket::new();
                let mut retry = dhcpv4::RetryConfig::default();
                // A local network answers in milliseconds; the defaults (10 s, 5 s) would let one lost
                // frame delay a start by seconds.
                retry.discover_timeout = time::Duration::from_secs(1);
                retry.initial_request_timeout = time::Duration::from_secs(1);
                socket.set_retry_config(retry);
                dhcp = Some(control.add(socket));
            }
            Address::Static { address, prefix_bits, gateway } => {
                set_address(&mut interface, Some(IpCidr::new(address.into(), prefix_bits)));
                set_gateway(&mut interface, gateway.map(IpAddress::from));
            }
        }
        let port_next = EPHEMERAL_PORT_MIN + (seed >> 48) as u16 % (u16::MAX - EPHEMERAL_PORT_MIN);
        let mut state = State {
            interface,
            control,
            dhcp,
            names,
            has_name_server: false,
            queries: 0,
            config,
            now,
            table: Table::default(),
            announce: true,
            large_frames: false,
            listeners: Vec::new(),
            listeners_made: 0,
            handshakes: Handshakes::default(),
            seeds: seed,
            ports: Vec::new(),
            mtu,
            missed: None,
            refused: Refused::default(),
            counters: Counters::default(),
            port_next,
        };
        let servers = state.config.name_servers.clone();
        state.set_name_servers(servers.into_iter().map(IpAddress::from));
        state
    }

    /// Whether our address is to be announced now: it is new, and there is a listener.
    pub(crate) fn wants_to_announce(&self) -> bool {
        self.announce && !self.listeners.is_empty()
    }

    /// Our address, once there is one.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.interface.ip_addrs().first().map(|cidr| cidr.address().into())
    }

    /// Applies the DHCP client's configuration; returns whether our address changed.
    pub(crate) fn poll_dhcp(&mut self) -> bool {
        let Some(dhcp) = self.dhcp else { return false };
        match self.control.get_mut::<dhcpv4::Socket>(dhcp).poll() {
            None => return false,
            Some(dhcpv4::Event::Configured(lease)) => {
                let address = IpCidr::Ipv4(lease.address);
                let gateway = lease.router.map(IpAddress::Ipv4);
                let servers = lease.dns_servers;
                if !self.interface.ip_addrs().contains(&address) {
                    set_address(&mut self.interface, Some(address));
                    self.announce = true;
                }
                set_gateway(&mut self.interface, gateway);
                if self.config.name_servers.is_empty() {
                    self.set_name_servers(servers.into_iter().map(IpAddress::Ipv4));
                }
            }
            Some(dhcpv4::Event::Deconfigured) => {
                // Connections from the old address end with it: smoltcp resets them.
                set_address(&mut self.interface, None);
                set_gateway(&mut self.interface, None);
            }
        }
        self.table.touch_all();
        true
    }

    /// A number that is hard to guess (SplitMix64).
    pub(crate) fn next_seed(&mut self) -> u64 {
        self.seeds = self.seeds.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.seeds ^ (self.seeds >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
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

fn set_address(interface: &mut Interface, address: Option<IpCidr>) {
    interface.update_ip_addrs(|addresses| {
        addresses.clear();
        // smoltcp would panic on invalid data of a DHCP server.
        let address = address.filter(|address| address.address().is_unicast());
        // The list has room for eight and is empty.
        addresses.extend(address);
    });
}

fn set_gateway(interface: &mut Interface, gateway: Option<IpAddress>) {
    let routes = interface.routes_mut();
    routes.remove_default_ipv4_route();
    routes.remove_default_ipv6_route();
    // The table has room for four routes and holds ours only.
    let _ = match gateway {
        Some(IpAddress::Ipv4(gateway)) if is_unicast(gateway) => routes.add_default_ipv4_route(gateway).is_ok(),
        Some(IpAddress::Ipv6(gateway)) => routes.add_default_ipv6_route(gateway).is_ok(),
        _ => false,
    };
}

fn is_unicast(address: Ipv4Address) -> bool {
    IpAddress::Ipv4(address).is_unicast()
}

pub(crate) fn to_smoltcp(now: Instant) -> time::Instant {
    time::Instant::from_micros(i64::try_from(now.0 / 1000).unwrap_or(i64::MAX))
}

pub(crate) fn from_smoltcp(at: time::Instant) -> Instant {
    Instant(u64::try_from(at.total_micros()).unwrap_or(0).saturating_mul(1000))
}

pub(crate) fn to_smoltcp_duration(duration: core::time::Duration) -> time::Duration {
    time::Duration::from_micros(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
}
