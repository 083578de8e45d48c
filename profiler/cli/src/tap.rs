//! `glass tap`: the network card of a VM in front of a TAP device.

use anyhow::Result;
use std::path::PathBuf;

/// Serves the network card of a VM in front of a TAP device, until its QEMU ends.
///
/// `glass run --net tap=NAME` does it for its VMs. Another QEMU needs `-object memory-backend-memfd,share=on`,
/// `-chardev socket,id=card,path=PATH` and `-netdev vhost-user,chardev=card`.
/// When QEMU has connected, the process gives up all that it does not need: files, its user if that is root, most system calls.
#[derive(clap::Args)]
pub struct Args {
    /// An existing TAP device.
    name: String,
    /// Unix socket to make, to which QEMU connects.
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    glass_devices::serve_tap(&args.name, &args.socket)
}
