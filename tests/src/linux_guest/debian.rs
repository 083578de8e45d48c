//! Kernels of Debian's suites, from the mirror that this machine's own packages come from. The lists of what is offered are in the cache of
//! tests: those of this machine stay as they are.

use crate::cache;
use crate::emulated::packages::{self, Apt};
use anyhow::{Context, Result, ensure};
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Depends on the package of the newest kernel for clouds, with the name of the processor behind it.
const KERNEL_PACKAGE: &str = "linux-image-cloud-";
const KERNEL_PREFIX: &str = "linux-image-";
/// In newer suites the kernel and its modules are packages of their own.
const PARTS: [&str; 2] = ["linux-binary-", "linux-modules-"];
/// Modules that are loaded, in this order, where they are not built in: those of disks, that of
/// file systems of containers, and one more as an example of a module.
const MODULES: [&str; 8] = [
    "virtio_ring",
    "virtio",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "virtio_blk",
    "overlay",
    "dummy",
];
/// The suite has security updates in a suite of this name.
const SECURITY: &str = "-security";
/// How old the lists may be. A kernel that is not offered any more is noticed when it cannot be downloaded.
const LISTS_AGE_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// Settings of apt: what it keeps, by file, and what it does not need.
const PLACES: [(&str, &str); 5] = [
    ("Dir::Etc::sourcelist", "sources.list"),
    ("Dir::Etc::sourceparts", "parts"),
    ("Dir::State::Lists", "lists"),
    ("Dir::State::status", "status"),
    ("Dir::Cache", "cache"),
];
const SETTINGS: &str = "Acquire::Languages \"none\";\n\
    Acquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\n";
/// Changes when a kernel is unpacked in another way.
const MAKER: &str = "1";

/// A release of Debian, named by its kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Release {
    /// Linux 5.10, of Debian 11.
    Bullseye510,
    /// Linux 6.1, of Debian 12.
    Bookworm61,
    /// Linux 6.12, of Debian 13.
    Trixie612,
    /// The newest kernel, 7.2 or later, of the suite `sid`.
    Newest,
    /// Linux 6.1, of Debian 12 for AArch64.
    BookwormArm61,
}

/// A kernel, unpacked.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// Its release.
    pub release: Release,
    /// What `uname -r` prints.
    pub version: String,
    /// The image to boot.
    pub image: PathBuf,
    /// The modules that a guest loads, in this order.
    pub modules: Vec<PathBuf>,
}

impl Release {
    /// All for x86-64, oldest first.
    pub const ALL: [Release; 4] = [Release::Bullseye510, Release::Bookworm61, Release::Trixie612, Release::Newest];

