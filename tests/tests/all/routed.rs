//! A VM in networks as they are: behind a router with a smaller MTU, with a gateway outside of its prefix, beside many neighbours, one that gets
//! another MAC address, and a client that uses its port again.

use glass_tests::folder::Folder;
use glass_tests::limit::within;
use glass_tests::netns::{self, Namespace};
use glass_tests::process::Process;
use glass_tests::programs;
use glass_tests::queue::World;
use rustix::net::{AddressFamily, SocketType, sockopt};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// The network of the router and the VM, and the one behind the router.
const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const VM: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const ROUTER_FAR: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
/// Not of the VM's network: its answers to neighbours are no packets to the VM's address.
const ROUTER6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const ROUTER6_NEAR: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 1);
const VM6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 2);
const ROUTER6_FAR: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x78, 0, 0, 0, 0, 0, 1);
const CLIENT6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x78, 0, 0, 0, 0, 0, 2);
/// Bytes of a packet between the router and the client.
const MTU: u32 = 1300;
const BYTES: usize = 3_000_000;
const LIMIT: Duration = Duration::from_secs(240);
/// Where `bench-tcp` listens.
const PORT: u16 = 8090;
/// A request for which a neighbour has to be found, or a connection replaced, takes milliseconds on a quiet host. The faults that this is about took a
/// second and more.
const PROMPT: Duration = Duration::from_millis(800);

/// `bench-tcp` as a VM behind the TAP device `tap0` of `near`, which has its address already.
struct Guest {
    process: Process,
    near: Namespace,
    _folder: Folder,
}

/// A namespace with the TAP device `tap0`; `None` if there can be none, or no VM.
fn near() -> Option<Namespace> {
    if let Some(reason) = World::Kvm.obstacle().or(netns::obstacle()) {
        programs::skip(reason);
        return None;
    }
    Namespace::new().map_err(|error| panic!("{error:#}")).ok()
}

/// Boots the VM with these options of `glass run`.
fn boot(near: Namespace, options: &[&str]) -> Option<Guest> {
    let (glass, image) = (programs::built("glass")?, programs::image("bench-tcp")?);
    let folder = Folder::new("routed").unwrap();
    let mut command = near.command(glass);
    command.arg("run").arg(image).args(["--accel", "kvm", "--net", "tap=tap0"]).args(options);
    let mut process = Process::spawn(&mut command, &folder.file("service.log")).unwrap();
    process.wait_for_text("listens on", LIMIT, || ());
    Some(Guest { process, near, _folder: folder })
}

/// A request of `bytes` bytes, from `source` if that is given; returns how long it took.
fn take(source: Option<SocketAddr>, server: IpAddr, bytes: usize) -> io::Result<Duration> {
    let start = Instant::now();
    let mut stream = match source {
        None => TcpStream::connect_timeout(&(server, PORT).into(), LIMIT)?,
        Some(source) => {
            let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
            sockopt::set_socket_reuseaddr(&socket, true)?;
            rustix::net::bind(&socket, &source)?;
            rustix::net::connect(&socket, &SocketAddr::from((server, PORT)))?;
            TcpStream::from(socket)
        }
    };
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(format!("send {bytes}\n").as_bytes())?;
    let mut received = Vec::new();
    stream.read_to_end(&mut received)?;
    let wrong = || io::Error::other(format!("{} bytes instead of {bytes}", received.len()));
    if received.len() == bytes { Ok(start.elapsed()) } else { Err(wrong()) }
}

/// 3 MB over a router whose other network has a smaller MTU. With `is_silent` it does not report what is too long for that (RFC 2923, a black hole).
fn check_path_mtu(family: &str, is_silent: bool) {
    let Some(near) = near() else { return };
    near.tap("tap0", ROUTER).unwrap();
    for address in [ROUTER6, ROUTER6_NEAR] {
        near.add_ipv6("tap0", address).unwrap();
    }
    let client = Namespace::new().unwrap();
    near.join(ROUTER_FAR, &client, CLIENT).unwrap();
    near.add_ipv6("veth0", ROUTER6_FAR).unwrap();
    client.add_ipv6("veth1", CLIENT6).unwrap();
    near.route("veth0", MTU).unwrap();
    let (server, gateway): (IpAddr, IpAddr) =
        if family == "-4" { (VM.into(), ROUTER_FAR.into()) } else { (VM6.into(), ROUTER6_FAR.into()) };
    client.set_gateway(family, gateway).unwrap();
    if is_silent {
        near.be_silent_to(family, server).unwrap();
    }
    let [ip, ip6] = [format!("{VM}/24,{ROUTER}"), format!("{VM6}/64,{ROUTER6}")];
    let Some(guest) = boot(near, &["--ip", &ip, "--ip6", &ip6]) else { return };
    // First one that is short: until an IPv6 address is known to be the VM's alone, it has none.
    let took = client.inside(|| Ok(take(None, server, 1000).and_then(|_| take(None, server, BYTES))?));
    let took = took.unwrap_or_else(|error| panic!("{error:#}; {}", guest.process.output()));
    println!("{BYTES} bytes over a router of {MTU} bytes took {} ms", took.as_millis());
}

