//! Programs of the host that serve a device of the Linux guest over a unix socket (vhost-user), with the options that `glass run` gives them.

use anyhow::{Context, Result};
use glass_tests::folder::Folder;
use glass_tests::process::Process;
use glass_tests::vsock;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where systems have virtiofsd; that of Debian 12 is part of QEMU and has other options.
const VIRTIOFSD_OF_QEMU: &str = "/usr/lib/qemu/virtiofsd";
const VIRTIOFSD: [&str; 2] = ["/usr/libexec/virtiofsd", "/usr/lib/virtiofsd/virtiofsd"];

/// A running helper. Dropping it ends it.
#[derive(Debug)]
pub struct Helper {
    _process: Process,
    /// The socket between QEMU and it.
    pub socket: PathBuf,
}

impl Helper {
    fn start(command: &mut Command, socket: PathBuf, log: &Path) -> Result<Helper> {
        let process = Process::spawn_with_socket(command, &socket, log)?;
        Ok(Helper { _process: process, socket })
    }
}

/// Serves the directory `site` by virtio-fs. The socket is in `folder`.
pub fn share(site: &Path, folder: &Folder) -> Result<Helper> {
    let socket = folder.file("linux.files");
    let socket_option = format!("--socket-path={}", socket.display());
    let mut command = if Path::new(VIRTIOFSD_OF_QEMU).is_file() {
        let mut command = Command::new(VIRTIOFSD_OF_QEMU);
        command.arg("-o").arg(format!("source={},cache=auto,no_writeback,no_xattr,no_flock", site.display())).arg("-f");
        command
    } else {
        let program = VIRTIOFSD.into_iter().find(|path| Path::new(path).is_file()).context("there is no virtiofsd")?;
        let mut command = Command::new(program);
        command.arg(format!("--shared-dir={}", site.display())).arg("--cache=auto");
        command
    };
    Helper::start(command.arg(socket_option), socket, &folder.file("linux.files.log"))
}

/// Serves vsock; clients connect to the unix socket `clients`. The socket to QEMU is in `folder`.
pub fn vsock(clients: &Path, folder: &Folder) -> Result<Helper> {
    let socket = folder.file("linux.vsock-device");
    let program = vsock::built()?.join("vhost-device-vsock");
    let mut command = Command::new(program);
    command.args(["--guest-cid=3", "--tx-buffer-size=262144"]);
    command.arg(format!("--socket={}", socket.display())).arg(format!("--uds-path={}", clients.display()));
    Helper::start(&mut command, socket, &folder.file("linux.vsock.log"))
}
