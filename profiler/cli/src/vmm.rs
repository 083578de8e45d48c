//! `glass vmm`: the process of a VM that `glass run` starts in place of QEMU.

use anyhow::{Context, Result, ensure};
use glass_devices::{DiskOptions, UserNetwork};
use glass_vmm::{Machine, Network};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use std::path::PathBuf;

/// Runs a VM in this process, with its console on standard input and output, until it ends.
#[derive(clap::Args)]
pub struct Args {
    /// The image.
    image: PathBuf,
    /// The image's command line.
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    command_line: String,
    /// Bytes of memory.
    #[arg(long)]
    memory: u64,
    /// Processors.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=i64::from(glass_vmm::CORES_MAX)))]
    cores: u8,
    /// Disk 0: a raw file or a block device.
    #[arg(long)]
    disk: Option<PathBuf>,
    /// Past the host's page cache.
    #[arg(long)]
    disk_direct: bool,
    /// A TAP device behind the network card.
    #[arg(long)]
    tap: Option<String>,
    /// The program passt, which is the network behind the card.
    #[arg(long, conflicts_with = "tap")]
    passt: Option<PathBuf>,
    /// A TCP port of 127.0.0.1 and the VM's port to which it leads.
    #[arg(long, value_name = "HOST:GUEST", value_parser = parse_port)]
    port: Vec<(u16, u16)>,
    /// The process with which the VM ends.
    #[arg(long)]
    parent: Option<i32>,
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
    let options = DiskOptions { is_direct: args.disk_direct, is_read_only: false };
    glass_vmm::run(&Machine {
        image: args.image,
        command_line: args.command_line,
        memory_bytes: args.memory,
        cores: args.cores,
        disk: args.disk.map(|path| (path, options)),
        network: match (args.tap, args.passt) {
            (Some(name), _) => Network::Tap(name),
            (None, Some(program)) => Network::User(UserNetwork { program, ports: args.port }),
            (None, None) => Network::None,
        },
        mac: MAC,
    })
}

fn parse_port(text: &str) -> Result<(u16, u16), String> {
    let ports = text.split_once(':').and_then(|(host, guest)| Some((host.parse().ok()?, guest.parse().ok()?)));
    ports.ok_or_else(|| format!("`{text}` is no pair of ports"))
}
