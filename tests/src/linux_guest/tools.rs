//! A disk with perf, for guests in which it measures. Other guests do not have it: with its libraries it is larger than all that they run.

use super::debian::Release;
use super::root::{add_libraries, disk};
use crate::cache;
use crate::emulated::packages;
use anyhow::Result;
use std::path::PathBuf;

/// perf and what it is linked with. That of one release records on all kernels: what the kernel gives to it is stable.
const PACKAGES: [&str; 20] = [
    "linux-perf",
    "libbabeltrace1",
    "libbz2-1.0",
    "libcap2",
    "libcrypt1",
    "libdw1",
    "libelf1",
    "libexpat1",
    "libglib2.0-0",
    "liblzma5",
    "libnuma1",
    "libopencsd1",
    "libperl5.36",
    "libpython3.11",
    "libslang2",
    "libstdc++6",
    "libunwind8",
    "libuuid1",
    "libzstd1",
    "zlib1g",
];
const PERF: &str = "usr/bin/perf";
/// Changes when the disk is made in another way.
const MAKER: &str = "1";

/// The image of the disk, ext4: perf is `/usr/bin/perf` in it, its libraries are in `/lib` and `/usr/lib`.
pub fn tools() -> Result<PathBuf> {
    let perf = Release::Bookworm61.packages("perf", &PACKAGES)?;
    let made_by = [MAKER, &perf.to_string_lossy()].concat();
    let key = format!("linux-guest-tools-{}", cache::digest(made_by.as_bytes()));
    let folder = cache::filled(&key, |folder| {
        let root = folder.join("root");
        std::fs::create_dir(&root)?;
        packages::unpack(&perf, &root, &[])?;
        for unused in ["usr/share", "usr/include", "etc"] {
            let _ = std::fs::remove_dir_all(root.join(unused));
        }
        add_libraries(&root.join(PERF), &root)?;
        disk(folder, "tools.img", "160M", "-d root")?;
        Ok(std::fs::remove_dir_all(root)?)
    })?;
    Ok(folder.join("tools.img"))
}
