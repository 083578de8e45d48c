//! Xen, the kernel of dom0 and its first file system, made of Debian's packages. Nothing is installed on this machine.

use crate::archive::Archive;
use crate::cache;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Depends on the packages of the newest Xen and of the newest kernel. (The kernel for clouds cannot be dom0's.)
const XEN_PACKAGE: &str = "xen-system-amd64";
const KERNEL_PACKAGE: &str = "linux-image-amd64";
/// What `xl` and the daemons need beside Xen's own packages.
const PACKAGES: [&str; 21] = [
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
    "busybox-static",
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
const FOLDERS: [&str; 23] = [
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
    "modules",
];
const INIT: &str = include_str!("init.sh");
/// What `xl` runs when it connects a disk and a card. Xen's own scripts need more of a system than there is.
const SCRIPTS: [(&str, &str); 2] = [("block", include_str!("block.sh")), ("vif-bridge", include_str!("vif.sh"))];
/// Changes when an image is made in another way.
const MAKER: &str = "3";

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
    let get = || {
        let packages = packages()?;
        let offered = run(
            Path::new("/"),
            "apt-get",
            &[&["-q", "download", "--print-uris"], strings(&packages).as_slice()].concat(),
        )?;
        let key = cache::digest(offered.as_bytes());
        let files = cache::filled(&format!("xen-packages-{key}"), |folder| download(folder, &packages))?;
        let made_by = cache::digest(
            [MAKER, INIT, SCRIPTS[0].1, SCRIPTS[1].1, &MODULES.concat(), &TOOLS.concat(), &PACKAGES.concat()]
                .concat()
                .as_bytes(),
        );
        cache::filled(&format!("xen-image-{key}-{made_by}"), |folder| make(&files, folder))
    };
    // The lists of packages may be missing or out of date.
    let folder = get().or_else(|_| run(Path::new("/"), "apt-get", &["-q", "update"]).and_then(|_| get()))?;
    let [xen, kernel, files, busybox] = ["xen", "kernel", "files", "busybox"].map(|name| folder.join(name));
    Ok(Image { xen, kernel, files, busybox, modules: folder })
}

fn strings(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

fn depends(package: &str, prefix: &str) -> Result<String> {
    let depends = run(Path::new("/"), "apt-cache", &["depends", package])?;
    let mut names = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    let found = names
        .rfind(|name| name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())));
    found.map(str::to_owned).with_context(|| format!("no package {prefix}... is offered"))
}

/// Names of all packages; those of Xen and of the kernel have their versions in them.
fn packages() -> Result<Vec<String>> {
    let xen = depends(XEN_PACKAGE, "xen-hypervisor-")?;
    let utils = depends(XEN_PACKAGE, "xen-utils-")?;
    let library = utils.replace("xen-utils-", "libxenmisc");
    let kernel = depends(KERNEL_PACKAGE, "linux-image-")?;
    Ok([xen, utils, library, kernel].into_iter().chain(PACKAGES.map(str::to_owned)).collect())
}

fn download(folder: &Path, packages: &[String]) -> Result<()> {
    run(folder, "apt-get", &[&["-q", "download"], strings(packages).as_slice()].concat()).map(drop)
}

fn make(packages: &Path, folder: &Path) -> Result<()> {
    let root = folder.join("root");
    std::fs::create_dir(&root)?;
    for entry in std::fs::read_dir(packages)? {
        let package = entry?.path();
        let name = package.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let package = package.to_str().context("a path that is no text")?;
        if name.starts_with("linux-image-") {
            // It has 400 MB.
            let modules = MODULES.into_iter().chain(DOMAIN_MODULES);
            let wanted: String = modules.map(|module| format!("'*/{module}.ko' ")).collect();
            let unpack = format!(
                "dpkg-deb --fsys-tarfile '{package}' | tar -x -C '{}' --wildcards './boot/vmlinuz-*' {wanted}",
                root.display()
            );
            // A module that the kernel has built in is not in the package, which tar reports as an error.
            let _ = run(folder, "sh", &["-c", &unpack]);
        } else {
            run(folder, "dpkg-deb", &["-x", package, "root"])?;
        }
    }
    let boot = root.join("boot");
    let kernel = find(&boot, |name| name.starts_with("vmlinuz-")).context("there is no kernel in its package")?;
    std::fs::copy(kernel, folder.join("kernel"))?;
    let packed = find(&boot, |name| name.starts_with("xen-") && name.ends_with(".gz"))
        .context("there is no Xen in its package")?;
    run(folder, "sh", &["-c", &format!("gzip -dc '{}' >xen", packed.display())])?;
    let busybox = find(&root, |name| name == "busybox").context("there is no busybox")?;
    std::fs::copy(busybox, folder.join("busybox"))?;
    for module in DOMAIN_MODULES {
        let path = find(&root, |name| name.strip_suffix(".ko") == Some(module));
        std::fs::copy(path.with_context(|| format!("there is no {module}"))?, folder.join(module))?;
    }
    std::fs::write(folder.join("files"), file_system(&root)?)?;
    Ok(std::fs::remove_dir_all(root)?)
}

/// The first file in a folder or below it whose name is the wanted one.
fn find(folder: &Path, wanted: impl Fn(&str) -> bool + Copy) -> Option<PathBuf> {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    entries.sort();
    let is_wanted = |path: &&PathBuf| path.file_name().is_some_and(|name| wanted(&name.to_string_lossy()));
    if let Some(found) = entries.iter().find(is_wanted) {
        return Some(found.clone());
    }
    entries.iter().filter(|path| path.is_dir() && !path.is_symlink()).find_map(|path| find(path, wanted))
}

fn file_system(root: &Path) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    FOLDERS.iter().for_each(|folder| archive.folder(folder));
    archive.link("var/run", "../run");
    archive.link("bin", "usr/bin");
    archive.link("lib", "usr/lib");
    archive.file("etc/passwd", false, b"root:x:0:0:root:/root:/bin/sh\n");
    archive.file("etc/xen/xl.conf", false, b"");
    archive.file("init", true, INIT.as_bytes());
    for (name, text) in SCRIPTS {
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
    let busybox = find(root, |name| name == "busybox").context("there is no busybox")?;
    archive.file("usr/bin/busybox", true, &std::fs::read(&busybox)?);
    let applets = run(root, busybox.to_str().context("a path that is no text")?, &["--list"])?;
    applets
        .lines()
        .filter(|applet| *applet != "busybox")
        .for_each(|applet| archive.link(&format!("usr/bin/{applet}"), "busybox"));
    let mut list = String::new();
    for module in MODULES {
        let file = format!("{module}.ko");
        if let Some(path) = find(&root.join("lib/modules"), |name| name == file) {
            archive.file(&format!("modules/{file}"), false, &std::fs::read(path)?);
            list += &format!("{file}\n");
        }
    }
    archive.file("modules/list", false, list.as_bytes());
    Ok(archive.finish())
}

/// Runs a program in a folder; returns what it prints.
fn run(folder: &Path, program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).current_dir(folder).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start {program}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    bail!("{program} {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim_end())
}
