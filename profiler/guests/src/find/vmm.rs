//! Programs that run VMs, other than QEMU, and their versions.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Vm, program_name};

/// How long a program may take to tell its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(2);
/// What it may say then, in bytes.
const VERSION_BYTES_MAX: u64 = 4096;

/// Programs by name, what they are called, and by what their guests run. Those of which glass can see
/// nothing are here too: to say so is better than to sample the VMM as if it were a service.
const KNOWN: &[(&str, &str, &str)] = &[
    ("firecracker", "Firecracker", "kvm"),
    ("cloud-hypervisor", "Cloud Hypervisor", "kvm"),
    ("crosvm", "crosvm", "kvm"),
    ("lkvm", "kvmtool", "kvm"),
    ("stratovirt", "StratoVirt", "kvm"),
    ("VBoxHeadless", "VirtualBox", "vbox"),
    ("VirtualBoxVM", "VirtualBox", "vbox"),
    ("vmware-vmx", "VMware", "vmware"),
];

fn vm(pid: u32, name: String, vmm: String, accel: &str) -> Vm {
    Vm {
        pid,
        name,
        vmm,
        elf: None,
        gdb: None,
        monitor: None,
        accel: accel.to_owned(),
        is_x86: true,
        vcpus: None,
        ram_bytes: None,
    }
}

/// A VMM whose program has a known name.
pub(super) fn parse(pid: u32, arguments: &[String]) -> Option<Vm> {
    let program = program_name(arguments.first()?);
    let (_, vmm, accel) = KNOWN.iter().find(|(name, ..)| *name == program)?;
    // Firecracker's own name for a VM.
    let id = arguments.windows(2).find(|pair| pair[0] == "--id").map(|pair| program_name(&pair[1]));
    Some(vm(pid, id.filter(|id| !id.is_empty()).unwrap_or(program), (*vmm).to_owned(), accel))
}

/// A VMM that nobody has told us of.
pub(super) fn unknown(pid: u32, arguments: &[String]) -> Vm {
    let program = program_name(arguments.first().map_or("", String::as_str));
    let name = if program.is_empty() { "?".to_owned() } else { program };
    vm(pid, name.clone(), name, "")
}

/// The version of the program in a process, like "7.2.22".
///
/// The program is run again to tell it; so only one that belongs to root and that nobody else could have
/// put there is asked, and none for longer than two seconds.
pub fn version(pid: u32) -> Option<String> {
    let link = format!("/proc/{pid}/exe");
    let path = fs::read_link(&link).ok()?;
    let (running, installed) = (fs::metadata(&link).ok()?, fs::metadata(&path).ok()?);
    let is_same = (running.dev(), running.ino()) == (installed.dev(), installed.ino());
    if !is_same || !is_of_root(&path) {
        return None;
    }
    let mut child = Command::new(&path)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let start = Instant::now();
    // It has room for what it says in the pipe, so it can be waited for first.
    while let Ok(None) = child.try_wait() {
        if start.elapsed() > VERSION_TIMEOUT {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut text = Vec::new();
    child.stdout.take()?.take(VERSION_BYTES_MAX).read_to_end(&mut text).ok()?;
    parse_version(&String::from_utf8_lossy(&text))
}

/// Whether only root can change a file, by itself or by one of the folders above it.
fn is_of_root(path: &Path) -> bool {
    path.is_absolute()
        && path.ancestors().all(|part| {
            fs::symlink_metadata(part).is_ok_and(|metadata| metadata.uid() == 0 && metadata.mode() & 0o022 == 0)
        })
}

/// The first word that looks like one.
fn parse_version(text: &str) -> Option<String> {
    let word =
        text.lines().next()?.split_ascii_whitespace().find(|word| {
            word.trim_start_matches('v').starts_with(|c: char| c.is_ascii_digit()) && word.contains('.')
        })?;
    let version = word.trim_start_matches('v');
    let end = version.find(|c: char| !c.is_ascii_alphanumeric() && !".-".contains(c)).unwrap_or(version.len());
    Some(version[..end].chars().take(16).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        let debian = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)\nCopyright (c) 2003-2022";
        assert_eq!(parse_version(debian).as_deref(), Some("7.2.22"));
        assert_eq!(parse_version("Firecracker v1.7.0\n\nSupported").as_deref(), Some("1.7.0"));
        assert_eq!(parse_version("cloud-hypervisor v39.0-dirty").as_deref(), Some("39.0-dirty"));
        assert_eq!(parse_version("hello"), None);
        assert_eq!(parse_version(""), None);
    }

    #[test]
    fn a_program_that_others_could_have_written_is_not_run() {
        // This test's own program lies in a folder of ours, or of a user.
        let file = std::env::temp_dir().join(format!("glass-version-{}", std::process::id()));
        fs::write(&file, "").unwrap();
        assert!(!is_of_root(&file), "the folder for temporary files is open to all");
        fs::remove_file(&file).unwrap();
        assert!(!is_of_root(Path::new("relative")));
        assert!(!is_of_root(Path::new("/no/such/file")));
    }

    #[test]
    fn other_vmms_have_their_names() {
        let parse = |line: &str| {
            let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
            parse(5, &arguments).map(|vm| (vm.name, vm.vmm, vm.accel))
        };
        let names = |a: &str, b: &str, c: &str| Some((a.to_owned(), b.to_owned(), c.to_owned()));
        assert_eq!(parse("/opt/firecracker --id web --api-sock /x"), names("web", "Firecracker", "kvm"));
        assert_eq!(parse("cloud-hypervisor"), names("cloud-hypervisor", "Cloud Hypervisor", "kvm"));
        assert_eq!(parse("/usr/lib/virtualbox/VBoxHeadless -s x"), names("VBoxHeadless", "VirtualBox", "vbox"));
        assert_eq!(parse("nginx"), None);
        let unknown = unknown(5, &["/x/\u{1b}[31mvmm".to_owned()]);
        assert_eq!((unknown.name.as_str(), unknown.vmm.as_str()), ("[31mvmm", "[31mvmm"));
    }
}