    fn suite(self) -> &'static str {
        match self {
            Release::Bullseye510 => "bullseye",
            Release::Bookworm61 | Release::BookwormArm61 => "bookworm",
            Release::Trixie612 => "trixie",
            Release::Newest => "sid",
        }
    }

    /// Whether it is for AArch64.
    pub fn is_aarch64(self) -> bool {
        self == Release::BookwormArm61
    }

    /// The processor, as Debian names it.
    fn processor(self) -> &'static str {
        if self.is_aarch64() { "arm64" } else { "amd64" }
    }

    /// Its kernel, downloaded where the cache has it not; the error is the reason why it cannot be had.
    pub fn kernel(self) -> Result<Kernel> {
        let maker = cache::digest([MAKER, &MODULES.join(" ")].concat().as_bytes());
        let folder = self.with_lists(&format!("kernel-{maker}"), |apt| {
            let image = packages::depends_by(apt, &format!("{KERNEL_PACKAGE}{}", self.processor()), KERNEL_PREFIX)?;
            let parts = PARTS.iter().filter_map(|part| packages::depends_by(apt, &image, part).ok());
            let names: Vec<String> = [image.clone()].into_iter().chain(parts).collect();
            let packages = packages::get_by(apt, "linux-guest-kernel", &names)?;
            let key = format!("linux-guest-kernel-{}-{maker}-{}", self.suite(), packages.key);
            cache::filled(&key, |folder| {
                unpack(&packages.folder, folder).with_context(|| format!("{image} is packed in another way"))
            })
        })?;
        let version = std::fs::read_to_string(folder.join("version"))?;
        let modules = std::fs::read_to_string(folder.join("list"))?;
        let modules = modules.lines().map(|name| folder.join(name)).collect();
        Ok(Kernel { release: self, version, image: folder.join("vmlinuz"), modules })
    }

    /// A folder in the cache with packages of this release, of which `kind` is the name.
    pub fn packages(self, kind: &str, names: &[&str]) -> Result<PathBuf> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let make = |apt: &Apt| Ok(packages::get_by(apt, &format!("linux-guest-{kind}"), &names)?.folder);
        self.with_lists(&format!("{kind}-{}", cache::digest(names.join(" ").as_bytes())), make)
    }

    /// The same with all that the first ones depend on, so that their programs run in a root of their own; and with `beside`, without what these depend on.
    pub fn packages_with_dependencies(self, kind: &str, names: &[&str], beside: &[&str]) -> Result<PathBuf> {
        let make = |apt: &Apt| {
            let install = ["-q", "install", "--yes", "--no-install-recommends", "--print-uris"];
            let uris = apt.run(Path::new("/"), "apt-get", &[&install, names].concat())?;
            let all: Vec<String> = packages_of(&uris).chain(beside.iter().map(|name| (*name).to_owned())).collect();
            Ok(packages::get_by(apt, kind, &all)?.folder)
        };
        self.with_lists(&format!("{kind}-{}", cache::digest([names, beside].concat().join(" ").as_bytes())), make)
    }

    /// A folder of the cache, made with the lists of this release. If that fails the lists are updated, and it is tried again.
    /// While the lists are new, a file with its `name` beside them remembers the folder: apt takes seconds.
    fn with_lists(self, name: &str, make: impl Fn(&Apt) -> Result<PathBuf>) -> Result<PathBuf> {
        let of_processor = if self.is_aarch64() { "-arm64" } else { "" };
        let folder = cache::filled(&format!("linux-guest-lists-{}{of_processor}", self.suite()), |_| Ok(()))?;
        let lists = Lists { folder, processor: self.processor() };
        if let Some(folder) = lists.remembered(name) {
            return Ok(folder);
        }
        let made = if lists.are_new() { make(&lists.apt()?).ok() } else { None };
        let folder = match made {
            Some(folder) => folder,
            None => {
                let updated = lists.update(self.suite());
                // Old lists may still do.
                let made = make(&lists.apt()?).map_err(|error| updated.err().unwrap_or(error));
                made.with_context(|| format!("Debian's {} cannot be had", self.suite()))?
            }
        };
        lists.remember(name, &folder)?;
        Ok(folder)
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Release::Bullseye510 => "5.10",
            Release::Bookworm61 => "6.1",
            Release::BookwormArm61 => "6.1 for AArch64",
            Release::Trixie612 => "6.12",
            Release::Newest => "7.x",
        })
    }
}

/// Lists of what a suite offers, in a folder with all that apt needs beside them.
struct Lists {
    folder: PathBuf,
    processor: &'static str,
}

impl Lists {
    fn sources(&self) -> PathBuf {
        self.folder.join("sources.list")
    }

    /// The list of sources is written when the lists are complete.
    fn are_new(&self) -> bool {
        let written = self.sources().metadata().and_then(|metadata| metadata.modified());
        written.is_ok_and(|time| SystemTime::now().duration_since(time).is_ok_and(|age| age < LISTS_AGE_MAX))
    }

    fn remembered(&self, name: &str) -> Option<PathBuf> {
        let file = self.folder.join("made").join(name);
        let folder = PathBuf::from(std::fs::read_to_string(file).ok().filter(|_| self.are_new())?);
        folder.is_dir().then_some(folder)
    }

    fn remember(&self, name: &str, folder: &Path) -> Result<()> {
        let made = self.folder.join("made");
        std::fs::create_dir_all(&made)?;
        Ok(std::fs::write(made.join(name), folder.to_str().context("a path that is no text")?)?)
    }

    /// An apt with these lists; its file of settings is written.
    fn apt(&self) -> Result<Apt> {
        let processor = self.processor;
        let mut settings =
            format!("APT::Architecture \"{processor}\";\nAPT::Architectures {{ \"{processor}\"; }};\n{SETTINGS}");
        for (name, file) in PLACES {
            settings += &format!("{name} \"{}\";\n", self.folder.join(file).display());
        }
        let file = self.folder.join("apt.conf");
        std::fs::write(&file, settings)?;
        Ok(Apt::with_settings(file.to_str().context("a path that is no text")?))
    }

