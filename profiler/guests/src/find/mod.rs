//! Classifies a process: a VM of `glass run`, another QEMU, another VMM, or an ordinary process.
//!
//! May use: `sys`, `proc`. It reads `/proc`, the registry of `glass run` and xenstore, and no memory of a guest.

pub mod domains;
pub mod monitor;
mod qemu;
pub mod registry;
pub(crate) mod vcpus;
mod vmm;

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use glass_profiler_core::arch::Architecture;
use glass_profiler_core::names::safe_chars;

use crate::error::GuestError;
use crate::find::monitor::MonitorAddress;
use crate::proc;
use crate::stream::SocketAddress;

pub use vmm::version;

/// Maximum of processes that are inspected.
const PROCESSES_MAX: usize = 100_000;
/// The longest command line that is read, in bytes: libvirt's have some thousand.
const COMMAND_LINE_BYTES_MAX: u64 = 256 << 10;

/// A VMM: a QEMU process, or another under KVM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vm {
    /// Its process id.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// The program of the VMM: "QEMU", "Firecracker", or the name of an unknown one.
    pub vmm: String,
    /// The image with symbols, as far as known.
    pub elf: Option<PathBuf>,
    /// The address of its gdbstub, if it has one.
    pub gdb: Option<SocketAddress>,
    /// The address of its monitor, if it has one on a socket.
    pub monitor: Option<MonitorAddress>,
    /// "kvm", "tcg" or empty if unknown.
    pub accel: String,
    /// The processor of its guest; `None` for one that glass does not support.
    pub architecture: Option<Architecture>,
    /// The number of its cores, if known.
    pub vcpus: Option<u32>,
    /// The size of its RAM, if known.
    pub ram_bytes: Option<u64>,
    /// What else joins a VM of `glass run` with its host.
    pub links: registry::Links,
}

/// The guest of a process id.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "there is one at a time")]
pub enum Found {
    /// A VM.
    Vm(Vm),
    /// An ordinary process.
    Process,
}

/// The VMs of this machine, as far as we may inspect them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// By process id.
    pub vms: Vec<Vm>,
    /// Processes of other users without a VMM's name; any of them may be one.
    pub hidden: usize,
}

/// Inspects a process.
pub fn by_pid(pid: u32) -> Result<Found, GuestError> {
    if fs::metadata(format!("/proc/{pid}")).is_err() {
        return Err(GuestError::NoProcess(pid));
    }
    // If the registry cannot be read, nothing is registered.
    let entries = registry::list().unwrap_or_default();
    Ok(look(pid, &entries).0.map_or(Found::Process, Found::Vm))
}

/// The processor of the guest of a VMM, as far as its program shows it; that of most if not.
pub(crate) fn architecture_of(pid: u32) -> Architecture {
    match by_pid(pid) {
        Ok(Found::Vm(vm)) => vm.architecture.unwrap_or_default(),
        Ok(Found::Process) | Err(_) => Architecture::default(),
    }
}

/// When a process was started, in ticks since the boot (proc_pid_stat(5), field 22): a later process of the same number has another one. `None` if
/// there is no such process, or only what is left of it until its parent looks.
pub fn started(pid: u32) -> Option<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    let mut words = proc::words_of_stat(&stat)?;
    if matches!(words.next()?, "Z" | "X" | "x") {
        return None;
    }
    words.nth(18)?.parse().ok()
}

/// Finds a VM by its name: that of `glass run`, or the one that libvirt or a user gave to QEMU (`-name`).
pub fn by_name(name: &str) -> Result<Vm, GuestError> {
    let entries = registry::list().map_err(|error| GuestError::NotFound(format!("cannot list VMs: {error}")))?;
    let registered: Vec<_> = entries.iter().filter(|entry| entry.name == name).collect();
    let (mut named, all) = match registered.is_empty() {
        false => (registered.iter().map(|entry| with_entry(look(entry.pid, &[]).0, entry)).collect(), Vec::new()),
        true => list()?.vms.into_iter().partition::<Vec<_>, _>(|vm| vm.name == name),
    };
    match (named.pop(), named.len()) {
        (Some(vm), 0) => Ok(vm),
        (Some(vm), _) => {
            let pids = named.iter().chain([&vm]).map(|vm| vm.pid.to_string()).collect::<Vec<_>>().join(", ");
            Err(GuestError::NotFound(format!("several VMs have the name {name}: choose with --pid ({pids})")))
        }
        (None, _) => {
            let running = all.iter().map(|vm| vm.name.as_str()).collect::<Vec<_>>().join(", ");
            let hint = if running.is_empty() {
                "none runs that can be inspected; start one with `glass run`".to_owned()
            } else {
                format!("running: {running}")
            };
            Err(GuestError::NotFound(format!("there is no VM with the name {name} ({hint})")))
        }
    }
}

/// All VMs that run on this machine. Inspects each process, and stops none.
pub fn list() -> Result<Listing, GuestError> {
    list_among(|_| true)
}

