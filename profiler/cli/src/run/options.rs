//! What the options of `glass run` say: sizes, ports, networks, addresses; and whether the host has what they want.

use super::qemu_options::{Accel, Machine};
use super::{Args, DISK_TIMEOUT_DEFAULT, MEMORY_DEFAULT, share};
use crate::build::Platform;
use anyhow::{Result as Checked, bail};
use std::fs;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::str::FromStr;

/// Refuses what QEMU would refuse in words of its own, or what would have no effect.
pub(super) fn check(args: &Args) -> Checked<()> {
    share::check(args)?;
    if args.platform == Platform::Linux {
        check_process(args)?;
        if let Some(None) = args.vsock {
            bail!("a process needs a name for the socket: --vsock=PATH");
        }
        return Ok(());
    }
    if args.bind.is_some() {
        bail!(
            "--bind is for a process: a VM has addresses of its own, and --port forwards ports of 127.0.0.1 to it; leave it out"
        );
    }
    let host_bytes = host_memory().unwrap_or(u64::MAX);
    if args.memory > host_bytes {
        bail!("--memory {}M is more than this host has, {}M: take less", args.memory >> 20, host_bytes >> 20);
    }
    if args.record_writes.is_some() && !glass_devices::has_io_uring() {
        bail!("--record-writes needs io_uring, which this host does not have (Linux 5.11, and not forbidden)");
    }
    taps(args).iter().try_for_each(|name| glass_devices::check_tap(name))?;
    if args.net != Network::User && tcp_ports(&args.port).next().is_some() {
        bail!("--port needs the user network: leave out --net, or connect to the address of the VM");
    }
    if args.qemu.print_command {
        return Ok(());
    }
    let mut hosts: Vec<u16> = args.port.iter().map(|port| port.host).collect();
    hosts.sort_unstable();
    if let Some(twice) = hosts.windows(2).find(|pair| pair[0] == pair[1]) {
        bail!("port {} of 127.0.0.1 is forwarded twice: leave one out", twice[0]);
    }
    for port in &args.port {
        if let Err(error) = TcpListener::bind((Ipv4Addr::LOCALHOST, port.host)) {
            let advice = match error.kind() {
                ErrorKind::AddrInUse => "is in use: take another one".to_owned(),
                ErrorKind::PermissionDenied => "is for root: take one above 1023".to_owned(),
                _ => format!("cannot be used: {error}"),
            };
            bail!("port {} of 127.0.0.1 {advice}", port.host);
        }
    }
    Ok(())
}

/// The TAP devices of the VM, or of all its copies.
fn taps(args: &Args) -> Vec<String> {
    match &args.net {
        Network::Tap(name) => (0..args.copies.count()).map(|index| glass_vmm::name_of_copy(name, index)).collect(),
        Network::User | Network::None => Vec::new(),
    }
}

/// Refuses options that a process, or ranks that are processes, cannot obey.
pub(super) fn check_process(args: &Args) -> Checked<()> {
    let refused = [
        (!args.port.is_empty(), "--port", "a process listens on the port of its own argument, after `--`"),
        (args.qemu.accel != Accel::Auto, "--accel", "a process runs on the host's CPUs"),
        (args.vmm != Vmm::Auto, "--vmm", "a process needs none"),
        (args.qemu.qemu_firmware, "--qemu-firmware", "a process has no firmware"),
        (args.qemu.machine != Machine::Microvm, "--machine", "a process has no devices"),
        (args.qemu.bus.is_some(), "--bus", "a process has no devices"),
        (args.memory != MEMORY_DEFAULT, "--memory", "a process takes the memory it needs; `ulimit -v` bounds it"),
        (args.files_disk.is_some(), "--files-disk", "a process has the files of --share"),
        (args.disk_direct, "--disk-direct", "a process uses the host's page cache"),
        (args.record_writes.is_some(), "--record-writes", "what a process writes goes to the host's file system"),
        (
            args.disk_timeout != DISK_TIMEOUT_DEFAULT,
            "--disk-timeout",
            "a process waits as long as the host's file system does",
        ),
        (args.net != Network::User, "--net", "a process has the host's network"),
        (args.ip.is_some(), "--ip", "a process has the host's addresses"),
        (args.ip6.is_some(), "--ip6", "a process has the host's addresses"),
        (!args.dns.is_empty(), "--dns", "a process uses the host's name servers"),
        (args.congestion.is_some(), "--congestion", "a process has the host's TCP (tcp(7), `tcp_congestion_control`)"),
        (
            args.qemu.print_command,
            "--print-command",
            "it prints the command line of QEMU, which a process does not need",
        ),
    ];
    match refused.into_iter().find(|(is_given, ..)| *is_given) {
        Some((_, option, reason)) => bail!("{option} is for a VM: {reason}; leave it out"),
        None => Ok(()),
    }
}

/// Bytes of memory that the host has.
fn host_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// What runs a VM.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Vmm {
    Auto,
    Own,
    Qemu,
}

#[derive(Clone, Copy)]
pub(super) struct Port {
    pub(super) host: u16,
    pub(super) guest: Guest,
}

/// A port of the VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Guest {
    Tcp(u16),
    Vsock(u32),
}

/// The ports that are forwarded to TCP ports.
pub(super) fn tcp_ports(ports: &[Port]) -> impl Iterator<Item = (u16, u16)> + '_ {
    ports.iter().filter_map(|port| match port.guest {
        Guest::Tcp(guest) => Some((port.host, guest)),
        Guest::Vsock(_) => None,
    })
}

