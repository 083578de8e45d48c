//! A VM with Linux as a peer: Debian's kernel for clouds and programs of the host, in QEMU with the command line that `glass run` has for a
//! service.
//!
//! The kernel is downloaded once and kept in the cache. What the guest runs is sent to it line by line over its serial port.

use crate::run::Run;
use anyhow::{Context, Result, bail, ensure};
use glass_tests::archive::Archive;
use glass_tests::folder::Folder;
use glass_tests::netns::Namespace;
use glass_tests::process::Process;
use glass_tests::{cache, programs, qemu};
use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command};
use std::time::{Duration, Instant};

/// The package that depends on the current kernel for clouds.
const KERNEL_PACKAGE: &str = "linux-image-cloud-amd64";
/// The modules of the kernel that the guest loads.
const MODULES: [&str; 14] = [
    "virtio_ring",
    "virtio",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "failover",
    "net_failover",
    "virtio_net",
    "virtio_blk",
    "fuse",
    "virtiofs",
    "vsock",
    "vmw_vsock_virtio_transport_common",
    "vmw_vsock_virtio_transport",
];
const INIT: &str = include_str!("init.sh");
/// What the guest prints after each line that it has run, and once after its start.
const ENDED: &str = "guest: ended ";
/// Debian's kernel does not start under KVM on every host, so the guest is emulated. It takes seconds, on a busy machine a minute.
const START_LIMIT: Duration = Duration::from_secs(180);
const ROUND: Duration = Duration::from_millis(5);
/// `glass run` with these options prints QEMU's command line. Debian's kernel does not find the clock of a microvm.
pub const MACHINE: [&str; 6] = ["--machine", "q35", "--accel", "tcg", "--memory", "512"];

/// What a Linux guest has beside busybox.
#[derive(Debug, Default)]
pub struct Contents<'a> {
    /// Programs of the host, with the libraries that they need.
    pub programs: &'a [&'a str],
    /// Further files, by path without a slash at its start.
    pub files: Vec<(&'a str, Vec<u8>)>,
}

/// A Linux guest that runs. Dropping it ends it.
#[derive(Debug)]
pub struct LinuxGuest {
    process: Process,
    input: ChildStdin,
    /// Bytes of its output that were answers to earlier lines.
    seen: usize,
    _folder: Folder,
}

/// Why there can be no Linux guest; `None` if there can.
pub fn obstacle(run: &Run) -> Option<&'static str> {
    if run.is_short() {
        return Some("its boot takes longer than a short run");
    }
    if !programs::has_qemu() {
        return Some("qemu-system-x86_64 is not installed");
    }
    if program("busybox").is_none() {
        return Some("busybox is not installed (package busybox-static)");
    }
    for (name, word) in [("apt-get", "--version"), ("dpkg-deb", "--version")] {
        if Command::new(name).arg(word).output().is_err() {
            return Some("its kernel is a package of Debian, and this is another system");
        }
    }
    None
}

impl LinuxGuest {
    /// Boots it with the devices of `glass_run`, a `glass run` of any image with [`MACHINE`] and its options. Where a helper of the host serves
    /// a device, `sockets` has the name of the device's character device and the helper's socket. QEMU runs in the namespace `within`, with each
    /// word of its command line changed by `change`.
    pub fn start(
        within: Option<&Namespace>,
        glass_run: &mut Command,
        contents: &Contents,
        sockets: &[(&str, PathBuf)],
        change: &dyn Fn(&str) -> String,
    ) -> Result<LinuxGuest> {
        let folder = Folder::new("linux-guest")?;
        let kernel = kernel()?;
        let archive = folder.write("archive", &archive(&kernel, contents)?)?;
        let words = qemu::command_line(glass_run, &[], &folder)?.words;
        let words = with_linux(words, &kernel.join("vmlinuz"), &archive, sockets);
        let (program, words) = words.split_first().context("an empty command line")?;
        let mut command = within.map_or_else(|| Command::new(program), |within| within.command(program));
        let (process, input) =
            Process::spawn_with_input(command.args(words.iter().map(|word| change(word))), &folder.file("log"))?;
        let mut guest = LinuxGuest { process, input, seen: 0, _folder: folder };
        guest.answer(START_LIMIT).context("the Linux guest does not start")?;
        Ok(guest)
    }

