//! Devices of a VM, between its queues and the host: a network card, a disk, a console and a source of entropy ([`Device`]). A VMM serves them on
//! threads of its own; the first two are also served outside of QEMU, in a process each (`vhost_user`).

mod card;
mod console;
mod device;
mod disk;
mod entropy;
mod jail;
mod rings;
#[cfg(feature = "script")]
pub mod script;
#[cfg(test)]
mod test_guest;
mod vhost_user;

use anyhow::Result;
pub use card::check as check_tap;
pub use card::{Card, Link, Listeners, Tap, User, UserNetwork};
pub use console::Console;
pub use device::{Device, FEATURES_OF_ALL, Host, Served, Started, Turn};
pub use disk::{Disk, DiskOptions, WriteLog, has_io_uring};
pub use entropy::Entropy;
pub use jail::allow_control;
pub use rings::{Place, Position, QUEUE_SIZE_MAX, Ring};
use std::path::Path;

/// Serves the network card of one VM until its QEMU ends. `name` is an existing TAP device; QEMU connects to the unix socket `socket`,
/// which is made here, as its `-netdev vhost-user`.
pub fn serve_tap(name: &str, socket: &Path) -> Result<()> {
    vhost_user::serve(Card::new(Tap::open(name)?), socket)
}

/// Serves the disk of one VM, the file or block device `path`, until its QEMU ends, which connects to the unix socket `socket`, which is
/// made here.
pub fn serve_disk(path: &Path, options: &DiskOptions, socket: &Path) -> Result<()> {
    vhost_user::serve(Disk::open(path, options)?, socket)
}