/// The same of the processes that are wanted; each running one is offered.
pub fn list_among(mut is_wanted: impl FnMut(u32) -> bool) -> Result<Listing, GuestError> {
    let entries = registry::list().unwrap_or_default();
    let folder = fs::read_dir("/proc")
        .map_err(|error| GuestError::System { action: "list the processes in /proc".to_owned(), error })?;
    let processes = folder.take(PROCESSES_MAX).flatten();
    let mut pids: Vec<u32> =
        processes.filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok())).collect();
    pids.sort_unstable();
    let mut listing = Listing::default();
    for pid in pids.into_iter().filter(|pid| is_wanted(*pid)) {
        let (vm, is_hidden) = look(pid, &entries);
        listing.hidden += usize::from(vm.is_none() && is_hidden);
        listing.vms.extend(vm);
    }
    Ok(listing)
}

/// The VM in a process, and whether there may be one that we may not inspect.
fn look(pid: u32, entries: &[registry::Entry]) -> (Option<Vm>, bool) {
    let arguments = command_line(pid);
    let folder = fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
    let known = of_command_line(pid, &arguments, &folder);
    let vcpus = vcpus::count(pid);
    let mut vm = known;
    if let Ok(count @ 1..) = vcpus {
        // Regardless of the command line; any other program may be a VMM as well.
        let vm = vm.get_or_insert_with(|| vmm::unknown(pid, &arguments));
        vm.accel = "kvm".to_owned();
        vm.vcpus = Some(count as u32);
    }
    let vm = match entries.iter().find(|entry| entry.pid == pid) {
        Some(entry) => Some(with_entry(vm, entry)),
        None => vm,
    };
    // A thread of the kernel has no command line, and no VM.
    let is_hidden = !arguments.is_empty() && vcpus.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
    (vm, is_hidden)
}

/// The VM in the command line of a process in `folder`; public for tests with synthetic ones.
#[doc(hidden)]
pub fn of_command_line(pid: u32, arguments: &[String], folder: &Path) -> Option<Vm> {
    qemu::parse(pid, arguments, folder).or_else(|| vmm::parse(pid, arguments))
}

fn command_line(pid: u32) -> Vec<String> {
    let mut bytes = Vec::new();
    if let Ok(file) = fs::File::open(format!("/proc/{pid}/cmdline")) {
        // An unreadable part counts as missing.
        let _ = file.take(COMMAND_LINE_BYTES_MAX).read_to_end(&mut bytes);
    }
    let words = bytes.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    let mut words: Vec<String> = words.collect();
    // The last argument ends with a zero too.
    if words.last().is_some_and(String::is_empty) {
        words.pop();
    }
    words
}

/// The entry of `glass run` is more precise than the command line.
fn with_entry(vm: Option<Vm>, entry: &registry::Entry) -> Vm {
    let vm = vm.unwrap_or_else(|| vmm::unknown(entry.pid, &[]));
    Vm {
        name: entry.name.clone(),
        elf: Some(entry.elf.clone()),
        gdb: entry.gdb.clone().map(SocketAddress::Unix),
        accel: entry.accel.clone(),
        vcpus: Some(entry.vcpus),
        links: entry.links.clone(),
        ..vm
    }
}

/// The name of a program, for display: without characters that could change the terminal.
fn program_name(path: &str) -> String {
    let name = Path::new(path).file_name().unwrap_or_default().to_string_lossy();
    safe_chars(&name).take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_gone() {
        assert!(matches!(by_pid(1 << 22 | 1), Err(GuestError::NoProcess(_))));
        assert_eq!(by_pid(std::process::id()).unwrap(), Found::Process);
    }

    #[test]
    fn the_registry_knows_better() {
        let vm = qemu::parse(5, &["qemu-system-x86_64".to_owned(), "-m".to_owned(), "64".to_owned()], Path::new("/"));
        let share = registry::Share { path: "/site".into(), is_read_only: true };
        let entry = registry::Entry {
            pid: 5,
            elf: "/images/web".into(),
            gdb: Some("/run/gdb".into()),
            name: "web".to_owned(),
            accel: "kvm".to_owned(),
            vcpus: 2,
            links: registry::Links { share: Some(share.clone()), ..Default::default() },
        };
        let vm = with_entry(vm, &entry);
        assert_eq!((vm.name.as_str(), vm.vmm.as_str(), vm.accel.as_str()), ("web", "QEMU", "kvm"));
        assert_eq!((vm.vcpus, vm.ram_bytes), (Some(2), Some(64 << 20)));
        assert_eq!(vm.gdb, Some(SocketAddress::Unix("/run/gdb".into())));
        assert_eq!(vm.links.share, Some(share));
    }

    #[test]
    fn we_are_listed_as_no_vm() {
        let listing = list().unwrap();
        assert!(listing.vms.iter().all(|vm| vm.pid != std::process::id()));
        assert!(listing.vms.is_sorted_by_key(|vm| vm.pid));
    }
}
