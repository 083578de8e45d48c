//! The configuration of a stack: addresses, sizes, bounds and times.

use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::ops::{AddAssign, SubAssign};
use core::time::Duration;
use smoltcp::wire::{EthernetAddress, IpAddress};

/// Where our IPv4 address comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Address {
    /// Request one by DHCP, repeatedly until a server answers.
    Dhcp,
    /// Use this one.
    Static {
        /// Our address.
        address: Ipv4Addr,
        /// Leading bits that our network has in common: 24 for 255.255.255.0.
        prefix_bits: u8,
        /// The router for other networks.
        gateway: Option<Ipv4Addr>,
    },
}

/// Where our IPv6 addresses come from. Unless IPv6 is off, there is a link-local one, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ipv6 {
    /// No IPv6.
    Off,
    /// From the network's routers (stateless address autoconfiguration, RFC 4862).
    Auto,
    /// Use this one; routers are not heard.
    Static {
        /// Our address.
        address: Ipv6Addr,
        /// Leading bits that our network has in common: 64, mostly.
        prefix_bits: u8,
        /// The router for other networks.
        gateway: Option<Ipv6Addr>,
    },
}

/// How the sending rate reacts to loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Congestion {
    /// Send as much as the peer's window takes. Twice as fast for 2 MB over a network without faults,
    /// and useless where a queue is shorter than the window (`platform/sim/examples/congestion.rs`,
    /// 2026-11-21: 2 MB at 10 MB/s with a queue of 60 kB take 1.2 s with Reno and over 1000 s without).
    None,
    /// RFC 5681, with bytes counted as in RFC 3465.
    Reno,
    /// RFC 9438, as Linux by default. The default.
    Cubic,
    /// BBR version 3 (draft-ietf-ccwg-bbr): paced by the measured bandwidth, so random losses hardly slow it down.
    Bbr,
}

impl Congestion {
    /// That of this name: `none`, `reno`, `cubic` or `bbr`.
    pub fn named(name: &str) -> Option<Congestion> {
        match name {
            "none" => Some(Congestion::None),
            "reno" => Some(Congestion::Reno),
            "cubic" => Some(Congestion::Cubic),
            "bbr" => Some(Congestion::Bbr),
            _ => None,
        }
    }
}

/// Sizes, bounds and times of a [`crate::Stack`]. Start from [`Config::for_memory`].
#[derive(Debug, Clone)]
pub struct Config {
    /// Where our IPv4 address comes from.
    pub address: Address,
    /// Where our IPv6 addresses come from; [`Ipv6::Off`] by default.
    pub ipv6: Ipv6,
    /// Name servers, in the order in which they are tried; the first three. If there are none, those of the DHCP server and of the IPv6
    /// routers are used.
    pub name_servers: Vec<IpAddr>,
    /// Receive window of a connection, at least; 1 GiB at most (RFC 7323, section 2.3).
    pub receive_bytes: usize,
    /// Data of a connection that may wait to be sent or acknowledged, at least.
    pub send_bytes: usize,
    /// Memory by which the buffers of all connections together may exceed these sizes, one half of it those for receiving, the other those for sending. A buffer
    /// that is too short for its path becomes twice as long, up to 16 MiB, while half of what is left allows it. A buffer takes memory when it is used.
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
/// The largest window that its field and a shift of 14 can express.
const WINDOW_MAX: usize = 65_535 << 14;
/// Long buffers are longer by a multiple of this.
const STEP_BYTES: usize = 64 * KIB;
/// A buffer is at most so long by spare memory: a window has to be twice a bandwidth-delay product where segments are lost, and where much is lost, some is lost
/// twice, and is missing for several round trips.
const BUFFER_BYTES_MAX: usize = 16 << 20;

impl Config {
    /// Sizes for a machine with `memory_bytes`, of which at most a quarter goes to buffers of 64 KiB for each connection, and a quarter
    /// to longer ones.
    pub fn for_memory(address: Address, memory_bytes: usize) -> Config {
        let window = 64 * KIB;
        let count = memory_bytes / 4 / (2 * window);
        Config {
            address,
            ipv6: Ipv6::Off,
            name_servers: Vec::new(),
            receive_bytes: window,
            send_bytes: window,
            spare_bytes: memory_bytes / 4,
            datagram_bytes: (memory_bytes / 256).clamp(64 * KIB, 1024 * KIB),
            connections_max: count.clamp(8, 1024),
            backlog_max: (count / 2).clamp(8, 512),
            congestion: Congestion::Cubic,
            peer_timeout: Duration::from_secs(60),
            open_timeout: Duration::from_secs(10),
            linger_timeout: Duration::from_secs(30),
            linger_max: Duration::from_secs(300),
        }
    }

