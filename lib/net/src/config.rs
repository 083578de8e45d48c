//! The configuration of a stack: addresses, sizes, bounds and times.

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
    /// RFC 5681. The default.
    Reno,
}

/// Sizes, bounds and times of a [`crate::Stack`]. Start from [`Config::for_memory`].
#[derive(Debug, Clone)]
pub struct Config {
    /// Where our address comes from.
    pub address: Address,
    /// Receive window of a connection. Rounded down to 65,535 times a power of two; see
    /// [`Config::window_bytes`].
    pub receive_bytes: usize,
    /// Data of a connection that may wait to be sent or acknowledged.
    pub send_bytes: usize,
    /// Connections that may exist at the same time, including those being opened and closed. Each costs
    /// `receive_bytes + send_bytes`. A SYN beyond this number is not answered, so that the peer retransmits it.
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

impl Config {
    /// Sizes for a machine with `memory_bytes`, of which at most a quarter goes to connections:
    /// windows of 64 KiB to 1 MiB such that at least 64 connections fit, or else fewer connections.
    pub fn for_memory(address: Address, memory_bytes: usize) -> Config {
        let budget = memory_bytes / 4;
        let window = [1024 * KIB, 512 * KIB, 256 * KIB, 128 * KIB]
            .into_iter()
            .find(|window| budget / (2 * window) >= 64)
            .unwrap_or(64 * KIB);
        Config {
            address,
            receive_bytes: window,
            send_bytes: window,
            connections_max: (budget / (2 * window)).clamp(8, 1024),
            backlog_max: (budget / (4 * window)).clamp(8, 512),
            congestion: Congestion::Reno,
            peer_timeout: Duration::from_secs(60),
            open_timeout: Duration::from_secs(10),
            linger_timeout: Duration::from_secs(30),
            linger_max: Duration::from_secs(300),
        }
    }

    /// The receive window in use.
    ///
    /// smoltcp 0.14.0 sends the window of a SYN unscaled, as the protocol requires, but remembers it as
    /// if it had been scaled. A window of exactly `65535 << scale` makes both readings the same.
    /// With another size a peer could write beyond the buffer's end and trigger an assertion.
    pub fn window_bytes(&self) -> usize {
        let mut window = self.receive_bytes.clamp(1, 1 << 29);
        if window > WINDOW_FIELD_MAX {
            let scale = (window / WINDOW_FIELD_MAX).ilog2();
            window = WINDOW_FIELD_MAX << scale;
        }
        window
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
        let config = Config::for_memory(Address::Dhcp, 32 << 20);
        assert_eq!((config.receive_bytes, config.connections_max), (64 * KIB, 64));
        let config = Config::for_memory(Address::Dhcp, 128 << 20);
        assert_eq!((config.receive_bytes, config.connections_max), (256 * KIB, 64));
        let config = Config::for_memory(Address::Dhcp, 0);
        assert_eq!((config.receive_bytes, config.connections_max), (64 * KIB, 8));
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
