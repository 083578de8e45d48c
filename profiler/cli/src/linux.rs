//! The Linux guest on the command lines of the commands that read its tasks, which stop no vCPU.

use std::path::PathBuf;

use anyhow::{Result, bail};
use glass_profiler_core::names::printable;
use glass_profiler_guests::GuestProcesses;
use glass_profiler_guests::backends::remote::Launcher;
use glass_profiler_guests::files::{OpenedFiles, Opener};
use glass_profiler_guests::find::{self, Found};
use glass_profiler_guests::systems::linux_guest::{Access, LinuxGuest};
use glass_profiler_session::target::find_vm;

use crate::arguments::parse_pid;
use crate::console::say;
use crate::holder;
use crate::jail;

/// Where files of a Linux guest are, beside its memory.
#[derive(clap::Args, Clone, Default)]
pub struct GuestFilesArgs {
    /// Folder with the files of the Linux in the VM (its root disk, mounted or unpacked): what the guest does not
    /// have in memory of a program, and its disk has not, is read there, if it is of the same build.
    #[arg(long, value_name = "DIR")]
    pub guest_root: Option<PathBuf>,
    /// Disk of the Linux in the VM, a raw or qcow2 image or a device, beside those that the VMM has open: programs are read from it, if
    /// they are what the guest has in memory. May be given several times.
    #[arg(long, value_name = "FILE")]
    pub guest_disk: Vec<PathBuf>,
    /// Folder with debug information by build id beside /usr/lib/debug, such as unpacked packages (-dbgsym). May be given several times.
    #[arg(long, value_name = "DIR")]
    pub debug_dir: Vec<PathBuf>,
}

impl GuestFilesArgs {
    /// How processes are shown with them.
    pub fn processes(&self, without_names: bool) -> GuestProcesses {
        GuestProcesses {
            root: self.guest_root.clone(),
            disks: self.guest_disk.clone(),
            debug_folders: self.debug_dir.clone(),
            without_names,
        }
    }
}

/// A Linux guest.
#[derive(clap::Args, Clone, Default)]
#[group(id = "guest", multiple = false)]
pub struct LinuxArgs {
    /// Linux guest, by the process ID of its VMM.
    #[arg(short, long, value_name = "PID", value_parser = parse_pid)]
    pub pid: Option<u32>,
    /// Linux guest, by its VM's name (of `glass run`, libvirt, or QEMU's -name).
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Linux guest in a memory dump (`glass dump`, QEMU `dump-guest-memory`, `virsh dump --memory-only`).
    #[arg(long, value_name = "FILE", alias = "dump")]
    pub post_mortem: Option<PathBuf>,
}

impl LinuxArgs {
    /// Whether one is named.
    pub fn is_some(&self) -> bool {
        self.pid.is_some() || self.name.is_some() || self.post_mortem.is_some()
    }

    /// Opens the RAM of the guest, enters the jail and finds the kernel. Files of a folder are opened by another process. Prints what is not as it
    /// should be.
    pub fn open(&self, processes: GuestProcesses) -> Result<(LinuxGuest, OpenedFiles)> {
        let opened = match processes.needs_opener() {
            true => {
                let Launcher { program, arguments, .. } = holder::launcher();
                OpenedFiles::by(Opener::start(&program, &arguments)?)
            }
            false => OpenedFiles::default(),
        };
        let opened = opened.with_debug_folders(&processes.debug_folders);
        let access = Access { enter: Some(jail::enter), processes, opened: opened.clone() };
        let mut guest = match (&self.post_mortem, &self.name, self.pid) {
            (Some(file), ..) => LinuxGuest::of_dump(file, access)?,
            (_, Some(name), _) => {
                let vm = find_vm(name)?;
                LinuxGuest::of_vmm(vm.pid, &vm.name, access)?
            }
            (.., Some(pid)) => match find::by_pid(pid)? {
                Found::Vm(vm) => LinuxGuest::of_vmm(pid, &vm.name, access)?,
                Found::Process => bail!("process {pid} is not a VM that glass supports: give --pid of a VMM"),
            },
            _ => bail!("no target is named: give --pid, --name or --post-mortem"),
        };
        guest.take_warnings().iter().for_each(|warning| say!("glass: warning: {}", printable(warning)));
        Ok((guest, opened))
    }
}

/// A sentence about lists that changed while they were read, if any did.
pub fn torn(torn: u32, left_out: u32) -> Option<String> {
    if torn == 0 && left_out == 0 {
        return None;
    }
    let times = if torn == 1 { "once".to_owned() } else { format!("{torn} times") };
    let missing = match left_out {
        0 => "nothing is missing".to_owned(),
        1 => "the threads of 1 process are missing".to_owned(),
        count => format!("the threads of {count} processes are missing"),
    };
    Some(format!("a list of tasks changed {times} while it was read, and was read again: {missing}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_that_changed_are_reported() {
        assert_eq!(torn(0, 0), None);
        assert!(torn(1, 0).is_some_and(|text| text.contains(" once ") && text.ends_with("nothing is missing")));
        assert!(torn(9, 2).is_some_and(|text| text.contains(" 9 times ") && text.contains("2 processes")));
    }
}
