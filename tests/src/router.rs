//! An IPv6 router that advertises a prefix, and forwards nothing.

use crate::netns::Namespace;
use anyhow::{Context, Result};
use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sockopt};
use std::net::{Ipv6Addr, SocketAddrV6};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const INTERVAL: Duration = Duration::from_millis(100);

/// Sends advertisements until it is dropped.
#[derive(Debug)]
pub struct Router {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Router {
    /// Advertises `prefix` on a device of a namespace.
    pub fn start(namespace: &Namespace, device: &str, prefix: Ipv6Addr) -> Result<Router> {
        let remote = SocketAddrV6::new(ALL_NODES, 0, 0, namespace.index(device)?);
        let socket: OwnedFd = namespace.inside(|| {
            let socket = rustix::net::socket(AddressFamily::INET6, SocketType::RAW, Some(ipproto::ICMPV6));
            let socket = socket.context("cannot open a socket for ICMPv6")?;
            // Hosts ignore what a router could have forwarded.
            sockopt::set_ipv6_multicast_hops(&socket, 255)?;
            Ok(socket)
        })?;
        let ends = Arc::new(AtomicBool::new(false));
        let must_end = ends.clone();
        let thread = std::thread::spawn(move || {
            while !must_end.load(Ordering::Relaxed) {
                // Fails until the device has a link and an address. The kernel writes the checksum.
                let _ = rustix::net::sendto(&socket, &advertisement(prefix), SendFlags::empty(), &remote);
                std::thread::sleep(INTERVAL);
            }
        });
        Ok(Router { ends, thread: Some(thread) })
    }
}

/// A router advertisement with one prefix (RFC 4861, sections 4.2 and 4.6.2).
fn advertisement(prefix: Ipv6Addr) -> Vec<u8> {
    let mut bytes = vec![134, 0, 0, 0, 64, 0];
    bytes.extend(1800_u16.to_be_bytes());
    bytes.extend([0; 8]);
    // A prefix of 64 bits, on-link and for autonomous configuration.
    bytes.extend([3, 4, 64, 0xc0]);
    bytes.extend(86_400_u32.to_be_bytes());
    bytes.extend(14_400_u32.to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend(prefix.octets());
    bytes
}

impl Drop for Router {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