    /// The sizes of a new connection's receive and send buffers.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        (self.receive_bytes.clamp(1, WINDOW_MAX), self.send_bytes.max(1))
    }

    /// How long a buffer can become by [`Config::growth`].
    pub(crate) fn buffer_bytes_max(&self) -> usize {
        if self.left(0) < STEP_BYTES { 0 } else { BUFFER_BYTES_MAX.min(self.left(0)) }
    }

    /// By how much a buffer of `bytes` bytes that is too short becomes longer, if all for its direction use `in_use` bytes of spare memory.
    pub(crate) fn growth(&self, bytes: usize, in_use: usize) -> usize {
        steps(bytes.min(self.left(in_use) / 2))
    }

    /// What is left of one half of the spare memory.
    fn left(&self, in_use: usize) -> usize {
        (self.spare_bytes / 2).saturating_sub(in_use)
    }

    pub(crate) fn check(&self, mac: EthernetAddress) -> Result<(), ConfigError> {
        if !mac.is_unicast() {
            return Err(ConfigError::Mac(mac.0));
        }
        if let Address::Static { address, prefix_bits, gateway } = self.address {
            check_address(address.into(), prefix_bits, 32, gateway.map(IpAddr::from))?;
        }
        if let Ipv6::Static { address, prefix_bits, gateway } = self.ipv6 {
            check_address(address.into(), prefix_bits, 128, gateway.map(IpAddr::from))?;
        }
        Ok(())
    }
}

/// Whole steps in so many bytes.
fn steps(bytes: usize) -> usize {
    bytes / STEP_BYTES * STEP_BYTES
}

/// Spare memory in use, in bytes, by buffers for receiving and for sending.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Spare {
    pub(crate) receive: usize,
    pub(crate) send: usize,
}

impl AddAssign for Spare {
    fn add_assign(&mut self, other: Spare) {
        self.receive += other.receive;
        self.send += other.send;
    }
}

impl SubAssign for Spare {
    fn sub_assign(&mut self, other: Spare) {
        self.receive -= other.receive;
        self.send -= other.send;
    }
}

fn check_address(address: IpAddr, prefix_bits: u8, bits_max: u8, gateway: Option<IpAddr>) -> Result<(), ConfigError> {
    let invalid = [Some(address), gateway].into_iter().flatten().find(|address| !is_usable(*address));
    match invalid {
        Some(address) => Err(ConfigError::NotUnicast(address)),
        None if prefix_bits > bits_max => Err(ConfigError::Prefix { prefix_bits, bits_max }),
        None => Ok(()),
    }
}

/// Whether it can be the address of a single host in a network.
fn is_usable(address: IpAddr) -> bool {
    IpAddress::from(address).is_unicast() && !address.is_loopback()
}

/// Why a stack cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigError {
    /// The device's address is a multicast or unspecified address.
    Mac([u8; 6]),
    /// An address is multicast, unspecified or of the loopback network.
    NotUnicast(IpAddr),
    /// A prefix is longer than the address.
    Prefix {
        /// The prefix that was given.
        prefix_bits: u8,
        /// Bits of the address.
        bits_max: u8,
    },
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
        }
    }
}

impl core::error::Error for ConfigError {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use alloc::vec;

    #[test]
    fn sizes_follow_the_memory() {
        let sizes = |memory_bytes| {
            let config = Config::for_memory(Address::Dhcp, memory_bytes);
            let (datagrams, connections) = (config.datagram_bytes, config.connections_max);
            (config.receive_bytes, config.spare_bytes, datagrams, connections, config.backlog_max)
        };
        assert_eq!(sizes(32 << 20), (64 * KIB, 8 << 20, 128 * KIB, 64, 32));
        assert_eq!(sizes(1 << 30), (64 * KIB, 256 << 20, 1024 * KIB, 1024, 512));
        assert_eq!(sizes(0), (64 * KIB, 0, 64 * KIB, 8, 8));
    }