#[test]
fn a_router_reports_a_smaller_mtu() {
    within(LIMIT, || check_path_mtu("-4", false));
}

#[test]
fn a_router_reports_a_smaller_mtu_by_ipv6() {
    within(LIMIT, || check_path_mtu("-6", false));
}

#[test]
fn a_router_drops_what_is_too_long() {
    within(LIMIT, || check_path_mtu("-4", true));
}

#[test]
fn a_router_drops_what_is_too_long_by_ipv6() {
    within(LIMIT, || check_path_mtu("-6", true));
}

/// As large clouds give it: an address that is alone in its network, and a gateway outside of that.
#[test]
fn a_gateway_outside_of_the_prefix() {
    within(LIMIT, || {
        let Some(near) = near() else { return };
        let distant = Ipv4Addr::new(192, 0, 2, 7);
        near.tap("tap0", ROUTER_FAR).unwrap();
        near.add_alone("tap0", ROUTER, VM).unwrap();
        near.add_address("lo", distant).unwrap();
        let Some(guest) = boot(near, &["--ip", &format!("{VM}/32,{ROUTER}")]) else { return };
        for source in [ROUTER, distant] {
            let took = guest.near.inside(|| Ok(take(Some((source, 0).into()), VM.into(), 1000)?));
            assert!(took.unwrap() < LIMIT, "{}", guest.process.output());
        }
    });
}

/// A SYN with a number beyond those of a connection in TIME-WAIT replaces it (RFC 9293, section 3.10.7.4).
#[test]
fn a_port_is_used_again_at_once() {
    within(LIMIT, || {
        let Some(near) = near() else { return };
        near.tap("tap0", ROUTER).unwrap();
        let Some(guest) = boot(near, &["--ip", &format!("{VM}/24")]) else { return };
        for _ in 0..8 {
            let took = guest.near.inside(|| Ok(take(Some((ROUTER, 40_000).into()), VM.into(), 1000)?)).unwrap();
            assert!(took < PROMPT, "{took:?}; {}", guest.process.output());
            // Until Linux has the acknowledgement of its end.
            std::thread::sleep(Duration::from_millis(100));
        }
    });
}

/// Twice as many as one request a second would find in a minute, the second time in another order.
#[test]
fn many_neighbours() {
    within(LIMIT, || {
        let Some(near) = near() else { return };
        near.tap("tap0", ROUTER).unwrap();
        let hosts: Vec<Ipv4Addr> = (10..130).map(|host| Ipv4Addr::new(10, 77, 0, host)).collect();
        hosts.iter().for_each(|host| near.add_address("tap0", *host).unwrap());
        let Some(guest) = boot(near, &["--ip", &format!("{VM}/24")]) else { return };
        let mut all: Vec<Duration> = Vec::new();
        for host in hosts.iter().chain(hosts.iter().rev()) {
            all.push(guest.near.inside(|| Ok(take(Some((*host, 0).into()), VM.into(), 1000)?)).unwrap());
        }
        let slow = all.iter().filter(|took| **took > PROMPT).count();
        // A busy host delays one now and then.
        assert!(slow <= 5, "{slow} of {} requests took longer than {PROMPT:?}; {}", all.len(), guest.process.output());
    });
}

/// A known neighbour announces another address (RFC 826: a pair that is known is updated by any packet).
#[test]
fn a_neighbour_gets_another_mac_address() {
    within(LIMIT, || {
        let Some(near) = near() else { return };
        near.tap("tap0", ROUTER).unwrap();
        let Some(guest) = boot(near, &["--ip", &format!("{VM}/24")]) else { return };
        for mac in [None, Some("02:00:00:00:00:99"), Some("02:00:00:00:00:98")] {
            if let Some(mac) = mac {
                guest.near.replace_mac("tap0", mac).unwrap();
            }
            let took = guest.near.inside(|| Ok(take(None, VM.into(), 1000)?)).unwrap();
            assert!(took < 4 * PROMPT, "{took:?} with {mac:?}; {}", guest.process.output());
        }
    });
}
