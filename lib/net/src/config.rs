//! The configuration of a stack: addresses, sizes, bounds and times.

use alloc::vec::Vec;
use core::fmt;
use core::net::IpAddr;
use core::time::Duration;
use smoltcp::wire::{EthernetAddress, IpAddress};

/// Where our address comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Address {
    /// Request one by DHCP, repeatedly until a server answers.
    Dhcp,
    /// Use this one.
    Static {
        /// Our address.
        address: IpAddr,
        /// Leading bits that our network has in common: 24 for 255.255.255.0.
        prefix_bits: u8,
        /// The router for other networks.
        gateway: Option<IpAddr>,
    },
}

/// How the sending rate reacts to loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Congestion {
    /// Send as much as the peer's window takes. Twice as fast for 2 MB over a network without faults,
    /// and useless where a queue is shorter than the window (`platform/sim/examples/congestion.rs`,
    /// 2026-11-21: 2 MB at 10 MB/s with a queue of 60 kB take 1.2 s with Reno and over 1000 s without).
    None,
    /// RFC 5681, with bytes counted as in RFC 3465. The default.
    Reno,
}

/// Sizes, bounds and times of a [`crate::Stack`]. Start from [`Config::for_memory`].
#[derive(Debug, Clone)]
pub struct Config {
    /// Where our address comes from.
    pub address: Address,
    /// Name servers, in the order in which they are tried; the first three. If there are none, those of the DHCP server are used.
    pub name_servers: Vec<IpAddr>,
    /// Receive window of a connection, at least. Rounded down to 65,535 times a power of two; see
    /// [`Config::window_bytes`].
    pub receive_bytes: usize,
    /// Data of a connection that may wait to be sent or acknowledged, at least.
    pub send_bytes: usize,
    /// Memory by which the buffers of all connections together may exceed these sizes. A new one takes half of what is left, so that few
    /// connections have buffers of up to 1 MiB each way.
    pub spare_bytes: usize,
    /// Bytes of datagrams that each of a port's two queues holds.
    pub datagram_bytes: usize,
    /// Connections that may exist at the same time, including those being opened and closed. Each costs
    /// `receive_bytes + send_bytes`, and its part of `spare_bytes`. A SYN beyond this number is not answered, so that the peer retransmits it.
    pub connections_max: usize,
    /// Connections of one listener that may be half open or wait to be accepted. A SYN beyond this
    /// number is not answered.
    pub backlog_max: usize,
    /// How the sending rate reacts to loss.
    pub congestion: Congestion,
    /// A peer that is silent for so long is gone. Idle peers get four keep-alive probes in this period.
    pub peer_timeout: Duration,
    /// How long a connection may take to open, in both directions.
    pub open_timeout: Duration,
    /// How long a closed connection without progress may try to deliver its data.
    pub linger_timeout: Duration,
    /// The same, regardless of progress.
    pub linger_max: Duration,
}

const KIB: usize = 1024;
/// Largest value of the window field of a TCP header.
const WINDOW_FIELD_MAX: usize = 65_535;
/// A buffer takes no spare memory beyond this: 16 of the longest frames.
const SPARE_BUFFER_MAX: usize = 1024 * KIB;

impl Config {
    /// Sizes for a machine with `memory_bytes`, of which at most a quarter goes to buffers of 64 KiB for each connection, and an eighth to
    /// longer ones.
    pub fn for_memory(address: Address, memory_bytes: usize) -> Config {
        let window = 64 * KIB;
        let count = memory_bytes / 4 / (2 * window);
        Config {
            address,
            name_servers: Vec::new(),
            receive_bytes: window,
            send_bytes: window,
            spare_bytes: memory_bytes / 8,
            datagram_bytes: (memory_bytes / 256).clamp(64 * KIB, 1024 * KIB),
            connections_max: count.clamp(8, 1024),
            backlog_max: (count / 2).clamp(8, 512),
            congestion: Congestion::Reno,
            peer_timeout: Duration::from_secs(60),
            open_timeout: Duration::from_secs(10),
            linger_timeout: Duration::from_secs(30),
            linger_max: Duration::from_secs(300),
        }
    }

    /// The receive window of a connection without spare memory.
    ///
    /// smoltcp 0.14.0 sends the window of a SYN unscaled, as the protocol requires, but remembers it as
    /// if it had been scaled. A window of exactly `65535 << scale` makes both readings the same.
    /// With another size a peer could write beyond the buffer's end and trigger an assertion.
    pub fn window_bytes(&self) -> usize {
        whole_window(self.receive_bytes)
    }

    /// The sizes of a new connection's receive and send buffers, and how much of them is spare memory, if others use `spare_in_use` bytes
    /// of that.
    pub(crate) fn sizes(&self, spare_in_use: usize) -> (usize, usize, usize) {
        let share = self.spare_bytes.saturating_sub(spare_in_use) / 4;
        let longest = |least: usize| (least + share).min(SPARE_BUFFER_MAX.max(least));
        let (least_receive, least_send) = (self.window_bytes(), self.send_bytes.max(1));
        let (receive, send) = (whole_window(longest(self.receive_bytes)), longest(least_send));
        (receive, send, receive - least_receive + send - least_send)
    }