    #[test]
    fn a_buffer_is_as_long_at_first_as_the_configuration_has_it() {
        let config = Config::for_memory(Address::Dhcp, 64 << 20);
        assert_eq!(config.sizes(), (64 << 10, 64 << 10));
        assert_eq!(Config { receive_bytes: 4 << 20, spare_bytes: 0, ..config }.sizes(), (4 << 20, 64 << 10));
    }

    #[test]
    fn many_connections_share_the_memory_by_which_they_grow() {
        let config = Config::for_memory(Address::Dhcp, 64 << 20);
        let (mut lengths, mut in_use) = (vec![64 << 10; 64], 0);
        for _ in 0..8 {
            for bytes in &mut lengths {
                let growth = config.growth(*bytes, in_use);
                (*bytes, in_use) = (*bytes + growth, in_use + growth);
            }
        }
        assert!(in_use <= config.spare_bytes / 2, "{in_use}");
        assert!(lengths.iter().all(|bytes| *bytes >= 128 << 10), "{lengths:?}");
    }

    #[test]
    fn a_buffer_that_is_too_short_is_doubled_while_there_is_memory() {
        let config = Config::for_memory(Address::Dhcp, 64 << 20);
        let (mut bytes, mut lengths) = (64 << 10, Vec::new());
        while bytes < config.buffer_bytes_max() {
            let growth = config.growth(bytes, bytes - (64 << 10));
            if growth == 0 {
                break;
            }
            bytes += growth;
            lengths.push(bytes >> 10);
        }
        assert_eq!(lengths[..7], [128, 256, 512, 1024, 2048, 4096, 6144]);
        assert!(*lengths.last().unwrap() < 8192 + 64, "{lengths:?}");
        assert_eq!(Config { spare_bytes: 0, ..config }.buffer_bytes_max(), 0);
    }

    #[test]
    fn bad_addresses_are_refused() {
        let mac = EthernetAddress([2, 0, 0, 0, 0, 1]);
        let check = |address: &str, prefix_bits, gateway: Option<&str>| {
            let (address, gateway) = (address.parse().unwrap(), gateway.map(|gateway| gateway.parse().unwrap()));
            let address = Address::Static { address, prefix_bits, gateway };
            Config::for_memory(address, 1 << 20).check(mac)
        };
        assert_eq!(check("10.0.0.1", 24, Some("10.0.0.2")), Ok(()));
        assert_eq!(check("10.0.0.1", 32, None), Ok(()));
        assert!(matches!(check("224.0.0.1", 24, None), Err(ConfigError::NotUnicast(_))));
        assert!(matches!(check("10.0.0.1", 24, Some("0.0.0.0")), Err(ConfigError::NotUnicast(_))));
        assert!(matches!(check("10.0.0.1", 33, None), Err(ConfigError::Prefix { .. })));
        let check = |address: &str, prefix_bits, gateway: Option<&str>| {
            let (address, gateway) = (address.parse().unwrap(), gateway.map(|gateway| gateway.parse().unwrap()));
            let ipv6 = Ipv6::Static { address, prefix_bits, gateway };
            Config { ipv6, ..Config::for_memory(Address::Dhcp, 1 << 20) }.check(mac)
        };
        assert_eq!(check("fd00::2", 64, Some("fe80::1")), Ok(()));
        assert_eq!(check("fd00::2", 128, None), Ok(()));
        assert!(matches!(check("ff02::1", 64, None), Err(ConfigError::NotUnicast(_))));
        assert!(matches!(check("::1", 64, None), Err(ConfigError::NotUnicast(_))));
        assert!(matches!(check("fd00::2", 129, None), Err(ConfigError::Prefix { .. })));
        let config = Config::for_memory(Address::Dhcp, 1 << 20);
        assert!(matches!(config.check(EthernetAddress([1, 0, 0, 0, 0, 1])), Err(ConfigError::Mac(_))));
    }

    #[test]
    fn a_refusal_names_what_is_wrong() {
        let texts = [
            ConfigError::Mac([1, 0, 0, 0, 0, 0xab]),
            ConfigError::NotUnicast(Ipv4Addr::BROADCAST.into()),
            ConfigError::Prefix { prefix_bits: 33, bits_max: 32 },
        ]
        .map(|error| error.to_string());
        assert_eq!(
            texts,
            [
                "the network device's address 01-00-00-00-00-ab cannot be a single host's",
                "255.255.255.255 cannot be a single host's address",
                "a prefix of 33 bits does not fit an address of 32",
            ]
        );
    }
}
