//! Devices of a VM, between its queues and the host: a network card and a disk (`device`). Each is served outside of QEMU, in a process of its own
//! (`vhost_user`).

mod card;
mod device;
mod disk;
mod jail;
mod rings;
#[cfg(feature = "script")]
pub mod script;
#[cfg(test)]
mod test_guest;
mod vhost_user;

use anyhow::Result;
pub use card::check as check_tap;
use card::{Card, Tap};
use disk::Disk;
pub use disk::{DiskOptions, has_io_uring};
use std::path::Path;

/// Serves the network card of one VM until its QEMU ends. `name` is an existing TAP device; QEMU connects to the unix socket `socket`,
/// which is made here, as its `-netdev vhost-user`.
pub fn serve_tap(name: &str, socket: &Path) -> Result<()> {
    vhost_user::serve(Card::new(Tap::open(name)?), socket, card::system_calls())
}

/// Serves the disk of one VM, the file or block device `path`, until its QEMU ends, which connects to the unix socket `socket`, which is
/// made here.
pub fn serve_disk(path: &Path, options: DiskOptions, socket: &Path) -> Result<()> {
    vhost_user::serve(Disk::open(path, options)?, socket, disk::system_calls())
}
