//! Network namespaces with a TAP device for each VM, and a pair of Ethernet devices (veth) between them: a network of real devices that
//! touches no other one of this machine.

use crate::process;
use anyhow::{Context, Result, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Names of our namespaces begin with this; the pid of their owner and a number follow.
const PREFIX: &str = "glass-";
/// Leading bits that the addresses of one network have in common.
pub const PREFIX_BITS: u8 = 24;
/// The same of IPv6.
pub const IPV6_PREFIX_BITS: u8 = 64;

static MADE: AtomicU32 = AtomicU32::new(0);

/// A network namespace. Dropping it removes it and its devices.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

/// Why no namespace can be made here; `None` if it can.
pub fn obstacle() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root may make network namespaces and TAP devices");
    }
    if Command::new("ip").arg("-V").output().is_err() {
        return Some("the program `ip` is not installed (package iproute2)");
    }
    (!std::path::Path::new("/dev/net/tun").exists()).then_some("this machine has no /dev/net/tun")
}

fn ip(arguments: &[&str]) -> Result<String> {
    let output = Command::new("ip").args(arguments).output().context("cannot start ip")?;
    if !output.status.success() {
        bail!("`ip {}`: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Removes the namespaces of processes that were killed before they could.
fn remove_old() -> Result<()> {
    for name in ip(&["netns", "list"])?.lines().filter_map(|line| line.split_whitespace().next()) {
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()).and_then(|pid| pid.parse().ok());
        if owner.is_some_and(|pid| !process::is_alive(pid)) {
            // Another process may remove it at the same time.
            let _ = ip(&["netns", "delete", name]);
        }
    }
    Ok(())
}

impl Namespace {
    /// A new namespace with a loopback device.
    pub fn new() -> Result<Namespace> {
        remove_old()?;
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}", std::process::id());
        ip(&["netns", "add", &name])?;
        let namespace = Namespace { name };
        namespace.ip(&["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// Two that a pair of Ethernet devices joins: that of clients, that of a server, and the server's address.
    pub fn pair() -> Result<(Namespace, Namespace, Ipv4Addr)> {
        let (near, far) = (Namespace::new()?, Namespace::new()?);
        let [near_address, far_address] = [1, 2].map(|host| Ipv4Addr::new(10, 78, 0, host));
        near.join(near_address, &far, far_address)?;
        Ok((near, far, far_address))
    }

    fn ip(&self, arguments: &[&str]) -> Result<String> {
        ip(&[&["-n", &self.name], arguments].concat())
    }

    fn raise(&self, device: &str, address: Ipv4Addr) -> Result<()> {
        self.add_address(device, address)?;
        self.ip(&["link", "set", device, "up"]).map(drop)
    }

    /// Adds a TAP device with `address`.
    pub fn tap(&self, device: &str, address: Ipv4Addr) -> Result<()> {
        self.ip(&["tuntap", "add", device, "mode", "tap"])?;
        self.raise(device, address)
    }

    /// Adds the bridge `bridge0` of new TAP devices that have no address.
    pub fn bridge(&self, taps: &[&str]) -> Result<()> {
        self.ip(&["link", "add", "bridge0", "type", "bridge"])?;
        for tap in taps {
            self.ip(&["tuntap", "add", tap, "mode", "tap"])?;
            self.ip(&["link", "set", tap, "master", "bridge0", "up"])?;
        }
        self.ip(&["link", "set", "bridge0", "up"]).map(drop)
    }

    /// Forwards packets between its devices; `mtu` is that of the frames to and from `device`.
    pub fn route(&self, device: &str, mtu: u32) -> Result<()> {
        self.set("ipv4/ip_forward", "1")?;
        self.set("ipv6/conf/all/forwarding", "1")?;
        self.ip(&["link", "set", device, "mtu", &mtu.to_string()]).map(drop)
    }

    /// Sends all of a family (`-4` or `-6`) that is for no device by `gateway`.
    pub fn set_gateway(&self, family: &str, gateway: IpAddr) -> Result<()> {
        self.ip(&[family, "route", "add", "default", "via", &gateway.to_string()]).map(drop)
    }

    /// Nothing that it sends itself reaches `address`: the reports of a router, say. What it forwards does.
    pub fn be_silent_to(&self, family: &str, address: IpAddr) -> Result<()> {
        self.ip(&[family, "rule", "add", "iif", "lo", "to", &address.to_string(), "blackhole"]).map(drop)
    }

    /// Adds an address to a device, alone in its network, and the way to another one that is alone, too.
    pub fn add_alone(&self, device: &str, address: Ipv4Addr, other: Ipv4Addr) -> Result<()> {
        self.ip(&["address", "add", &format!("{address}/32"), "dev", device])?;
        self.ip(&["route", "add", &format!("{other}/32"), "dev", device]).map(drop)
    }

    /// Adds an address of the network of [`PREFIX_BITS`] to a device.
    pub fn add_address(&self, device: &str, address: Ipv4Addr) -> Result<()> {
        self.ip(&["address", "add", &format!("{address}/{PREFIX_BITS}"), "dev", device]).map(drop)
    }

    /// Gives a device another MAC address, which it announces by ARP (RFC 826) with `address` when it is up again.
    pub fn replace_mac(&self, device: &str, mac: &str) -> Result<()> {
        self.set(&format!("ipv4/conf/{device}/arp_notify"), "1")?;
        for words in [&["down"][..], &["address", mac], &["up"]] {
            self.ip(&[&["link", "set", device], words].concat())?;
        }
        Ok(())
    }

    /// Takes a TAP device out of the bridge, or puts it in again.
    pub fn plug(&self, tap: &str, is_plugged: bool) -> Result<()> {
        let place: &[&str] = if is_plugged { &["master", "bridge0"] } else { &["nomaster"] };
        self.ip(&[&["link", "set", tap], place].concat()).map(drop)
    }

    /// Joins it to the bridge of `other` by a pair of devices, with `address` at this end.
    pub fn join_bridge(&self, address: Ipv4Addr, other: &Namespace) -> Result<()> {
        self.ip(&["link", "add", "veth0", "type", "veth", "peer", "name", "veth1", "netns", &other.name])?;
        self.raise("veth0", address)?;
        other.ip(&["link", "set", "veth1", "master", "bridge0", "up"]).map(drop)
    }

    /// Sets a parameter of its network, such as `ipv4/tcp_congestion_control`.
    pub fn set(&self, parameter: &str, value: &str) -> Result<()> {
        let path = format!("/proc/sys/net/{parameter}");
        self.inside(|| std::fs::write(&path, value).with_context(|| format!("cannot write {value:?} to {path}")))
    }

    /// Adds an IPv6 address to a device, which is usable at once.
    pub fn add_ipv6(&self, device: &str, address: Ipv6Addr) -> Result<()> {
        self.ip(&["address", "add", &format!("{address}/{IPV6_PREFIX_BITS}"), "dev", device, "nodad"]).map(drop)
    }

    /// The number of a device.
    pub fn index(&self, device: &str) -> Result<u32> {
        let line = self.ip(&["-oneline", "link", "show", device])?;
        let number = line.split(':').next().and_then(|number| number.parse().ok());
        number.with_context(|| format!("no number in {line:?}"))
    }

    /// Joins it to `other` by a pair of devices with these addresses.
    pub fn join(&self, address: Ipv4Addr, other: &Namespace, other_address: Ipv4Addr) -> Result<()> {
        self.ip(&["link", "add", "veth0", "type", "veth", "peer", "name", "veth1", "netns", &other.name])?;
        self.raise("veth0", address)?;
        other.raise("veth1", other_address)
    }

    /// From now on `device` loses so many of a thousand frames, in both directions, at random. Returns why that is not possible
    /// here, if it is not.
    pub fn lose(&self, device: &str, per_mille: u32) -> Result<Option<String>> {
        // What is lost goes to a device that nothing reads.
        self.ip(&["tuntap", "add", "lost0", "mode", "tap"])?;
        self.ip(&["link", "set", "lost0", "up"])?;
        // ld #random; jge #threshold, 1, 0; ret #-1 (it matches); ret #0
        let threshold = u64::from(per_mille) * (1 << 32) / 1000;
        let program = format!("4,32 0 0 4294963256,53 1 0 {threshold},6 0 0 4294967295,6 0 0 0");
        let lost = ["action", "mirred", "egress", "redirect", "dev", "lost0"];
        let filter = |direction| {
            let head = ["filter", "add", "dev", device, direction, "protocol", "all", "bpf", "bytecode", &program];
            [&head[..], &lost].concat()
        };
        for words in [vec!["qdisc", "add", "dev", device, "clsact"], filter("ingress"), filter("egress")] {
            if let Err(error) = ip(&[&["netns", "exec", &self.name, "tc"], &words[..]].concat()) {
                return Ok(Some(error.to_string()));
            }
        }
        Ok(None)
    }

    /// A command that runs `program` in it.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Runs `work` on a thread whose sockets are in it.
    pub fn inside<R: Send>(&self, work: impl FnOnce() -> Result<R> + Send) -> Result<R> {
        let path = format!("/run/netns/{}", self.name);
        let file = File::open(&path).with_context(|| format!("cannot open {path}"))?;
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                    .with_context(|| format!("cannot enter {path}"))?;
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Its devices go with it.
        let _ = ip(&["netns", "delete", &self.name]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn two_namespaces_reach_each_other_and_are_gone_afterwards() {
        if let Some(reason) = obstacle() {
            return crate::limit::say(&format!("skipped: {reason}"));
        }
        let (one, two) = (Namespace::new().unwrap(), Namespace::new().unwrap());
        let (near, far) = (Ipv4Addr::new(10, 78, 0, 1), Ipv4Addr::new(10, 78, 0, 2));
        one.join(near, &two, far).unwrap();
        one.tap("tap0", Ipv4Addr::new(10, 77, 0, 1)).unwrap();
        let listener = two.inside(|| Ok(TcpListener::bind((far, 0))?)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut client = one.inside(|| Ok(TcpStream::connect((far, port))?)).unwrap();
        let (mut server, peer) = listener.accept().unwrap();
        assert_eq!(peer.ip(), near);
        client.write_all(b"x").unwrap();
        assert_eq!(server.read(&mut [0; 2]).unwrap(), 1);
        let list = ip(&["netns", "list"]).unwrap();
        let names = [one.name.clone(), two.name.clone()];
        assert!(names.iter().all(|name| list.contains(name.as_str())));
        drop((one, two));
        let list = ip(&["netns", "list"]).unwrap();
        assert!(!names.iter().any(|name| list.contains(name.as_str())), "{list}");
    }
}
