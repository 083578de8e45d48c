//! `glass disk`: the disk of a VM in a file of the host.

use crate::run::parse_size;
use anyhow::Result;
use glass_devices::{DiskOptions, WriteLog};
use std::path::{Path, PathBuf};

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
    /// Record every write and flush of the guest in this file, for `glass powercut`.
    #[arg(long, value_name = "LOG", conflicts_with = "read_only")]
    record_writes: Option<PathBuf>,
    /// Greatest length of that file; then it ends, and the disk is served on.
    #[arg(long, value_name = "SIZE", default_value = LOG_BYTES_DEFAULT, value_parser = parse_size, requires = "record_writes")]
    record_limit: u64,
}

/// As `--record-limit` has it.
pub const LOG_BYTES_DEFAULT: &str = "8G";

/// The log that options request.
pub fn write_log(path: Option<&Path>, bytes_max: u64) -> Option<WriteLog> {
    path.map(|path| WriteLog { path: path.to_owned(), bytes_max })
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let options = DiskOptions {
        is_direct: args.direct,
        is_read_only: args.read_only,
        write_log: write_log(args.record_writes.as_deref(), args.record_limit),
    };
    glass_devices::serve_disk(&args.path, &options, &args.socket)
}
