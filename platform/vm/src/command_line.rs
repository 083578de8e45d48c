//! The kernel command line: the settings that the VMM and `glass run` give an image.
//!
//! Words before `--` are for the platform, words after it are the service's arguments. A service's
//! word is percent-encoded where it holds a space, a percent sign or a control character. VMMs
//! append `virtio_mmio.device=` at the end, so that word is taken wherever it stands.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;
use core::time::Duration;
use glass_drivers_xen::BlkFeatures;
use glass_formats::GENERATION_WORD;
use glass_formats::trace::Group;
use glass_lib_net::Congestion;
use glass_lib_trace::{LevelFilter, parse_level};

/// The word that [`trace_groups`] reads.
const TRACE_WORD: &str = "trace=";
/// A host whose disk takes longer is taken to hang, as one whose files do.
const DISK_TIMEOUT: Duration = Duration::from_secs(30);

/// A command line, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub struct CommandLine {
    /// `ip=`
    pub address: Addressing,
    /// `ip6=`
    pub ipv6: Ipv6Addressing,
    /// `dns=ADDRESS[,ADDRESS]`: name servers; without it those of the DHCP server.
    pub name_servers: Vec<IpAddr>,
    /// `congestion=none|reno|cubic|bbr`: how the network's rate reacts to loss, `cubic` by default.
    pub congestion: Congestion,
    /// `console=PORT`: which port of the virtio console text goes to, 0 by default.
    pub console_port: u16,
    /// `cpus=NUMBER`: processors of the host, which C programs take for their own.
    pub cpus: Option<usize>,
    /// `disk-timeout=SECONDS`: how long a request to a disk may take before it fails, 30 by default.
    pub disk_timeout: Duration,
    /// `virtio_mmio.device=`, in order.
    pub devices: Vec<MmioDevice>,
    /// `xen-disk=FEATURES`: what disks of Xen use, `none` or some of `persistent` and `indirect`, to measure what each is good for. Both by default.
    pub xen_disk: BlkFeatures,
    /// `xen-offloads=off`: cards of Xen make no checksums and no segments, to measure what that is good for.
    pub xen_offloads: bool,
    /// `generation=ADDRESS`: where the VMM writes when it makes this VM a copy of another one.
    pub generation: Option<u64>,
    /// `log=LEVEL`: messages of the macros of `tracing` that are printed, warnings and errors by default.
    pub log: LevelFilter,
    /// The service's arguments.
    pub args: Vec<String>,
    /// Unknown platform words, or those that cannot be read, to be reported.
    pub unknown: Vec<String>,
}

/// How the network gets its address.
#[derive(Debug, Default, PartialEq, Eq, Clone, Copy)]
pub enum Addressing {
    /// `ip=dhcp`, or the default.
    #[default]
    Dhcp,
    /// `ip=ADDRESS/PREFIX[,GATEWAY]`
    Static {
        /// Our address.
        address: Ipv4Addr,
        /// Length of the network's prefix in bits.
        prefix_bits: u8,
        /// Where packets for other networks go.
        gateway: Option<Ipv4Addr>,
    },
}

/// How the network gets its IPv6 addresses.
#[derive(Debug, Default, PartialEq, Eq, Clone, Copy)]
pub enum Ipv6Addressing {
    /// `ip6=auto`, or the default: from the network's routers.
    #[default]
    Auto,
    /// `ip6=off`
    Off,
    /// `ip6=ADDRESS/PREFIX[,GATEWAY]`
    Static {
        /// Our address.
        address: Ipv6Addr,
        /// Length of the network's prefix in bits.
        prefix_bits: u8,
        /// Where packets for other networks go.
        gateway: Option<Ipv6Addr>,
    },
}

/// A virtio-mmio register window (Linux's `virtio_mmio.device=SIZE@ADDRESS:INTERRUPT` syntax).
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub struct MmioDevice {
    /// Address of the registers.
    pub address: u64,
    /// Global system interrupt.
    pub interrupt: u32,
}

/// The groups of events that `trace=GROUPS` in the command line `text` switches on, or the word that is no group.
/// Allocates nothing: tracing begins before there is a heap.
pub fn trace_groups(text: &str) -> Result<u32, &str> {
    let words = text.split_ascii_whitespace().take_while(|word| *word != "--");
    let mut groups = words.filter_map(|word| word.strip_prefix(TRACE_WORD));
    groups.try_fold(0, |bits, list| Ok(bits | Group::parse_list(list)?))
}

