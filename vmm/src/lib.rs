//! A VMM for images of Glasshouse under KVM, in one process: processors and devices are its threads. It boots an image by PVH, without firmware and
//! without ACPI for one core, and has the devices of `glass_devices` on virtio-mmio. Decision 44 has the reasons.
#![deny(unsafe_code)]

mod image;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use std::path::PathBuf;

use glass_devices::{DiskOptions, UserNetwork};
pub use image::Image;
#[cfg(target_arch = "x86_64")]
pub use x86_64::run;
#[cfg(all(feature = "script", target_arch = "x86_64"))]
pub use x86_64::script;

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
    /// What is behind its network card.
    pub network: Network,
    /// The address of the card.
    pub mac: [u8; 6],
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

/// There is none for this processor.
///
/// # Errors
/// Always.
#[cfg(not(target_arch = "x86_64"))]
pub fn run(_machine: &Machine) -> anyhow::Result<()> {
    anyhow::bail!("our VMM boots images for x86-64 only: use --vmm qemu")
}
