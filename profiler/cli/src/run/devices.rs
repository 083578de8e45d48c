//! The VM's devices that processes of `glass` serve instead of QEMU: the network card in front of a TAP device, and the disk.

use super::Args;
use super::escape::escape;
use super::helpers::{Helper, Role};
use super::options::Network;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// A device, and the process that serves it. The VM ends with it, since QEMU connects to it only at its start: without its disk a service waits
/// forever, and without its card it cannot be reached, while it looks as if it ran.
pub(super) struct Device {
    role: Role,
    /// What QEMU calls it.
    name: &'static str,
    /// The words of the command, behind `glass`, without the socket.
    words: Vec<String>,
}

/// The network card, if a process serves it: without KVM, QEMU 7.2 crashes when the card's interrupts come from there.
pub(super) fn card(args: &Args, accel: &str) -> Option<Device> {
    let Network::Tap(tap) = &args.net else { return None };
    let words = vec!["tap".to_owned(), tap.clone()];
    let role = Role { name: "glass tap", serves: "network", is_vital: true };
    (accel == "kvm").then_some(Device { role, name: "card", words })
}

/// The disk, if a process serves it: on a host with io_uring, and with KVM, where each request to QEMU costs the VM an exit, or to record its writes.
pub(super) fn disk(args: &Args, accel: &str) -> Option<Device> {
    let path = args.disk.as_ref()?;
    let mut words = vec!["disk".to_owned(), path.display().to_string()];
    words.extend(args.disk_direct.then(|| "--direct".to_owned()));
    if let Some(log) = &args.record_writes {
        let limit = args.record_limit.to_string();
        words.extend(["--record-writes".to_owned(), log.display().to_string(), "--record-limit".to_owned(), limit]);
    }
    let is_apart = (accel == "kvm" || args.record_writes.is_some()) && glass_devices::has_io_uring();
    let role = Role { name: "glass disk", serves: "disk", is_vital: true };
    is_apart.then_some(Device { role, name: "disk", words })
}

/// All that processes serve.
fn all(args: &Args, accel: &str) -> impl Iterator<Item = Device> {
    [card(args, accel), disk(args, accel)].into_iter().flatten()
}

/// The commands that start the processes.
pub(super) fn commands(args: &Args, accel: &str, folder: &Path) -> Vec<String> {
    all(args, accel).map(|device| format!("glass {}", super::shell_words(&device.words(folder)))).collect()
}

/// Starts the processes.
pub(super) fn start(args: &Args, accel: &str, folder: &Path) -> Result<Vec<Helper>> {
    let start = |device: Device| {
        let program = std::env::current_exe().context("cannot find the program glass")?;
        let log = folder.join(format!("{}.log", device.name));
        Helper::start(device.role, &program, &device.words(folder), &device.socket(folder), log)
    };
    all(args, accel).map(start).collect()
}

impl Device {
    /// QEMU's options for the socket.
    pub(super) fn chardev(&self, folder: &Path) -> [String; 2] {
        ["-chardev".to_owned(), format!("socket,id={},path={}", self.name, escape(&self.socket(folder)))]
    }

    fn socket(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{}.socket", self.name))
    }

    fn words(&self, folder: &Path) -> Vec<String> {
        let socket = self.socket(folder).display().to_string();
        self.words.iter().cloned().chain(["--socket".to_owned(), socket]).collect()
    }
}