#[derive(Clone, PartialEq, Eq)]
pub(super) enum Network {
    User,
    None,
    Tap(String),
}

/// Bytes of a size with a unit.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" => 1,
        "K" | "KIB" => 1 << 10,
        "M" | "MIB" => 1 << 20,
        "G" | "GIB" => 1 << 30,
        "T" | "TIB" => 1 << 40,
        unit => return Err(format!("`{unit}` is no unit: use K, M, G or T")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("`{text}` is no size: write for example 512M"))?;
    number.checked_mul(factor).ok_or(format!("{text} is too large"))
}

pub(super) fn parse_memory(text: &str) -> Result<u64, String> {
    let with_unit = if text.bytes().all(|byte| byte.is_ascii_digit()) { format!("{text}M") } else { text.to_owned() };
    match parse_size(&with_unit)? {
        bytes if bytes < 8 << 20 => Err("an image needs at least 8M".to_owned()),
        bytes => Ok(bytes),
    }
}

pub(super) fn parse_port(text: &str) -> Result<Port, String> {
    let number = |text: &str| text.parse().map_err(|_| format!("`{text}` is no port number"));
    let Some((host, guest)) = text.split_once(':') else {
        return number(text).map(|port| Port { host: port, guest: Guest::Tcp(port) });
    };
    let guest = match guest.strip_prefix("vsock:") {
        Some(port) => Guest::Vsock(port.parse().map_err(|_| format!("`{port}` is no port number of vsock"))?),
        None => Guest::Tcp(number(guest)?),
    };
    Ok(Port { host: number(host)?, guest })
}

/// `dhcp` or `ADDRESS/PREFIX[,GATEWAY]`, as the image reads it (`platform/vm/src/command_line.rs`).
pub(super) fn parse_ip(text: &str) -> Result<String, String> {
    let wrong = || "write dhcp, or an address with its prefix and gateway, such as 10.0.2.15/24,10.0.2.2".to_owned();
    if text == "dhcp" || is_network::<Ipv4Addr>(text, 32) { Ok(text.to_owned()) } else { Err(wrong()) }
}

/// `auto`, `off` or `ADDRESS/PREFIX[,GATEWAY]`, as the image reads it.
pub(super) fn parse_ip6(text: &str) -> Result<String, String> {
    let wrong = || "write auto, off, or an address with its prefix and gateway, such as fd00::2/64,fd00::1".to_owned();
    let is_good = text == "auto" || text == "off" || is_network::<Ipv6Addr>(text, 128);
    if is_good { Ok(text.to_owned()) } else { Err(wrong()) }
}

fn is_network<A: FromStr>(text: &str, bits_max: u8) -> bool {
    network_in::<A>(text, bits_max).is_some()
}

/// Address, bits of the prefix and gateway of `ADDRESS/PREFIX[,GATEWAY]`.
pub fn network_in<A: FromStr>(text: &str, bits_max: u8) -> Option<(A, u8, Option<A>)> {
    let (network, gateway) = text.split_once(',').map_or((text, None), |(network, gateway)| (network, Some(gateway)));
    let (address, prefix_bits) = network.split_once('/')?;
    let prefix_bits = prefix_bits.parse().ok().filter(|bits| *bits <= bits_max)?;
    Some((address.parse().ok()?, prefix_bits, gateway.map(str::parse).transpose().ok()?))
}

pub(super) fn parse_network(text: &str) -> Result<Network, String> {
    match text.split_once('=') {
        _ if text == "user" => Ok(Network::User),
        _ if text == "none" => Ok(Network::None),
        Some(("tap", name)) if !name.is_empty() => Ok(Network::Tap(name.to_owned())),
        _ => Err("use user, none or tap=NAME".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_size("512"), Ok(512));
        assert_eq!(parse_size("1G"), Ok(1 << 30));
        assert_eq!(parse_memory("32"), Ok(32 << 20));
        for bad in ["", "G", "1X", "-1M", "99999999999T"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
        assert!(parse_memory("4").is_err());
    }

    #[test]
    fn a_port_leads_to_tcp_or_vsock() {
        let guest = |text| parse_port(text).map(|port| (port.host, port.guest));
        assert_eq!(guest("80"), Ok((80, Guest::Tcp(80))));
        assert_eq!(guest("80:8080"), Ok((80, Guest::Tcp(8080))));
        assert_eq!(guest("80:vsock:70000"), Ok((80, Guest::Vsock(70_000))));
        for bad in ["vsock:80", "80:vsock", "80:vsock:", "80:vsock:-1", "70000:vsock:1", ":80", "80:"] {
            assert!(parse_port(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn addresses_are_whole() {
        for good in ["dhcp", "10.0.2.15/24", "10.0.2.15/24,10.0.2.2", "0.0.0.0/0"] {
            assert_eq!(parse_ip(good).as_deref(), Ok(good));
        }
        for bad in ["", "1.2.3", "1.2.3.4", "1.2.3.4/33", "1.2.3.4/24,", "1.2.3.4/24,x", "::1/64", "1.2.3/24", "dhcp6"]
        {
            assert!(parse_ip(bad).is_err(), "{bad}");
        }
        for good in ["auto", "off", "fd00::2/64", "fd00::2/64,fe80::1"] {
            assert_eq!(parse_ip6(good).as_deref(), Ok(good));
        }
        for bad in ["", "dhcp", "fd00::2", "fd00::2/129", "fd00::2/64,", "10.0.2.15/24", "fd00::2/64,10.0.2.2"] {
            assert!(parse_ip6(bad).is_err(), "{bad}");
        }
    }
}