    pub(crate) fn check(&self, mac: EthernetAddress) -> Result<(), ConfigError> {
        if !mac.is_unicast() {
            return Err(ConfigError::Mac(mac.0));
        }
        let Address::Static { address, prefix_bits, gateway } = self.address else { return Ok(()) };
        let bits_max = if address.is_ipv4() { 32 } else { 128 };
        if !IpAddress::from(address).is_unicast() {
            return Err(ConfigError::NotUnicast(address));
        }
        if prefix_bits > bits_max {
            return Err(ConfigError::Prefix { prefix_bits, bits_max });
        }
        match gateway {
            Some(gateway) if !IpAddress::from(gateway).is_unicast() => Err(ConfigError::NotUnicast(gateway)),
            Some(gateway) if gateway.is_ipv4() != address.is_ipv4() => Err(ConfigError::Gateway(gateway)),
            _ => Ok(()),
        }
    }
}

fn whole_window(bytes: usize) -> usize {
    let window = bytes.clamp(1, 1 << 29);
    if window <= WINDOW_FIELD_MAX {
        return window;
    }
    WINDOW_FIELD_MAX << (window / WINDOW_FIELD_MAX).ilog2()
}

/// Why a stack cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigError {
    /// The device's address is a multicast or unspecified address.
    Mac([u8; 6]),
    /// An address is multicast or unspecified.
    NotUnicast(IpAddr),
    /// A prefix is longer than the address.
    Prefix {
        /// The prefix that was given.
        prefix_bits: u8,
        /// Bits of the address.
        bits_max: u8,
    },
    /// The gateway's address is of another family than ours.
    Gateway(IpAddr),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            ConfigError::Mac(mac) => {
                write!(f, "the network device's address {} cannot be a single host's", EthernetAddress(*mac))
            }
            ConfigError::NotUnicast(address) => write!(f, "{address} cannot be a single host's address"),
            ConfigError::Prefix { prefix_bits, bits_max } => {
                write!(f, "a prefix of {prefix_bits} bits does not fit an address of {bits_max}")
            }
            ConfigError::Gateway(gateway) => {
                write!(f, "the gateway {gateway} is of another address family than our address")
            }
        }
    }
}

impl core::error::Error for ConfigError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_the_memory() {
        let sizes = |memory_bytes| {
            let config = Config::for_memory(Address::Dhcp, memory_bytes);
            (config.receive_bytes, config.spare_bytes, config.connections_max)
        };
        assert_eq!(sizes(32 << 20), (64 * KIB, 4 << 20, 64));
        assert_eq!(sizes(1 << 30), (64 * KIB, 128 << 20, 1024));
        assert_eq!(sizes(0), (64 * KIB, 0, 8));
    }

    #[test]
    fn few_connections_have_long_buffers_and_many_have_their_least() {
        let config = Config::for_memory(Address::Dhcp, 64 << 20);
        assert_eq!(config.sizes(0), (65_535 << 4, 1 << 20, (65_535 << 4) - 65_535 + (960 << 10)));
        let mut in_use = 0;
        for _ in 0..config.connections_max {
            let (receive, send, spare) = config.sizes(in_use);
            assert_eq!(receive + send, 65_535 + (64 << 10) + spare);
            in_use += spare;
        }
        assert!(in_use <= config.spare_bytes, "{in_use}");
        assert_eq!(config.sizes(config.spare_bytes), (65_535, 64 << 10, 0));
        // Sizes that a service has chosen itself are not cut.
        let config = Config { receive_bytes: 4 << 20, spare_bytes: 0, ..config };
        assert_eq!(config.sizes(0), (65_535 << 6, 64 << 10, 0));
    }

    #[test]
    fn a_window_is_a_whole_window_field() {
        let window =
            |receive_bytes| Config { receive_bytes, ..Config::for_memory(Address::Dhcp, 1 << 20) }.window_bytes();
        assert_eq!(window(4096), 4096);
        assert_eq!(window(65_536), 65_535);
        assert_eq!(window(262_144), 262_140);
        assert_eq!(window(usize::MAX), 65_535 << 13);
    }

    #[test]
    fn bad_addresses_are_refused() {
        let address = |address: &str, prefix_bits, gateway: Option<&str>| {
            let gateway = gateway.map(|gateway| gateway.parse().unwrap());
            Address::Static { address: address.parse().unwrap(), prefix_bits, gateway }
        };
        let check = |address| Config::for_memory(address, 1 << 20).check(EthernetAddress([2, 0, 0, 0, 0, 1]));
        assert_eq!(check(address("10.0.0.1", 24, Some("10.0.0.2"))), Ok(()));
        assert!(matches!(check(address("224.0.0.1", 24, None)), Err(ConfigError::NotUnicast(_))));
        assert!(matches!(check(address("10.0.0.1", 33, None)), Err(ConfigError::Prefix { .. })));
        assert!(matches!(check(address("10.0.0.1", 24, Some("fe80::1"))), Err(ConfigError::Gateway(_))));
        let config = Config::for_memory(Address::Dhcp, 1 << 20);
        assert!(matches!(config.check(EthernetAddress([1, 0, 0, 0, 0, 1])), Err(ConfigError::Mac(_))));
    }
}
