//! `glass disk`: the disk of a VM in a file of the host.

use anyhow::Result;
use glass_devices::DiskOptions;
use std::path::PathBuf;

/// Serves the disk of a VM, until its QEMU ends.
///
/// `glass run --disk PATH` does it for its VMs under KVM. Another QEMU needs `-object memory-backend-memfd,share=on`,
/// `-chardev socket,id=disk,path=SOCKET` and `-device vhost-user-blk-pci,chardev=disk,num-queues=1`.
/// When QEMU has connected, the process gives up all that it does not need: other files, its user if that is root, most system calls.
#[derive(clap::Args)]
pub struct Args {
    /// A raw file or a block device.
    path: PathBuf,
    /// Unix socket to make, to which QEMU connects.
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Do not use the page cache of the host.
    #[arg(long)]
    direct: bool,
    /// The guest cannot change the disk.
    #[arg(long)]
    read_only: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let options = DiskOptions { is_direct: args.direct, is_read_only: args.read_only };
    glass_devices::serve_disk(&args.path, options, &args.socket)
}
