//! Programs of the system that a command needs, and their installation on a Debian machine.

use crate::progress::Steps;
use crate::run;
use anyhow::Result;
use std::path::Path;
use std::process::Command;

/// A program and its Debian package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Package {
    /// Name of the program.
    pub program: &'static str,
    /// Name of the Debian package.
    pub package: &'static str,
    /// The purpose that is left out without it.
    pub purpose: &'static str,
}

const QEMU: Package =
    Package { program: "qemu-system-x86_64", package: "qemu-system-x86", purpose: "running services as VMs" };
const QEMU_ARM: Package = Package {
    program: "qemu-system-aarch64",
    package: "qemu-system-arm",
    purpose: "running services as VMs with an AArch64 processor",
};
const CURL: Package = Package { program: "curl", package: "curl", purpose: "HTTP requests by a real client" };
const WGET: Package = Package { program: "wget", package: "wget", purpose: "HTTP requests by another real client" };
const SSLSCAN: Package =
    Package { program: "sslscan", package: "sslscan", purpose: "a scan for older versions of TLS and their ciphers" };
const TESTSSL: Package = Package { program: "testssl", package: "testssl.sh", purpose: "the same by another program" };
const CHROMIUM: Package = Package { program: "chromium", package: "chromium", purpose: "reports in a real browser" };
const NGINX: Package =
    Package { program: "nginx", package: "nginx-light", purpose: "a server for clients, and a peer of benchmarks" };
const HAPROXY: Package =
    Package { program: "/usr/sbin/haproxy", package: "haproxy", purpose: "a proxy in front of the upload queue" };
const APACHE: Package =
    Package { program: "/usr/sbin/apache2", package: "apache2-bin", purpose: "another server for the HTTP client" };
const IP: Package = Package { program: "ip", package: "iproute2", purpose: "networks for benchmarks" };
const FIO: Package = Package { program: "fio", package: "fio", purpose: "the peer of the disk benchmark" };
const BUSYBOX: Package =
    Package { program: "busybox", package: "busybox-static", purpose: "a VM with Linux as a peer of benchmarks" };
const GDB: Package = Package { program: "gdb", package: "gdb", purpose: "a peer of the sampling benchmark" };
const GCC: Package =
    Package { program: "gcc", package: "gcc", purpose: "test guests, and the plugin that counts in QEMU" };
const MUSL: Package = Package { program: "musl-gcc", package: "musl-tools", purpose: "C programs" };
const VALGRIND: Package =
    Package { program: "valgrind", package: "valgrind", purpose: "instructions that tracing costs a process" };
const GO: Package =
    Package { program: "go", package: "golang-go", purpose: "exports in go tool pprof, and a server of NATS" };
const NODE: Package = Package { program: "node", package: "nodejs", purpose: "exports in their viewers" };
const NPM: Package = Package { program: "npm", package: "npm", purpose: "the viewers that open exports" };
const PIP: Package = Package { program: "pip3", package: "python3-pip", purpose: "exports in Perfetto's schema" };
const BABELTRACE: Package =
    Package { program: "babeltrace2", package: "babeltrace2", purpose: "exports in the Common Trace Format" };

const PERF: Package = Package { program: "perf", package: "linux-perf", purpose: "the peer of profiles" };
const GPP: Package = Package { program: "g++", package: "g++", purpose: "profiles of C++" };
/// A package without a program: one of its files stands for it.
const LIBC_NAMES: Package = Package {
    program: "/usr/share/doc/libc6-dbg/copyright",
    package: "libc6-dbg",
    purpose: "profiles with the names of libc's functions",
};

const OPENSSL: Package = Package { program: "openssl", package: "openssl", purpose: "stacks of cryptography" };
const BOOST: Package =
    Package { program: "/usr/include/boost/version.hpp", package: "libboost-dev", purpose: "names of templates" };
const LLVM: Package = Package { program: "llvm-config", package: "llvm-dev", purpose: "names of templates" };
const MKFS_FAT: Package =
    Package { program: "mkfs.fat", package: "dosfstools", purpose: "file systems on disks, made and checked by Linux" };