impl CommandLine {
    /// Takes `text` apart. Never fails: what cannot be read lands in `unknown`.
    pub fn parse(text: &str) -> CommandLine {
        let mut line = CommandLine {
            address: Addressing::Dhcp,
            ipv6: Ipv6Addressing::Auto,
            name_servers: Vec::new(),
            congestion: Congestion::Cubic,
            console_port: 0,
            cpus: None,
            disk_timeout: DISK_TIMEOUT,
            xen_disk: BlkFeatures::default(),
            xen_offloads: true,
            devices: Vec::new(),
            generation: None,
            log: LevelFilter::WARN,
            args: Vec::new(),
            unknown: Vec::new(),
        };
        let mut in_args = false;
        for word in text.split_ascii_whitespace() {
            if let Some(device) = word.strip_prefix("virtio_mmio.device=") {
                match parse_device(device) {
                    Some(device) => line.devices.push(device),
                    None => line.unknown.push(word.to_string()),
                }
            } else if in_args {
                line.args.push(decode(word));
            } else if word == "--" {
                in_args = true;
            } else if let Some(address) = word.strip_prefix("ip=").and_then(parse_addressing) {
                line.address = address;
            } else if let Some(ipv6) = word.strip_prefix("ip6=").and_then(parse_ipv6) {
                line.ipv6 = ipv6;
            } else if let Some(servers) = word.strip_prefix("dns=").and_then(parse_name_servers) {
                line.name_servers = servers;
            } else if let Some(congestion) = word.strip_prefix("congestion=").and_then(Congestion::named) {
                line.congestion = congestion;
            } else if let Some(port) = word.strip_prefix("console=").and_then(parse_port) {
                line.console_port = port;
            } else if let Some(cpus) = word.strip_prefix("cpus=").and_then(|cpus| cpus.parse().ok()) {
                line.cpus = Some(cpus);
            } else if let Some(timeout) = word.strip_prefix("disk-timeout=").and_then(parse_seconds) {
                line.disk_timeout = timeout;
            } else if let Some(features) = word.strip_prefix("xen-disk=").and_then(parse_features) {
                line.xen_disk = features;
            } else if word == "xen-offloads=off" {
                line.xen_offloads = false;
            } else if let Some(address) = word.strip_prefix(GENERATION_WORD).and_then(parse_address) {
                line.generation = Some(address);
            } else if let Some(level) = word.strip_prefix("log=").and_then(parse_level) {
                line.log = level;
            } else if !word.starts_with(TRACE_WORD) {
                line.unknown.push(word.to_string());
            }
        }
        line
    }
}

fn parse_device(text: &str) -> Option<MmioDevice> {
    let (address, interrupt) = text.split_once("@0x")?.1.split_once(':')?;
    let interrupt = interrupt.split(':').next()?;
    Some(MmioDevice { address: u64::from_str_radix(address, 16).ok()?, interrupt: interrupt.parse().ok()? })
}

