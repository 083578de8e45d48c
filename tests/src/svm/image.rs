//! The kernel of a machine with an ordinary KVM, its first file system, and that of its Linux guests, made of Debian's packages.

use crate::archive::Archive;
use crate::cache;
use crate::emulated::SCRIPTS;
use crate::emulated::packages::{self, Packages};
use anyhow::Result;
use std::path::{Path, PathBuf};

/// Modules of the kernel that are loaded, the last with an option.
const MODULES: [&str; 14] = [
    "virtio",
    "virtio_ring",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "netfs",
    "fscache",
    "9pnet",
    "9pnet_virtio",
    "9p",
    "overlay",
    "ccp",
    "kvm",
    "kvm-amd",
];
/// Modules that other modules need, where they are not built in.
const NEEDED: [&str; 2] = ["irqbypass", "rng-core"];
const INIT: &str = include_str!("init.sh");
const GUEST: &str = include_str!("guest.sh");
/// Changes when an image is made in another way.
const MAKER: &str = "1";

/// What QEMU boots.
#[derive(Debug, Clone)]
pub struct Image {
    /// Where all of it is; `guest-files` is the first file system of Linux guests, whose kernel is the same.
    pub folder: PathBuf,
    /// The kernel.
    pub kernel: PathBuf,
    /// Its first file system.
    pub files: PathBuf,
}

/// The image, made where the cache has none of these versions; or the reason why there is none.
pub fn get() -> Result<Image> {
    let folder = packages::with_lists(|| {
        let packages = packages::kernel_and_shell()?;
        let made_by = [MAKER, INIT, SCRIPTS, GUEST, &packages.key, &modules().concat()].concat();
        cache::filled(&format!("svm-image-{}", cache::digest(made_by.as_bytes())), |folder| make(&packages, folder))
    })?;
    Ok(Image { kernel: folder.join("kernel"), files: folder.join("files"), folder })
}

fn modules() -> Vec<&'static str> {
    [&NEEDED[..], &MODULES].concat()
}

fn make(packages: &Packages, folder: &Path) -> Result<()> {
    let root = folder.join("root");
    std::fs::create_dir(&root)?;
    packages::unpack(&packages.folder, &root, &modules())?;
    std::fs::copy(packages::kernel(&root)?, folder.join("kernel"))?;
    let mut files = first_files(&root, &format!("{INIT}{SCRIPTS}"))?;
    packages::add_modules(&mut files, &root, &modules())?;
    std::fs::write(folder.join("files"), files.finish())?;
    std::fs::write(folder.join("guest-files"), first_files(&root, GUEST)?.finish())?;
    Ok(std::fs::remove_dir_all(root)?)
}

/// A shell, and the script that is the first process.
fn first_files(root: &Path, init: &str) -> Result<Archive> {
    let mut archive = Archive::default();
    ["dev", "proc", "sys", "tmp"].into_iter().for_each(|folder| archive.folder(folder));
    archive.file("bin/busybox", true, &std::fs::read(packages::shell(root)?)?);
    archive.file("init", true, init.as_bytes());
    Ok(archive)
}
