//! `glass vmm`: the process of a VM that `glass run` starts in place of QEMU.

use crate::run::network_in;
use anyhow::{Context, Result, anyhow, bail, ensure};
use glass_devices::{DiskOptions, UserNetwork};
use glass_vmm::{Copies, CopyAddress, CopyNetwork, Machine, Network, TapCopies};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::str::FromStr;

/// What `glass run` has this process do. Its options are for that alone, and are read without the parser of the other commands, which takes as long as
/// all that comes before KVM.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Args {
    /// The image.
    image: Option<PathBuf>,
    /// The image's command line.
    command_line: String,
    /// A snapshot, in place of an image.
    from: Option<PathBuf>,
    /// Copies of the snapshot; 0 is one.
    copies: u16,
    /// Whether the pages that the only copy uses can be read from outside.
    record_pages: bool,
    /// Where something listens for the page faults of the only copy.
    faults: Option<PathBuf>,
    /// Where to listen for requests for a snapshot.
    snapshots: Option<PathBuf>,
    /// Bytes of memory.
    memory: u64,
    /// Processors; 0 is one.
    cores: u8,
    /// Disk 0: a raw file or a block device; of copies, the name of a new file for each, with `{}` for its number.
    disk: Option<PathBuf>,
    /// Disk 1, with files that the VM cannot change.
    files_disk: Option<PathBuf>,
    /// Past the host's page cache.
    disk_direct: bool,
    /// A log of what the VM writes to its disk, and its greatest length in bytes.
    record_writes: Option<PathBuf>,
    record_limit: u64,
    /// A TAP device behind the network card; of copies, one for each, with `{}` for its number.
    tap: Option<String>,
    /// Where copies behind TAP devices get their addresses; `None` is a DHCP server.
    ip: Option<CopyAddress>,
    /// Whether copies start when clients connect to their ports.
    on_demand: bool,
    /// Sockets of this host behind the network card.
    user_network: bool,
    /// A TCP port of 127.0.0.1 and the VM's port to which it leads.
    port: Vec<(u16, u16)>,
    /// The process with which the VM ends.
    parent: Option<i32>,
}

impl Args {
    /// Reads the words behind `glass vmm`.
    ///
    /// # Errors
    /// A word is unknown, or lacks its value.
    pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Args> {
        let mut args = Args::default();
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            let name = word.to_str().filter(|name| name.starts_with("--"));
            let Some(name) = name else {
                ensure!(args.image.replace(word.into()).is_none(), "there is more than one image");
                continue;
            };
            let mut value = || words.next().with_context(|| format!("{name} lacks its value"));
            match name {
                "--command-line" => args.command_line = text(name, value()?)?,
                "--from" => args.from = Some(value()?.into()),
                "--copies" => args.copies = number(name, value()?)?,
                "--record-pages" => args.record_pages = true,
                "--faults" => args.faults = Some(value()?.into()),
                "--snapshots" => args.snapshots = Some(value()?.into()),
                "--memory" => args.memory = number(name, value()?)?,
                "--cores" => args.cores = number(name, value()?)?,
                "--disk" => args.disk = Some(value()?.into()),
                "--files-disk" => args.files_disk = Some(value()?.into()),
                "--disk-direct" => args.disk_direct = true,
                "--record-writes" => args.record_writes = Some(value()?.into()),
                "--record-limit" => args.record_limit = number(name, value()?)?,
                "--tap" => args.tap = Some(text(name, value()?)?),
                "--ip" => args.ip = Some(parse_address(&text(name, value()?)?)?),
                "--on-demand" => args.on_demand = true,
                "--user-network" => args.user_network = true,
                "--port" => args.port.push(parse_port(&text(name, value()?)?)?),
                "--parent" => args.parent = Some(number(name, value()?)?),
                _ => bail!("`glass vmm` is for `glass run`, and has no {name}"),
            }
        }
        ensure!(args.image.is_some() != args.from.is_some(), "`glass vmm` takes an image, or --from and a snapshot");
        ensure!(args.cores <= glass_vmm::CORES_MAX, "a VM has at most {} cores", glass_vmm::CORES_MAX);
        Ok(args)
    }
}

fn text(name: &str, value: OsString) -> Result<String> {
    value.into_string().map_err(|_| anyhow!("the value of {name} is no text"))
}

fn number<T: FromStr>(name: &str, value: OsString) -> Result<T> {
    let value = text(name, value)?;
    value.parse().map_err(|_| anyhow!("the value of {name} is no number in its range: `{value}`"))
}

/// The address of the card: QEMU's first one.
const MAC: [u8; 6] = [0x52, 0x54, 0x00, 0x12, 0x34, 0x56];