fn parse_address(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

fn parse_features(text: &str) -> Option<BlkFeatures> {
    let none = BlkFeatures { persistent: false, indirect: false };
    if text == "none" {
        return Some(none);
    }
    text.split(',').try_fold(none, |features, name| match name {
        "persistent" => Some(BlkFeatures { persistent: true, ..features }),
        "indirect" => Some(BlkFeatures { indirect: true, ..features }),
        _ => None,
    })
}

fn parse_seconds(text: &str) -> Option<Duration> {
    text.parse().ok().filter(|seconds| *seconds > 0).map(|seconds: u32| Duration::from_secs(seconds.into()))
}

/// A virtio console has at most 511 ports, as it has 1024 queues.
fn parse_port(text: &str) -> Option<u16> {
    text.parse().ok().filter(|port| *port < 511)
}

fn parse_addressing(text: &str) -> Option<Addressing> {
    if text == "dhcp" {
        return Some(Addressing::Dhcp);
    }
    let (address, prefix_bits, gateway) = parse_network(text, 32)?;
    Some(Addressing::Static { address, prefix_bits, gateway })
}

fn parse_ipv6(text: &str) -> Option<Ipv6Addressing> {
    match text {
        "auto" => return Some(Ipv6Addressing::Auto),
        "off" => return Some(Ipv6Addressing::Off),
        _ => {}
    }
    let (address, prefix_bits, gateway) = parse_network(text, 128)?;
    Some(Ipv6Addressing::Static { address, prefix_bits, gateway })
}

/// `ADDRESS/PREFIX[,GATEWAY]`
fn parse_network<A: FromStr>(text: &str, bits_max: u8) -> Option<(A, u8, Option<A>)> {
    let (network, gateway) = match text.split_once(',') {
        Some((network, gateway)) => (network, Some(gateway.parse().ok()?)),
        None => (text, None),
    };
    let (address, prefix) = network.split_once('/')?;
    let prefix_bits = prefix.parse().ok().filter(|bits| *bits <= bits_max)?;
    Some((address.parse().ok()?, prefix_bits, gateway))
}

fn parse_name_servers(text: &str) -> Option<Vec<IpAddr>> {
    text.split(',').map(|address| address.parse().ok()).collect()
}

/// Undoes percent-encoding; what is no valid escape stays as it is.
fn decode(word: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = word.as_bytes();
    while let [first, tail @ ..] = rest {
        let escape = tail.get(..2).and_then(|hex| u8::from_str_radix(core::str::from_utf8(hex).ok()?, 16).ok());
        match (first, escape) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platform_words_and_arguments_are_told_apart() {
        let line = CommandLine::parse(
            "ip=10.0.2.15/24,10.0.2.2 dns=10.0.2.3,fec0::3 congestion=bbr quiet console=2 cpus=3 disk-timeout=5 log=debug -- --port 8080 a%20b%25 %zz virtio_mmio.device=512@0xfeb00e00:12",
        );
        assert_eq!(
            line.address,
            Addressing::Static {
                address: Ipv4Addr::new(10, 0, 2, 15),
                prefix_bits: 24,
                gateway: Some(Ipv4Addr::new(10, 0, 2, 2))
            }
        );
        assert_eq!(line.name_servers, ["10.0.2.3".parse::<IpAddr>().unwrap(), "fec0::3".parse().unwrap()]);
        assert_eq!(line.devices, [MmioDevice { address: 0xfeb0_0e00, interrupt: 12 }]);
        assert_eq!((line.console_port, line.cpus), (2, Some(3)));
        assert_eq!((line.congestion, CommandLine::parse("").congestion), (Congestion::Bbr, Congestion::Cubic));
        assert_eq!((line.disk_timeout, CommandLine::parse("").disk_timeout), (Duration::from_secs(5), DISK_TIMEOUT));
        assert_eq!(line.log, LevelFilter::DEBUG);
        assert_eq!(line.args, ["--port", "8080", "a b%", "%zz"]);
        assert_eq!(line.unknown, ["quiet"]);
    }

    #[test]
    fn ipv6_has_a_word_of_its_own() {
        let ipv6 = |text| CommandLine::parse(text).ipv6;
        assert_eq!(ipv6("ip=dhcp"), Ipv6Addressing::Auto);
        assert_eq!(ipv6("ip6=off"), Ipv6Addressing::Off);
        assert_eq!(ipv6("ip6=off ip6=auto"), Ipv6Addressing::Auto);
        let (address, gateway) = ("fd00::2".parse().unwrap(), "fe80::1".parse().ok());
        assert_eq!(ipv6("ip6=fd00::2/64"), Ipv6Addressing::Static { address, prefix_bits: 64, gateway: None });
        assert_eq!(ipv6("ip6=fd00::2/56,fe80::1"), Ipv6Addressing::Static { address, prefix_bits: 56, gateway });
    }

    #[test]
    fn features_of_disks_and_cards_can_be_left_out() {
        let features = |text| {
            let BlkFeatures { persistent, indirect } = CommandLine::parse(text).xen_disk;
            (persistent, indirect)
        };
        assert_eq!(features("ip=dhcp"), (true, true));
        assert_eq!(features("xen-disk=none"), (false, false));
        assert_eq!(features("xen-disk=indirect"), (false, true));
        assert_eq!(features("xen-disk=persistent,indirect"), (true, true));
        assert!(CommandLine::parse("").xen_offloads && !CommandLine::parse("xen-offloads=off").xen_offloads);
    }

    #[test]
    fn the_place_of_the_generation_is_hexadecimal() {
        let place = |text| CommandLine::parse(text).generation;
        assert_eq!(place("generation=0x5000 ip=dhcp"), Some(0x5000));
        assert_eq!((place(""), place("generation=5000"), place("generation=0xg")), (None, None, None));
    }

    #[test]
    fn groups_of_events_are_found_among_the_platforms_words() {
        assert_eq!(trace_groups("ip=dhcp trace=cores,devices trace=tasks -- trace=nonsense"), Ok(7));
        assert_eq!(trace_groups("ip=dhcp"), Ok(0));
        assert_eq!(trace_groups("trace=cores,disks"), Err("disks"));
        assert!(CommandLine::parse("trace=cores,disks").unknown.is_empty());
    }

    #[test]
    fn nonsense_is_reported_and_changes_nothing() {
        for word in [
            "ip=1.2.3.4",
            "ip=1.2.3.4/33",
            "ip=x/8",
            "virtio_mmio.device=512@feb:x",
            "ip=1.2.3.4/8,no",
            "ip6=fd00::2",
            "ip6=fd00::2/129",
            "ip6=10.0.2.15/24",
            "ip=fd00::2/64",
            "dns=10.0.2.3,",
            "congestion=fast",
            "console=x",
            "console=511",
            "cpus=many",
            "disk-timeout=0",
            "disk-timeout=5s",
            "log=loud",
            "xen-disk=fast",
            "xen-disk=persistent,none",
        ] {
            let line = CommandLine::parse(word);
            assert_eq!(line.unknown, [word]);
            assert_eq!((line.address, line.log), (Addressing::Dhcp, LevelFilter::WARN));
            assert_eq!(line.ipv6, Ipv6Addressing::Auto);
        }
    }
}
