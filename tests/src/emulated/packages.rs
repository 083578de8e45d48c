//! Debian's packages, of which emulated machines are made: downloaded into the cache and unpacked. Nothing is installed on this machine.

use crate::archive::Archive;
use crate::cache;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Depends on the package of the newest kernel. (The kernel for clouds has neither 9p nor what dom0 needs.)
const KERNEL_PACKAGE: &str = "linux-image-amd64";
/// The programs of a shell in one file without libraries.
const SHELL_PACKAGE: &str = "busybox-static";
/// The start of the name of the package that has the kernel's files; from Linux 7 on they are in two other ones.
const KERNEL_PREFIX: &str = "linux-image-";
const KERNEL_PREFIXES: [&str; 3] = [KERNEL_PREFIX, "linux-binary-", "linux-modules-"];
/// Where an archive has the modules of the kernel.
const MODULES: &str = "modules";

/// Packages in the cache.
#[derive(Debug)]
pub struct Packages {
    /// The folder that has them.
    pub folder: PathBuf,
    /// Changes with their versions.
    pub key: String,
}

/// The programs of apt; by default they use the lists of this machine.
#[derive(Debug, Default)]
pub struct Apt {
    words: Vec<String>,
}

impl Apt {
    /// With a file of settings, which is read after those of this machine.
    pub fn with_settings(file: &str) -> Apt {
        Apt { words: vec!["-c".to_owned(), file.to_owned()] }
    }

    /// Runs `apt-get` or `apt-cache` in a folder; returns what it prints.
    pub fn run(&self, folder: &Path, program: &str, arguments: &[&str]) -> Result<String> {
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        run(folder, program, &[words.as_slice(), arguments].concat())
    }
}

/// These packages, downloaded where the cache has none of these versions. `kind` is what they are for.
pub fn get(kind: &str, names: &[String]) -> Result<Packages> {
    get_by(&Apt::default(), kind, names)
}

/// The same with an apt.
pub fn get_by(apt: &Apt, kind: &str, names: &[String]) -> Result<Packages> {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let download = |folder: &Path, options: &[&str]| apt.run(folder, "apt-get", &[options, names.as_slice()].concat());
    let offered = download(Path::new("/"), &["-q", "download", "--print-uris"])?;
    let key = cache::digest(offered.as_bytes());
    let fill = |folder: &Path| download(folder, &["-q", "download"]).map(drop);
    let folder = cache::filled(&format!("{kind}-packages-{key}"), fill)?;
    Ok(Packages { folder, key })
}

/// The packages of the newest kernel and of a shell.
pub fn kernel_and_shell() -> Result<Packages> {
    get("kernel", &[depends(KERNEL_PACKAGE, KERNEL_PREFIX)?, SHELL_PACKAGE.to_owned()])
}

/// Makes something of packages. If that fails, the lists of what Debian offers may be missing or out of date: they are updated, and it is tried again.
pub fn with_lists<T>(make: impl Fn() -> Result<T>) -> Result<T> {
    make().or_else(|_| run(Path::new("/"), "apt-get", &["-q", "update"]).and_then(|_| make()))
}

/// What a package depends on that has this prefix and then a digit.
pub fn depends(package: &str, prefix: &str) -> Result<String> {
    depends_by(&Apt::default(), package, prefix)
}

/// The same with an apt.
pub fn depends_by(apt: &Apt, package: &str, prefix: &str) -> Result<String> {
    let depends = apt.run(Path::new("/"), "apt-cache", &["depends", package])?;
    let mut names = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    let found = names
        .rfind(|name| name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())));
    found.map(str::to_owned).with_context(|| format!("no package {prefix}... is offered"))
}