/// Runs the command. Returns only if the VM cannot start.
pub fn run(args: Args) -> Result<()> {
    if let Some(parent) = args.parent {
        set_parent_process_death_signal(Some(Signal::KILL))
            .context("cannot end with the process that starts the VM")?;
        // It may have ended before.
        let is_there = getppid().is_some_and(|pid| pid.as_raw_nonzero().get() == parent);
        ensure!(is_there, "the process that starts the VM has ended");
    }
    let write_log = crate::disk::write_log(args.record_writes.as_deref(), args.record_limit);
    let options = DiskOptions { is_direct: args.disk_direct, write_log, ..DiskOptions::default() };
    if let Some(snapshot) = args.from {
        let name = args.disk.map(|path| text("--disk", path.into())).transpose()?;
        return glass_vmm::run_copies(&Copies {
            snapshot,
            count: args.copies.max(1),
            network: match args.tap {
                Some(name) => CopyNetwork::Tap(TapCopies { name, address: args.ip.unwrap_or(CopyAddress::Dhcp) }),
                None => CopyNetwork::User(UserNetwork { ports: args.port }),
            },
            on_demand: args.on_demand,
            mac: MAC,
            disk: name.map(|name| (name, options)),
            records_pages: args.record_pages,
            faults: args.faults,
        });
    }
    glass_vmm::run(&Machine {
        image: args.image.context("there is no image")?,
        command_line: args.command_line,
        memory_bytes: args.memory,
        cores: args.cores.max(1),
        disk: args.disk.map(|path| (path, options)),
        files_disk: args.files_disk,
        network: match args.tap {
            Some(name) => Network::Tap(name),
            None if args.user_network => Network::User(UserNetwork { ports: args.port }),
            None => Network::None,
        },
        mac: MAC,
        snapshots: args.snapshots,
    })
}

/// `dhcp` or `ADDRESS/PREFIX[,GATEWAY]`, as images have it on their command lines.
fn parse_address(text: &str) -> Result<CopyAddress> {
    let from = |(first, prefix_bits, gateway)| CopyAddress::From { first, prefix_bits, gateway };
    let address = match text {
        "dhcp" => Some(CopyAddress::Dhcp),
        _ => network_in(text, Ipv4Addr::BITS as u8).map(from),
    };
    address.with_context(|| format!("`{text}` is no address of a network"))
}

fn parse_port(text: &str) -> Result<(u16, u16)> {
    let ports = text.split_once(':').and_then(|(host, guest)| Some((host.parse().ok()?, guest.parse().ok()?)));
    ports.with_context(|| format!("`{text}` is no pair of ports"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Result<Args, String> {
        Args::parse(words.split_whitespace().map(OsString::from)).map_err(|error| error.to_string())
    }

    #[test]
    fn options_stand_before_and_behind_the_image() {
        let args = parse("--memory 67108864 a --port 80:8080 --port 81:8081 --disk-direct --cores 2").unwrap();
        let expected = Args {
            image: Some("a".into()),
            memory: 64 << 20,
            port: vec![(80, 8080), (81, 8081)],
            disk_direct: true,
            cores: 2,
            ..Args::default()
        };
        assert_eq!(args, expected);
        let words = ["a", "--command-line", "--port -- x"].map(OsString::from);
        assert_eq!(Args::parse(words).unwrap().command_line, "--port -- x");
    }

    #[test]
    fn copies_have_addresses_of_a_network_or_of_a_server() {
        let address = |text: &str| parse(&format!("--from a --tap tap{{}} --ip {text}")).unwrap().ip;
        assert_eq!(address("dhcp"), Some(CopyAddress::Dhcp));
        let first = Ipv4Addr::new(10, 0, 0, 9);
        let gateway = Some(Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(address("10.0.0.9/24,10.0.0.1"), Some(CopyAddress::From { first, prefix_bits: 24, gateway }));
        assert_eq!(address("10.0.0.9/24"), Some(CopyAddress::From { first, prefix_bits: 24, gateway: None }));
    }

    #[test]
    fn what_is_wrong_is_one_sentence() {
        for (words, sentence) in [
            ("", "takes an image, or --from"),
            ("a --from b", "takes an image, or --from"),
            ("a b", "more than one image"),
            ("a --memory", "--memory lacks its value"),
            ("a --memory x", "no number in its range: `x`"),
            ("a --cores 255", "at most 254 cores"),
            ("--from a --copies 65536", "no number in its range"),
            ("a --port 80", "`80` is no pair of ports"),
            ("--from a --ip 10.0.0.1", "`10.0.0.1` is no address of a network"),
            ("a --what", "has no --what"),
        ] {
            let error = parse(words).unwrap_err();
            assert!(error.contains(sentence) && !error.contains('\n'), "{words}: {error}");
        }
    }
}