const MCOPY: Package = Package { program: "mcopy", package: "mtools", purpose: "files on a FAT file system" };
const MMDEBSTRAP: Package =
    Package { program: "mmdebstrap", package: "mmdebstrap", purpose: "a clean Debian, in which a package is tried" };
const DWZ: Package = Package { program: "dwz", package: "dwz", purpose: "debug information that programs share" };

const GCC_ARM: Package = Package {
    program: "aarch64-linux-gnu-gcc",
    package: "gcc-aarch64-linux-gnu",
    purpose: "the check for AArch64, of which some crates compile C, and stacks of its programs",
};
/// The compiler only recommends it.
const LIBC_ARM: Package = Package {
    program: "/usr/aarch64-linux-gnu/include/stdint.h",
    package: "libc6-dev-arm64-cross",
    purpose: "the same, of which all need the headers of libc",
};
const QEMU_USER: Package =
    Package { program: "qemu-aarch64", package: "qemu-user", purpose: "stacks of programs for AArch64" };

/// What `cargo xtask check` needs.
pub const FOR_CHECK: &[Package] = &[GCC_ARM, LIBC_ARM];
/// What `cargo xtask check --aarch64` needs.
pub const FOR_AARCH64: &[Package] = &[GCC_ARM, LIBC_ARM, QEMU_USER];
/// What `cargo xtask test` needs.
pub const FOR_TEST: &[Package] = &[
    QEMU, QEMU_ARM, CURL, CHROMIUM, GCC, MUSL, GO, NODE, NPM, PIP, BABELTRACE, DWZ, MKFS_FAT, MCOPY, NGINX, APACHE,
    HAPROXY, WGET, SSLSCAN, GCC_ARM, LIBC_ARM, QEMU_USER,
];
/// What it also needs with `--long`.
pub const FOR_TEST_LONG: &[Package] = &[PERF, TESTSSL];
/// What `cargo xtask package --try` needs.
pub const FOR_PACKAGE: &[Package] = &[MMDEBSTRAP, GCC];
/// What `cargo xtask lab` needs.
pub const FOR_LAB: &[Package] = &[QEMU, CURL];
/// What `cargo xtask demo` needs as a VM.
pub const FOR_DEMO_VM: &[Package] = &[QEMU, CURL];
/// What `cargo xtask demo --platform linux` needs.
pub const FOR_DEMO_LINUX: &[Package] = &[CURL];
/// What `cargo xtask bench` needs.
pub const FOR_BENCH: &[Package] = &[QEMU, IP, NGINX, GDB, GCC, VALGRIND];
/// What `cargo xtask bench queue` needs.
pub const FOR_BENCH_QUEUE: &[Package] = &[QEMU, IP, NGINX, MKFS_FAT, MCOPY];
/// What `cargo xtask bench mpi` needs.
pub const FOR_BENCH_MPI: &[Package] = &[QEMU, GCC, MUSL];

/// What `cargo xtask bench network` needs.
pub const FOR_BENCH_NETWORK: &[Package] = &[QEMU, IP, BUSYBOX];
/// What `cargo xtask bench disk` needs.
pub const FOR_BENCH_DISK: &[Package] = &[QEMU, FIO, BUSYBOX];
/// What `cargo xtask bench xen` needs: guests, and fio for the Linux domain. Xen itself is not installed.
pub const FOR_BENCH_XEN: &[Package] = &[QEMU, GCC, FIO];
/// What `cargo xtask bench web` and `bench vsock` need.
pub const FOR_BENCH_WEB: &[Package] = &[QEMU, IP, NGINX, BUSYBOX, MKFS_FAT, MCOPY];
/// What `cargo xtask bench perf` needs.
pub const FOR_BENCH_PERF: &[Package] = &[PERF, GCC, GPP, LIBC_NAMES, GO, NODE, GDB, OPENSSL, BOOST, LLVM];