/// Unpacks all packages of a folder into another; of the kernel's package only the kernel and these modules, because it has 400 MB.
pub fn unpack(packages: &Path, root: &Path, modules: &[&str]) -> Result<()> {
    for entry in std::fs::read_dir(packages)? {
        let package = entry?.path();
        let has_prefix = |name: &str| KERNEL_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        let is_kernel = package.file_name().is_some_and(|name| has_prefix(&name.to_string_lossy()));
        let package = package.to_str().context("a path that is no text")?;
        if is_kernel {
            let wanted: String = modules.iter().map(|module| format!("'*/{module}.ko' '*/{module}.ko.xz' ")).collect();
            let unpack = format!(
                "dpkg-deb --fsys-tarfile '{package}' | tar -x -C '{}' --wildcards './boot/vmlinuz-*' '*/vmlinuz' {wanted}",
                root.display()
            );
            // A module that the kernel has built in is not in the package, which tar reports as an error.
            let _ = run(root, "sh", &["-c", &unpack]);
            run(root, "find", &[".", "-name", "*.ko.xz", "-exec", "xz", "-d", "{}", "+"])?;
        } else {
            run(root, "dpkg-deb", &["-x", package, "."])?;
        }
    }
    Ok(())
}

/// The kernel among unpacked packages.
pub fn kernel(root: &Path) -> Result<PathBuf> {
    let beside_modules = || find(&root.join("usr/lib/modules"), |name| name == "vmlinuz");
    let kernel = find(&root.join("boot"), |name| name.starts_with("vmlinuz-")).or_else(beside_modules);
    kernel.context("there is no kernel in its package")
}

/// The folder of the kernel's modules among unpacked packages, whose name is the kernel's version.
pub fn module_folder(root: &Path) -> Result<PathBuf> {
    let modules = ["lib/modules", "usr/lib/modules"].into_iter().map(|folder| root.join(folder));
    let mut versions = modules.filter_map(|folder| std::fs::read_dir(folder).ok()?.next()?.ok());
    Ok(versions.next().context("there are no modules in the kernel's package")?.path())
}

/// The shell among unpacked packages.
pub fn shell(root: &Path) -> Result<PathBuf> {
    find(root, |name| name == "busybox").context("there is no busybox")
}

/// Adds the shell and the names of its programs to an archive, in the folder `bin` of it.
pub fn add_shell(archive: &mut Archive, root: &Path, bin: &str) -> Result<()> {
    let busybox = shell(root)?;
    archive.file(&format!("{bin}/busybox"), true, &std::fs::read(&busybox)?);
    let applets = run(root, busybox.to_str().context("a path that is no text")?, &["--list"])?;
    applets
        .lines()
        .filter(|applet| *applet != "busybox")
        .for_each(|applet| archive.link(&format!("{bin}/{applet}"), "busybox"));
    Ok(())
}

/// Adds modules to an archive, in its folder `modules`, whose file `list` names them. Those that the kernel has built in are not there.
pub fn add_modules(archive: &mut Archive, root: &Path, modules: &[&str]) -> Result<()> {
    archive.folder(MODULES);
    let mut list = String::new();
    for module in modules {
        let file = format!("{module}.ko");
        if let Some(path) = find(&root.join("lib/modules"), |name| name == file) {
            archive.file(&format!("{MODULES}/{file}"), false, &std::fs::read(path)?);
            list += &format!("{file}\n");
        }
    }
    archive.file(&format!("{MODULES}/list"), false, list.as_bytes());
    Ok(())
}

/// The first file in a folder or below it whose name is the wanted one.
pub fn find(folder: &Path, wanted: impl Fn(&str) -> bool + Copy) -> Option<PathBuf> {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    entries.sort();
    let is_wanted = |path: &&PathBuf| path.file_name().is_some_and(|name| wanted(&name.to_string_lossy()));
    if let Some(found) = entries.iter().find(is_wanted) {
        return Some(found.clone());
    }
    entries.iter().filter(|path| path.is_dir() && !path.is_symlink()).find_map(|path| find(path, wanted))
}

/// Runs a program in a folder; returns what it prints.
pub fn run(folder: &Path, program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).current_dir(folder).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start {program}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    bail!("{program} {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim_end())
}
