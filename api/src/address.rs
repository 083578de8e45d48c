//! Addresses of connections: those of TCP, and those of vsock between a VM and its host.

use core::fmt;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::str::FromStr;

/// One end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// Of a TCP connection.
    Ip(SocketAddr),
    /// Of a vsock connection.
    Vsock(VsockAddress),
}

/// One end of a vsock connection (virtio 1.2, section 5.10).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VsockAddress {
    /// The context identifier of a machine: [`VsockAddress::HOST`], or that of a VM.
    pub cid: u32,
    /// The port.
    pub port: u32,
}

impl VsockAddress {
    /// The context identifier of the host.
    pub const HOST: u32 = 2;
}

/// A machine, without a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Machine {
    /// With an IPv4 address, or with any address of a network of 64 bits, whose last 64 bits are 0 here: a machine can take
    /// as many IPv6 addresses of its network as it likes (RFC 7934).
    Ip(IpAddr),
    /// With a context identifier of vsock.
    Vsock(u32),
}

/// A port to listen on. As text it is a number for TCP, or `vsock:` and a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Port {
    /// A TCP port of every address of ours; 0 picks a free one.
    Tcp(u16),
    /// A vsock port; 0 picks a free one.
    Vsock(u32),
}

/// A text is no [`Port`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotAPort;

impl Address {
    /// The machine.
    pub fn machine(self) -> Machine {
        match self {
            Address::Ip(SocketAddr::V4(address)) => Machine::Ip((*address.ip()).into()),
            Address::Ip(SocketAddr::V6(address)) => {
                Machine::Ip(Ipv6Addr::from_bits(address.ip().to_bits() >> 64 << 64).into())
            }
            Address::Vsock(address) => Machine::Vsock(address.cid),
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        Address::Ip(address)
    }
}

impl From<VsockAddress> for Address {
    fn from(address: VsockAddress) -> Address {
        Address::Vsock(address)
    }
}

impl From<u16> for Port {
    fn from(port: u16) -> Port {
        Port::Tcp(port)
    }
}

impl FromStr for Port {
    type Err = NotAPort;

    fn from_str(text: &str) -> Result<Port, NotAPort> {
        let (digits, is_vsock) = match text.strip_prefix("vsock:") {
            Some(digits) => (digits, true),
            None => (text, false),
        };
        // `parse` would accept a plus sign.
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(NotAPort);
        }
        let number: u32 = digits.parse().map_err(|_| NotAPort)?;
        match u16::try_from(number) {
            _ if is_vsock && number < u32::MAX => Ok(Port::Vsock(number)),
            Ok(number) if !is_vsock => Ok(Port::Tcp(number)),
            _ => Err(NotAPort),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Address::Ip(address) => write!(f, "{address}"),
            Address::Vsock(VsockAddress { cid, port }) => write!(f, "vsock:{cid}:{port}"),
        }
    }
}

/// `port 80`, or `vsock port 80`.
impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Port::Tcp(port) => write!(f, "port {port}"),
            Port::Vsock(port) => write!(f, "vsock port {port}"),
        }
    }
}

impl fmt::Display for NotAPort {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("this is no port: write a number from 0 to 65535 for TCP, or vsock: and a number, such as vsock:80")
    }
}

impl core::error::Error for NotAPort {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn addresses_of_one_ipv6_network_are_one_machine() {
        let machine = |text: &str| Address::from(text.parse::<SocketAddr>().unwrap()).machine();
        assert_eq!(machine("[2001:db8::1]:80"), machine("[2001:db8::ffff:ffff:ffff:ffff]:81"));
        assert_ne!(machine("[2001:db8::1]:80"), machine("[2001:db8:0:1::1]:80"));
        assert_ne!(machine("10.0.0.1:80"), machine("10.0.0.2:80"));
    }

    #[test]
    fn a_port_is_a_number_or_one_of_vsock() {
        assert_eq!("8080".parse(), Ok(Port::Tcp(8080)));
        assert_eq!("vsock:80".parse(), Ok(Port::Vsock(80)));
        assert_eq!("vsock:70000".parse(), Ok(Port::Vsock(70_000)));
        // The largest number of vsock stands for any port.
        for text in ["", "65536", "+1", "-1", "vsock:", "vsock", "vsock:4294967295", "vsock:x", "tcp:1", " 1"] {
            assert_eq!(text.parse::<Port>(), Err(NotAPort), "{text}");
        }
        assert_eq!((Port::Tcp(1).to_string(), Port::Vsock(2).to_string()), ("port 1".into(), "vsock port 2".into()));
    }
}
