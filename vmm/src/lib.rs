//! A VMM for images of Glasshouse under KVM, in one process: processors and devices are its threads. It boots an image by PVH, without firmware and
//! without ACPI for one core, and has the devices of `glass_devices` on virtio-mmio. Decision 44 has the reasons.
#![deny(unsafe_code)]

mod image;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use std::net::Ipv4Addr;
use std::path::PathBuf;

use glass_devices::{DiskOptions, UserNetwork};
pub use image::Image;
#[cfg(all(feature = "script", target_arch = "x86_64"))]
pub use x86_64::script;
#[cfg(target_arch = "x86_64")]
pub use x86_64::{
    disk_of_snapshot, name_of_copy, origin, pages_of_snapshot, run, run_copies, used_pages, write_snapshot,
};

/// As many processors as the identifiers of a local APIC can name, without the one for all.
pub const CORES_MAX: u8 = 254;

/// A VM.
#[derive(Debug, Clone)]
pub struct Machine {
    /// The ELF file that it boots.
    pub image: PathBuf,
    /// For the image; what describes the machine is added.
    pub command_line: String,
    /// Bytes of RAM.
    pub memory_bytes: u64,
    /// Processors, 1 to [`CORES_MAX`].
    pub cores: u8,
    /// A file or block device that is its disk.
    pub disk: Option<(PathBuf, DiskOptions)>,
    /// The same with the files of its service, which it cannot change: its second disk.
    pub files_disk: Option<PathBuf>,
    /// What is behind its network card.
    pub network: Network,
    /// The address of the card.
    pub mac: [u8; 6],
    /// Where its VMM listens for requests for a snapshot: the path of a unix socket that does not exist.
    pub snapshots: Option<PathBuf>,
}

/// Copies of a VM.
#[derive(Debug, Clone)]
pub struct Copies {
    /// The snapshot of that VM.
    pub snapshot: PathBuf,
    /// How many, at least one.
    pub count: u16,
    /// What is behind their cards, if the VM had one.
    pub network: CopyNetwork,
    /// Whether each copy starts when a client connects to one of its ports, and not at once.
    pub on_demand: bool,
    /// The address of the card of the VM, and of its copies on user networks.
    pub mac: [u8; 6],
    /// The disk of each copy, if the VM had one: a file that is made, `{}` in its name the copy's number.
    pub disk: Option<(String, DiskOptions)>,
    /// Whether [`used_pages`] of the only copy are exact, which makes it slower.
    pub records_pages: bool,
    /// Who listens for the page faults of the only copy: the path of a unix socket.
    pub faults: Option<PathBuf>,
}

/// What is behind a network card.
#[derive(Debug, Clone)]
pub enum Network {
    /// There is no card.
    None,
    /// An existing TAP device.
    Tap(String),
    /// The host's sockets.
    User(UserNetwork),
}

/// What is behind the network cards of copies.
#[derive(Debug, Clone)]
pub enum CopyNetwork {
    /// The host's sockets. The ports are those of the first copy; the host's ports of each further copy are the next ones.
    User(UserNetwork),
    /// TAP devices, one for each.
    Tap(TapCopies),
}

/// The network of copies behind TAP devices.
#[derive(Debug, Clone)]
pub struct TapCopies {
    /// The name of the existing device, `{}` in it the copy's number.
    pub name: String,
    /// The addresses of the copies.
    pub address: CopyAddress,
}

/// Where copies get their IPv4 addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyAddress {
    /// From a DHCP server.
    Dhcp,
    /// These, one behind the other.
    From {
        /// That of the first copy.
        first: Ipv4Addr,
        /// Bits of the network's prefix.
        prefix_bits: u8,
        /// The router for other networks.
        gateway: Option<Ipv4Addr>,
    },
}

#[cfg(not(target_arch = "x86_64"))]
pub use other::{
    disk_of_snapshot, name_of_copy, origin, pages_of_snapshot, run, run_copies, used_pages, write_snapshot,
};

/// What there is for other processors.
#[cfg(not(target_arch = "x86_64"))]
mod other {
    use std::fs::File;
    use std::path::{Path, PathBuf};

    use anyhow::{Result, bail};

    use crate::{Copies, Machine};

    /// # Errors
    /// Always.
    pub fn run(_machine: &Machine) -> Result<()> {
        bail!("our VMM boots images for x86-64 only: use --vmm qemu")
    }

    /// # Errors
    /// Always.
    pub fn run_copies(_copies: &Copies) -> Result<()> {
        bail!("our VMM runs copies on x86-64 only")
    }

    /// There is none.
    pub fn name_of_copy(pattern: &str, _index: u16) -> String {
        pattern.to_owned()
    }

    /// There is none.
    pub fn disk_of_snapshot(snapshot: &Path) -> PathBuf {
        snapshot.into()
    }

    /// There is none.
    pub fn pages_of_snapshot(snapshot: &Path) -> PathBuf {
        snapshot.into()
    }

    /// # Errors
    /// Always.
    pub fn used_pages(_pid: u32, _snapshot: &Path) -> Result<(usize, Vec<u8>)> {
        bail!("our VMM runs copies on x86-64 only")
    }

    /// # Errors
    /// Always.
    pub fn origin(_snapshot: &Path) -> Result<(PathBuf, Vec<u8>)> {
        bail!("our VMM runs copies on x86-64 only")
    }

    /// # Errors
    /// Always.
    pub fn write_snapshot(
        _pid: u32,
        _socket: &Path,
        _origin: (PathBuf, Vec<u8>),
        _file: &File,
        _disk: Option<(&File, &File)>,
    ) -> Result<()> {
        bail!("our VMM takes snapshots on x86-64 only")
    }
}