    /// Runs a line of shell in the guest; returns what it printed. Fails if its last command does.
    pub fn run(&mut self, line: &str, limit: Duration) -> Result<String> {
        writeln!(self.input, "{line}").context("the Linux guest takes no input")?;
        self.answer(limit).with_context(|| format!("in the Linux guest: {line}"))
    }

    fn answer(&mut self, limit: Duration) -> Result<String> {
        let end = Instant::now() + limit;
        loop {
            let output = self.process.output();
            let new = output.get(self.seen..).unwrap_or_default();
            if let Some((answer, rest)) = new.split_once(ENDED)
                && let Some((status, _)) = rest.split_once('\n')
            {
                self.seen += answer.len() + ENDED.len() + status.len() + 1;
                ensure!(status.trim() == "0", "status {}: {answer}", status.trim());
                return Ok(answer.to_owned());
            }
            if self.process.ended().is_some() || Instant::now() > end {
                bail!("no answer: {}", new.trim());
            }
            std::thread::sleep(ROUND);
        }
    }
}

/// QEMU's words with Linux instead of an image, and its serial port alone on the standard streams.
fn with_linux(words: Vec<String>, kernel: &Path, archive: &Path, sockets: &[(&str, PathBuf)]) -> Vec<String> {
    let mut changed = Vec::new();
    let mut words = words.into_iter().peekable();
    while let Some(word) = words.next() {
        // The arguments of an image may start with `--`.
        let Some(value) = words.next_if(|next| word == "-append" || !next.starts_with('-')) else {
            changed.push(word);
            continue;
        };
        let socket = sockets.iter().find(|(name, _)| value.starts_with(&format!("socket,id={name},")));
        let value = match (word.as_str(), socket) {
            ("-kernel", _) => kernel.display().to_string(),
            ("-append", _) => "console=ttyS0 quiet loglevel=0 mitigations=off rdinit=/init".to_owned(),
            ("-chardev", Some((name, path))) => format!("socket,id={name},path={}", path.display()),
            ("-chardev", None) if value.starts_with("stdio,") => "stdio,id=console".to_owned(),
            ("-device", _) if value == "virtconsole,chardev=console" => continue,
            _ => value,
        };
        changed.extend([word, value]);
    }
    changed.extend(["-initrd".to_owned(), archive.display().to_string()]);
    changed
}

/// The folder with `vmlinuz` and the modules.
fn kernel() -> Result<PathBuf> {
    let package = kernel_package()?;
    cache::filled(&format!("linux-guest-{package}"), |folder| {
        let unpacked = folder.join("unpacked");
        run(Command::new("apt-get").args(["download", &package]).current_dir(folder))?;
        let files = std::fs::read_dir(folder)?.flatten().map(|entry| entry.path());
        let archive = files.into_iter().find(|path| path.extension().is_some_and(|name| name == "deb"));
        let archive = archive.context("apt-get has downloaded nothing")?;
        run(Command::new("dpkg-deb").arg("-x").args([&archive, &unpacked]))?;
        let version = package.trim_start_matches("linux-image-");
        std::fs::rename(unpacked.join(format!("boot/vmlinuz-{version}")), folder.join("vmlinuz"))?;
        keep_modules(&unpacked, folder)?;
        std::fs::remove_file(archive)?;
        Ok(std::fs::remove_dir_all(unpacked)?)
    })
}

