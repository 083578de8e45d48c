//! TCP ports that nothing else uses while a test does.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Mutex;

/// Where Linux keeps the range of ports that it gives to outgoing connections.
const OUTGOING: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// Its usual start.
const OUTGOING_START: u16 = 32_768;
/// How many ports below that range are ours.
const PORTS: u16 = 12_000;

/// Reservations of this process. They end with it.
static RESERVED: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());

/// The ports below those of outgoing connections: the kernel gives none of them to another program between our look and its use.
fn ports() -> Range<u16> {
    let text = std::fs::read_to_string(OUTGOING).unwrap_or_default();
    let start = text.split_whitespace().next().and_then(|word| word.parse().ok());
    let start = start.filter(|start| *start > 2 * PORTS).unwrap_or(OUTGOING_START);
    start - PORTS..start
}

/// A port that is free, and stays reserved for this process among all that use this function.
pub fn free_port() -> io::Result<u16> {
    free_ports(1)
}

/// The first of `count` such ports that follow each other.
pub fn free_ports(count: u16) -> io::Result<u16> {
    let mut reserved = RESERVED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let ports = ports();
    // Processes begin at different ports, so they seldom meet.
    let begin = std::process::id().wrapping_mul(97).wrapping_add(reserved.len() as u32);
    for step in 0..u32::from(PORTS) {
        let port = ports.start + (begin.wrapping_add(step) % u32::from(PORTS)) as u16;
        if count > ports.end - port {
            continue;
        }
        if let Some(reservations) = (port..port + count).map(reserve).collect::<Option<Vec<_>>>() {
            reserved.extend(reservations);
            return Ok(port);
        }
    }
    Err(io::Error::other("no port is free"))
}

/// Reserves a port; `None` if it is in use.
fn reserve(port: u16) -> Option<UnixListener> {
    // A name without a file, which the kernel frees when the socket is closed.
    let name = SocketAddr::from_abstract_name(format!("glass-port-{port}")).ok()?;
    let reservation = UnixListener::bind_addr(&name).ok()?;
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok().then_some(reservation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_port_is_given_twice() {
        let give = || (0..50).map(|_| free_port().unwrap()).collect::<Vec<_>>();
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(give)).collect();
        let given: Vec<u16> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        assert_eq!(given.iter().collect::<BTreeSet<_>>().len(), 200);
        assert!(given.iter().all(|port| ports().contains(port)));
        assert!(TcpListener::bind((Ipv4Addr::LOCALHOST, given[0])).is_ok(), "it is free");
    }
}