/// Why missing packages cannot be installed here; `None` when they can.
fn obstacle(is_root: bool, has_apt: bool) -> Option<&'static str> {
    match (has_apt, is_root) {
        (false, _) => Some("this is not a Debian system (there is no apt-get)"),
        (true, false) => Some("only root may install packages"),
        (true, true) => None,
    }
}

/// Whether this process may do all.
pub fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    effective_user(&status) == Some(0)
}

/// The effective user id in the text of `/proc/self/status`.
fn effective_user(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Installs the missing ones of `packages` and returns those that are still missing, after one clear message.
pub fn ensure(packages: &[Package]) -> Result<Vec<Package>> {
    let missing = still_missing(packages);
    if missing.is_empty() {
        return Ok(missing);
    }
    let names: Vec<&str> = missing.iter().map(|package| package.package).collect();
    if let Some(reason) = obstacle(is_root(), run::find_program("apt-get").is_some()) {
        print_missing(&missing, reason, &names);
        return Ok(missing);
    }
    let step = Steps::new(1).begin(&format!("apt-get install {}", names.join(" ")), None);
    let result = install(&names);
    let missing = still_missing(packages);
    match result {
        Ok(()) if missing.is_empty() => step.done(""),
        Ok(()) => drop(step),
        Err(error) => {
            drop(step);
            print_missing(&missing, &format!("{error:#}"), &names);
        }
    }
    Ok(missing)
}

fn print_missing(missing: &[Package], reason: &str, names: &[&str]) {
    let purposes: Vec<String> =
        missing.iter().map(|package| format!("{} ({})", package.program, package.purpose)).collect();
    eprintln!(
        "missing: {}; {reason}. Parts that need them are left out; install them with `sudo apt-get install {}`.",
        purposes.join(", "),
        names.join(" ")
    );
}

fn still_missing(packages: &[Package]) -> Vec<Package> {
    packages.iter().filter(|package| run::find_program(package.program).is_none()).copied().collect()
}

fn install(names: &[&str]) -> Result<()> {
    // A freshly installed daemon must not start: nginx would take port 80 of this machine.
    let policy = Policy::deny_services();
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command.args(["-y", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3"]).args(arguments);
        run::quiet(command.env("DEBIAN_FRONTEND", "noninteractive"))
    };
    apt(&["update"])?;
    apt(&[&["install", "--no-install-recommends"], names].concat())?;
    drop(policy);
    Ok(())
}

/// Debian runs this file to decide whether a package may start its service; ours refuses while it exists.
struct Policy {
    ours: bool,
}

const POLICY_PATH: &str = "/usr/sbin/policy-rc.d";

impl Policy {
    fn deny_services() -> Policy {
        if Path::new(POLICY_PATH).exists() {
            return Policy { ours: false };
        }
        let written = std::fs::write(POLICY_PATH, "#!/bin/sh\nexit 101\n").is_ok()
            && run::quiet(Command::new("chmod").args(["755", POLICY_PATH])).is_ok();
        Policy { ours: written }
    }
}

impl Drop for Policy {
    fn drop(&mut self) {
        if self.ours {
            // The next run handles a failure.
            let _ = std::fs::remove_file(POLICY_PATH);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_on_debian_installs() {
        assert_eq!(obstacle(true, true), None);
        assert!(obstacle(false, true).unwrap().contains("root"));
        assert!(obstacle(true, false).unwrap().contains("Debian"));
    }

    #[test]
    fn the_effective_user_is_the_second_number() {
        assert_eq!(effective_user("Name:\tx\nUid:\t1000\t0\t1000\t1000\n"), Some(0));
        assert_eq!(effective_user("Name:\tx\n"), None);
    }

    #[test]
    fn a_program_that_is_missing_is_reported() {
        let absent = Package { program: "no-such-program-here", package: "none", purpose: "a test" };
        let present = Package { program: "sh", package: "dash", purpose: "a test" };
        assert_eq!(still_missing(&[absent, present]), [absent]);
    }
}