/// The package of the current kernel, or the one that was downloaded where the lists of packages cannot be had.
fn kernel_package() -> Result<String> {
    let depends = || run(Command::new("apt-cache").args(["depends", KERNEL_PACKAGE]));
    let named = |text: String| {
        let name = text.lines().find_map(|line| line.trim().strip_prefix("Depends: linux-image-"))?;
        Some(format!("linux-image-{name}"))
    };
    if let Some(package) = depends().ok().and_then(named) {
        return Ok(package);
    }
    let kept = std::fs::read_dir(cache::folder()).into_iter().flatten().flatten();
    let names = kept.filter_map(|entry| entry.file_name().into_string().ok());
    let package = names.filter_map(|name| name.strip_prefix("linux-guest-").map(str::to_owned)).max();
    package.with_context(|| format!("apt-cache has no {KERNEL_PACKAGE}: run `apt-get update`"))
}

/// Moves the modules to `folder`. Those that are part of the kernel have no file.
fn keep_modules(from: &Path, folder: &Path) -> Result<()> {
    for entry in std::fs::read_dir(from)?.flatten() {
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            keep_modules(&path, folder)?;
        } else if path.extension().is_some_and(|name| name == "ko")
            && path.file_stem().is_some_and(|stem| MODULES.iter().any(|module| stem == *module))
        {
            std::fs::rename(&path, folder.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// What Linux unpacks at its start.
fn archive(kernel: &Path, contents: &Contents) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    archive.file("init", true, INIT.as_bytes());
    archive.file("bin/busybox", true, &read(&program("busybox").context("busybox is not installed")?)?);
    for module in MODULES.map(|name| format!("{name}.ko")) {
        let path = kernel.join(&module);
        if path.exists() {
            archive.file(&format!("modules/{module}"), false, &read(&path)?);
        }
    }
    add_programs(&mut archive, contents.programs)?;
    for (path, bytes) in &contents.files {
        archive.file(path, true, bytes);
    }
    Ok(archive.finish())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Adds programs of the host, with the libraries that they need.
pub fn add_programs(archive: &mut Archive, names: &[&str]) -> Result<()> {
    let mut libraries = BTreeSet::new();
    for name in names {
        let path = program(name).with_context(|| format!("{name} is not installed"))?;
        libraries.extend(needed(&run(Command::new("ldd").arg(&path))?));
        archive.file(&format!("usr/bin/{name}"), true, &read(&path)?);
    }
    for library in &libraries {
        archive.file(library.trim_start_matches('/'), true, &read(Path::new(library))?);
    }
    Ok(())
}

/// Paths of the libraries in what ldd prints: `NAME => PATH (ADDRESS)`, or `PATH (ADDRESS)` for the loader.
fn needed(text: &str) -> Vec<String> {
    text.split_whitespace().filter(|word| word.starts_with('/')).map(str::to_owned).collect()
}

/// The path of a program, also for a user whose path lacks the folders of daemons.
fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    folders.map(|folder| folder.join(name)).find(|path| path.is_file())
}

fn run(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot start {name}"))?;
    ensure!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_paths() {
        let text = "\tlinux-vdso.so.1 (0x1)\n\tlibz.so.1 => /lib/libz.so.1 (0x2)\n\t/lib64/ld.so (0x3)\n";
        assert_eq!(needed(text), ["/lib/libz.so.1", "/lib64/ld.so"]);
    }

    #[test]
    fn linux_takes_the_place_of_the_image() {
        let line = "-M q35 -chardev stdio,id=console,mux=on -serial chardev:console -device virtconsole,chardev=console \
                    -chardev socket,id=files,path=/run/x -no-reboot -device virtio-blk-pci -kernel image -append --";
        let words = line.split_whitespace().map(str::to_owned).collect();
        let changed = with_linux(words, Path::new("/k"), Path::new("/a"), &[("files", "/f".into())]).join(" ");
        let expected = "-M q35 -chardev stdio,id=console -serial chardev:console -chardev socket,id=files,path=/f -no-reboot \
                        -device virtio-blk-pci -kernel /k -append console=ttyS0 quiet loglevel=0 mitigations=off rdinit=/init -initrd /a";
        assert_eq!(changed, expected);
    }
}
