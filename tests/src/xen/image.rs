//! Xen, the kernel of dom0 and its first file system, made of Debian's packages. Nothing is installed on this machine.

use crate::archive::Archive;
use crate::cache;
use crate::emulated::SCRIPTS;
use crate::emulated::packages::{self, Packages, find, run};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// Depends on the packages of the newest Xen.
const XEN_PACKAGE: &str = "xen-system-amd64";
/// What `xl` and the daemons need beside Xen's own packages.
const PACKAGES: [&str; 20] = [
    "xenstore-utils",
    "libxencall1",
    "libxendevicemodel1",
    "libxenevtchn1",
    "libxenforeignmemory1",
    "libxengnttab1",
    "libxenhypfs1",
    "libxenstore4",
    "libxentoolcore1",
    "libxentoollog1",
    "libyajl2",
    "libc6",
    "libgcc-s1",
    "libtinfo6",
    "libuuid1",
    "libext2fs2",
    "libcom-err2",
    "liblzma5",
    "libzstd1",
    "zlib1g",
];
/// Modules of the kernel that are loaded.
const MODULES: [&str; 24] = [
    "xen-privcmd",
    "xen-evtchn",
    "xen-gntdev",
    "xen-gntalloc",
    "xenfs",
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
    "loop",
    "xen-blkback",
    "xen-netback",
    "failover",
    "net_failover",
    "virtio_net",
    "llc",
    "stp",
    "bridge",
];
/// Modules for the devices of a Linux domain.
const DOMAIN_MODULES: [&str; 2] = ["xen-blkfront", "xen-netfront"];
/// Programs of Xen's tools.
const TOOLS: [&str; 6] = ["xl", "xenstored", "xenconsoled", "xen-init-dom0", "xenctx", "libxl-save-helper"];
const FOLDERS: [&str; 22] = [
    "dev",
    "proc",
    "sys",
    "mnt",
    "root",
    "tmp",
    "run",
    "run/xen",
    "var",
    "var/log",
    "var/log/xen",
    "var/lib",
    "var/lib/xen",
    "var/lib/xenstored",
    "var/lock",
    "etc",
    "etc/xen",
    "etc/xen/scripts",
    "usr",
    "usr/bin",
    "usr/lib",
    "lib64",
];
const INIT: &str = include_str!("init.sh");
/// What `xl` runs when it connects a disk and a card. Xen's own scripts need more of a system than there is.
const HOTPLUG: [(&str, &str); 2] = [("block", include_str!("block.sh")), ("vif-bridge", include_str!("vif.sh"))];
/// Changes when an image is made in another way.
const MAKER: &str = "4";

/// What QEMU boots.
#[derive(Debug, Clone)]
pub struct Image {
    /// Xen, as QEMU's `-kernel` takes it.
    pub xen: PathBuf,
    /// The kernel of dom0.
    pub kernel: PathBuf,
    /// Its first file system.
    pub files: PathBuf,
    /// The programs of a shell in one, for guests.
    pub busybox: PathBuf,
    /// The folder of the kernel's modules for the devices of a domain, named without their extension.
    pub modules: PathBuf,
}

/// The image, made where the cache has none of these versions; or the reason why there is none.
pub fn get() -> Result<Image> {
    let folder = packages::with_lists(|| {
        let (own, kernel) = (packages::get("xen", &names()?)?, packages::kernel_and_shell()?);
        let keys = [own.key.as_str(), kernel.key.as_str()].concat();
        let made_by = [MAKER, INIT, SCRIPTS, HOTPLUG[0].1, HOTPLUG[1].1].concat();
        let key = [keys, made_by, MODULES.concat(), TOOLS.concat(), PACKAGES.concat()].concat();
        let key = cache::digest(key.as_bytes());
        cache::filled(&format!("xen-image-{key}"), |folder| make(&[&own, &kernel], folder))
    })?;
    let [xen, kernel, files, busybox] = ["xen", "kernel", "files", "busybox"].map(|name| folder.join(name));
    Ok(Image { xen, kernel, files, busybox, modules: folder })
}

/// Names of Xen's packages, which have its version in them.
fn names() -> Result<Vec<String>> {
    let xen = packages::depends(XEN_PACKAGE, "xen-hypervisor-")?;
    let utils = packages::depends(XEN_PACKAGE, "xen-utils-")?;
    let library = utils.replace("xen-utils-", "libxenmisc");
    Ok([xen, utils, library].into_iter().chain(PACKAGES.map(str::to_owned)).collect())
}

fn make(packages: &[&Packages], folder: &Path) -> Result<()> {
    let root = folder.join("root");
    std::fs::create_dir(&root)?;
    let modules = [&MODULES[..], &DOMAIN_MODULES].concat();
    packages.iter().try_for_each(|packages| packages::unpack(&packages.folder, &root, &modules))?;
    std::fs::copy(packages::kernel(&root)?, folder.join("kernel"))?;
    let packed = find(&root.join("boot"), |name| name.starts_with("xen-") && name.ends_with(".gz"))
        .context("there is no Xen in its package")?;
    run(folder, "sh", &["-c", &format!("gzip -dc '{}' >xen", packed.display())])?;
    std::fs::copy(packages::shell(&root)?, folder.join("busybox"))?;
    for module in DOMAIN_MODULES {
        let path = find(&root, |name| name.strip_suffix(".ko") == Some(module));
        std::fs::copy(path.with_context(|| format!("there is no {module}"))?, folder.join(module))?;
    }
    std::fs::write(folder.join("files"), file_system(&root)?)?;
    Ok(std::fs::remove_dir_all(root)?)
}

fn file_system(root: &Path) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    FOLDERS.iter().for_each(|folder| archive.folder(folder));
    archive.link("var/run", "../run");
    archive.link("bin", "usr/bin");
    archive.link("lib", "usr/lib");
    archive.file("etc/passwd", false, b"root:x:0:0:root:/root:/bin/sh\n");
    archive.file("etc/xen/xl.conf", false, b"");
    archive.file("init", true, format!("{INIT}{SCRIPTS}").as_bytes());
    for (name, text) in HOTPLUG {
        archive.file(&format!("etc/xen/scripts/{name}"), true, text.as_bytes());
    }
    // All libraries lie in one folder, whichever the package has them in.
    for folder in ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"] {
        let Ok(entries) = std::fs::read_dir(root.join(folder)) else { continue };
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.contains(".so") && path.is_file() {
                archive.file(&format!("usr/lib/{name}"), true, &std::fs::read(&path)?);
            }
        }
    }
    archive.link("lib64/ld-linux-x86-64.so.2", "../usr/lib/ld-linux-x86-64.so.2");
    for tool in TOOLS {
        let path = find(&root.join("usr/lib"), |name| name == tool).with_context(|| format!("there is no {tool}"))?;
        // `xl` looks for its helper where it was built for.
        let inside = path.strip_prefix(root)?.to_string_lossy().into_owned();
        archive.file(&inside, true, &std::fs::read(&path)?);
        archive.link(&format!("usr/bin/{tool}"), &format!("/{inside}"));
    }
    for tool in ["xenstore-read", "xenstore-ls", "xenstore-write"] {
        archive.file(&format!("usr/bin/{tool}"), true, &std::fs::read(root.join("usr/bin").join(tool))?);
    }
    packages::add_shell(&mut archive, root, "usr/bin")?;
    packages::add_modules(&mut archive, root, &MODULES)?;
    Ok(archive.finish())
}