    fn update(&self, suite: &str) -> Result<()> {
        let sources = sources(suite)?;
        for folder in ["parts", "lists/partial", "cache/archives/partial"] {
            std::fs::create_dir_all(self.folder.join(folder))?;
        }
        // apt does not wait for another one.
        let lock = File::create(self.folder.join("lock"))?;
        lock.lock().context("cannot lock the lists")?;
        std::fs::write(self.folder.join("status"), "")?;
        std::fs::write(self.sources(), sources)?;
        let _ = std::fs::remove_dir_all(self.folder.join("made"));
        let updated = self.apt()?.run(&self.folder, "apt-get", &["-q", "update", "--error-on=any"]);
        if updated.is_err() {
            // They are not complete.
            let _ = std::fs::remove_file(self.sources());
        }
        updated.map(drop)
    }
}

/// The list of sources of a suite: where this machine's own suite comes from there is also the other one.
fn sources(suite: &str) -> Result<String> {
    let system = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let own = system.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let own = own.context("this machine's system has no release with a name")?.trim_matches('"');
    let uris = Apt::default().run(Path::new("/"), "apt-get", &["--print-uris", "update"])?;
    let sources = sources_by(&uris, own, suite);
    ensure!(!sources.is_empty(), "this machine's packages are not from Debian's suite {own}");
    Ok(sources)
}

/// The same from what apt would fetch for this machine, whose suite is `own`.
fn sources_by(uris: &str, own: &str, suite: &str) -> String {
    let lists = uris.lines().filter_map(|line| line.strip_prefix('\'')?.split_once("/InRelease'"));
    let places = lists.filter_map(|(uri, _)| uri.split_once("/dists/"));
    let line = |(mirror, name): (&str, &str)| match name.strip_prefix(own)? {
        "" => Some(format!("deb {mirror} {suite} main\n")),
        // The newest packages are in no suite but one.
        SECURITY if suite != Release::Newest.suite() => Some(format!("deb {mirror} {suite}{SECURITY} main\n")),
        _ => None,
    };
    places.filter_map(line).collect()
}

/// The names of the packages that apt would fetch: lines `'URI' NAME_VERSION_PROCESSOR.deb SIZE DIGEST`.
fn packages_of(uris: &str) -> impl Iterator<Item = String> {
    let lines = uris.lines().filter(|line| line.starts_with('\''));
    lines.filter_map(|line| Some(line.split(' ').nth(1)?.split_once('_')?.0.to_owned()))
}

/// Puts the kernel, its version and its modules, not compressed, into a folder.
fn unpack(packages: &Path, folder: &Path) -> Result<()> {
    let root = folder.join("root");
    std::fs::create_dir(&root)?;
    packages::unpack(packages, &root, &MODULES)?;
    let kernel = packages::kernel(&root)?;
    std::fs::copy(&kernel, folder.join("vmlinuz"))?;
    let modules = packages::module_folder(&root)?;
    let version = modules.file_name().context("a folder without a name")?.to_string_lossy().into_owned();
    std::fs::write(folder.join("version"), version)?;
    let mut list = String::new();
    for module in MODULES {
        let file = format!("{module}.ko");
        if let Some(path) = packages::find(&modules, |name| name == file) {
            std::fs::copy(path, folder.join(&file))?;
            list += &format!("{file}\n");
        }
    }
    std::fs::write(folder.join("list"), list)?;
    Ok(std::fs::remove_dir_all(root)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_suite_is_where_this_one_is() {
        let uris = "'http://a/debian/dists/bookworm/InRelease' x 0 \n'http://a/debian/dists/bookworm-updates/InRelease' x 0\n\
            'http://b/security/dists/bookworm-security/InRelease' x 0 \n'https://c/dists/nodistro/InRelease' x 0\nother\n";
        let trixie = "deb http://a/debian trixie main\ndeb http://b/security trixie-security main\n";
        assert_eq!(sources_by(uris, "bookworm", "trixie"), trixie);
        assert_eq!(sources_by(uris, "bookworm", "sid"), "deb http://a/debian sid main\n");
        assert_eq!(sources_by(uris, "noble", "sid"), "");
        let uris = "Reading...\n'http://a/b_1.deb' libc6_2.43-7_amd64.deb 9 SHA256:1\n";
        assert_eq!(packages_of(uris).collect::<Vec<_>>(), ["libc6"]);
    }
}
