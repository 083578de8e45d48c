//! A kernel that is built here, of Linux's source as Debian has it: with the options by which those of Firecracker's guests differ from a distribution's. It
//! describes no types, its symbols are those of functions alone, its functions keep the frame pointer, and it has no modules.

use super::debian::{Kernel, Release};
use crate::cache;
use crate::emulated::packages;
use crate::limit::say;
use anyhow::{Context, Result};
use std::path::Path;

const SOURCE: &str = "linux-source-6.1";
/// What the build takes and few machines have.
const TOOLS: [&str; 5] = ["flex", "bison", "m4", "libelf-dev", "libelf1"];
/// Beside those of `make tinyconfig`. Structures have the members that they have in Firecracker's kernels (its `resources/guest_configs`, 2026-08-21).
const OPTIONS: &str = include_str!("built.config");
/// What of the source is not compiled with these options; files of settings name all of it.
const LEFT_OUT: [&str; 9] = [
    "Documentation/*",
    "tools/testing/*",
    "drivers/gpu/*.[ch]",
    "drivers/net/*/*.[ch]",
    "drivers/media/*.[ch]",
    "drivers/scsi/*.[ch]",
    "drivers/staging/*.[ch]",
    "sound/*.[ch]",
    "*.dts*",
];
/// Changes when a kernel is built in another way.
const MAKER: &str = "1";

/// The kernel, built where the cache has it not: that takes a quarter of an hour of a core. The error is the reason why it cannot be had.
pub(super) fn kernel() -> Result<Kernel> {
    let source = Release::Bookworm61.packages("source", &[SOURCE])?;
    let tools = Release::Bookworm61.packages("kernel-tools", &TOOLS)?;
    let compiler = shell(Path::new("/"), "gcc -dumpfullversion && which make bc xz perl >/dev/null")?;
    let made_by = [MAKER, &source.to_string_lossy(), &tools.to_string_lossy(), &compiler, OPTIONS].concat();
    let key = format!("linux-guest-built-{}", cache::digest(made_by.as_bytes()));
    let folder = cache::filled(&key, |folder| {
        say("a kernel is built for a test, once: this takes some minutes");
        build(&source, &tools, folder).context("the kernel cannot be built")
    })?;
    let version = std::fs::read_to_string(folder.join("version"))?.trim().to_owned();
    Ok(Kernel { release: Release::Bookworm61, version, image: folder.join("vmlinuz"), modules: Vec::new() })
}

fn build(source: &Path, tools: &Path, folder: &Path) -> Result<()> {
    let unpacked = folder.join("tools");
    std::fs::create_dir(&unpacked)?;
    packages::unpack(tools, &unpacked, &[])?;
    std::fs::write(folder.join("options"), OPTIONS)?;
    let left_out: String = LEFT_OUT.iter().map(|pattern| format!("--exclude='{SOURCE}/{pattern}' ")).collect();
    let unpack = format!(
        "dpkg-deb --fsys-tarfile '{}'/{SOURCE}_*.deb | tar -xO ./usr/src/{SOURCE}.tar.xz | xz -dc | tar -x --wildcards {left_out}
        mkdir -p {SOURCE}/Documentation && touch {SOURCE}/Documentation/Kconfig",
        source.display()
    );
    shell(folder, &unpack)?;
    // The compiler finds the library of the tools by these variables; the kernel itself uses none.
    let build = format!(
        "set -e; T=$PWD/tools; L=$T/usr/lib/x86_64-linux-gnu; cd {SOURCE}
        export PATH=$T/usr/bin:$PATH BISON_PKGDATADIR=$T/usr/share/bison M4=$T/usr/bin/m4
        export C_INCLUDE_PATH=$T/usr/include LIBRARY_PATH=$L LD_LIBRARY_PATH=$L KBUILD_BUILD_HOST=lab
        make -s tinyconfig; cat ../options >>.config; make -s olddefconfig
        if grep -v '=n$' ../options | grep -vxFf .config; then echo 'options that this source has not' >&2; exit 1; fi
        nice -n 19 make -s -j$(nproc) bzImage
        cp arch/x86/boot/bzImage ../vmlinuz; make -s kernelrelease >../version"
    );
    shell(folder, &build)?;
    [SOURCE, "tools"].into_iter().try_for_each(|name| std::fs::remove_dir_all(folder.join(name)))?;
    Ok(())
}

/// Runs a script in a folder; returns what it prints.
fn shell(folder: &Path, script: &str) -> Result<String> {
    packages::run(folder, "sh", &["-c", script])
}
