//! Programs that run VMs, other than QEMU, and their versions.

use std::fs::File;
use std::io::Read;

use glass_profiler_core::arch::Architecture;

use super::{Vm, program_name};

/// The text before the version in QEMU's programs, and how much of the text is read.
const VERSION_TEXT: &[u8] = b"QEMU emulator version ";
const VERSION_BYTES_MAX: u64 = 80;
/// How much of a program is searched for it, and the size of the pieces.
const PROGRAM_BYTES_MAX: u64 = 256 << 20;
const PIECE_BYTES: u64 = 1 << 20;

/// Programs by name, their display names, and their accelerators. Programs that glass cannot
/// sample are here too: an error is better than to sample the VMM as if it were a service.
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
        architecture: Some(Architecture::X86_64),
        vcpus: None,
        ram_bytes: None,
        links: Default::default(),
    }
}

/// A VMM whose program has a known name.
pub(super) fn parse(pid: u32, arguments: &[String]) -> Option<Vm> {
    let program = program_name(arguments.first()?);
    if let [_, command, image, options @ ..] = arguments
        && program == "glass"
        && command == "vmm"
    {
        let memory = options.windows(2).find(|pair| pair[0] == "--memory").and_then(|pair| pair[1].parse().ok());
        return Some(Vm { ram_bytes: memory, ..vm(pid, program_name(image), "glass".to_owned(), "kvm") });
    }
    let (_, vmm, accel) = KNOWN.iter().find(|(name, ..)| *name == program)?;
    // Firecracker's own name for a VM.
    let id = arguments.windows(2).find(|pair| pair[0] == "--id").map(|pair| program_name(&pair[1]));
    Some(vm(pid, id.filter(|id| !id.is_empty()).unwrap_or(program), (*vmm).to_owned(), accel))
}

/// An unknown VMM.
pub(super) fn unknown(pid: u32, arguments: &[String]) -> Vm {
    let program = program_name(arguments.first().map_or("", String::as_str));
    let name = if program.is_empty() { "?".to_owned() } else { program };
    vm(pid, name.clone(), name, "")
}

/// The version of the QEMU in a process, like "7.2.22".
///
/// It is read from the program's file, because running an untrusted program, perhaps as root, would execute
/// its code.
pub fn version(pid: u32) -> Option<String> {
    let mut file = File::open(format!("/proc/{pid}/exe")).ok()?.take(PROGRAM_BYTES_MAX);
    let mut seen = Vec::new();
    while file.by_ref().take(PIECE_BYTES).read_to_end(&mut seen).ok()? > 0 {
        if let Some(at) = seen.windows(VERSION_TEXT.len()).position(|window| window == VERSION_TEXT) {
            // Its end may be in the next piece.
            file.by_ref().take(VERSION_BYTES_MAX).read_to_end(&mut seen).ok()?;
            let text = &seen[at..seen.len().min(at + VERSION_BYTES_MAX as usize)];
            return parse_version(&String::from_utf8_lossy(text));
        }
        seen.drain(..seen.len().saturating_sub(VERSION_TEXT.len()));
    }
    None
}

/// The first word in the form of a version.
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
    use std::fs;

    #[test]
    fn versions() {
        let debian = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)\nCopyright (c) 2003-2022";
        assert_eq!(parse_version(debian).as_deref(), Some("7.2.22"));
        assert_eq!(parse_version("Firecracker v1.7.0\n\nSupported").as_deref(), Some("1.7.0"));
        assert_eq!(parse_version("cloud-hypervisor v39.0-dirty").as_deref(), Some("39.0-dirty"));
        assert_eq!(parse_version("hello"), None);
        assert_eq!(parse_version(""), None);
    }

    /// As root each VMM was run with `--version` (2026-11-22).
    #[test]
    fn the_version_is_read_and_not_asked_for() {
        use std::os::unix::fs::PermissionsExt;
        let folder = std::env::temp_dir().join(format!("glass-version-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let program = folder.join("qemu-system-x86_64");
        let waits = fs::read("/bin/sleep").unwrap();
        // The text lies across the end of a piece.
        let fill = "y".repeat(PIECE_BYTES as usize - waits.len() % PIECE_BYTES as usize - 9);
        let text = format!("{fill}QEMU emulator version 9.8.7 (x)\0");
        fs::write(&program, [&waits[..], text.as_bytes()].concat()).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let mut child = std::process::Command::new(&program).arg("60").spawn().unwrap();
        let found = version(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found.as_deref(), Some("9.8.7"));
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
        // Our own, which is one of several commands of a program.
        assert_eq!(parse("/bin/glass vmm /images/hello --memory 67108864"), names("hello", "glass", "kvm"));
        assert_eq!(parse("/bin/glass run /images/hello"), None);
        let unknown = unknown(5, &["/x/\u{1b}[31mvmm".to_owned()]);
        assert_eq!((unknown.name.as_str(), unknown.vmm.as_str()), ("[31mvmm", "[31mvmm"));
    }
}
