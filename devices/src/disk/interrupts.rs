//! The core that takes the interrupts of a disk of the host, if all of them go to one.
//!
//! There they take a VM's core out of the guest, which costs more than the request itself where the host is a VM, too: 50 of 100 us
//! (bench/results/older/2026-11-25-xeon.md). So the thread that waits for them belongs on this core, and the VM's on another.

use rustix::fs::{FileType, fstat, major, minor};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::fs::{self, File};
use std::path::Path;

/// Moves this thread to the core that takes the interrupts of the disk that `file` is on, or is. Nothing if there is no such core.
pub(super) fn follow(file: &File) {
    let Ok(stat) = fstat(file) else { return };
    let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
    let device = if is_device { stat.st_rdev } else { stat.st_dev };
    let device = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    if let Ok(device) = fs::canonicalize(device)
        && let Some(core) = core(&device, Path::new("/sys/kernel/irq"), Path::new("/proc/irq"))
        && core < CpuSet::MAX_CPU
    {
        let mut cores = CpuSet::new();
        cores.set(core);
        // An error: this process may not run there.
        let _ = sched_setaffinity(None, &cores);
    }
}

/// The core for the disk, or the partition of one, in the folder `device` of sysfs.
fn core(device: &Path, counts: &Path, affinities: &Path) -> Option<usize> {
    let disk = if device.join("partition").exists() { device.parent()? } else { device };
    // A queue for each core has an interrupt for each core.
    if fs::read_dir(disk.join("mq")).ok()?.count() != 1 {
        return None;
    }
    let folder = disk.ancestors().map(|ancestor| ancestor.join("msi_irqs")).find(|folder| folder.is_dir())?;
    let interrupts = fs::read_dir(folder).ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    // The others are about the device itself.
    let (_, interrupt) = interrupts.filter_map(|name| Some((count(&counts.join(&name))?, name))).max()?;
    let list = affinities.join(interrupt).join("effective_affinity_list");
    fs::read_to_string(list).ok()?.trim().parse().ok()
}

/// How often an interrupt was taken.
fn count(folder: &Path) -> Option<u64> {
    let text = fs::read_to_string(folder.join("per_cpu_count")).ok()?;
    text.trim().split(',').map(|count| count.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A disk with these queues, and interrupts with their counts and cores.
    fn host(test: &str, queues: usize, interrupts: &[(&str, &str, &str)]) -> PathBuf {
        let host = std::env::temp_dir().join(format!("glass-interrupts-{}-{test}", std::process::id()));
        let write = |path: String, text: &str| {
            let path = host.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for queue in 0..queues {
            write(format!("pci/virtio1/block/vda/mq/{queue}/cpu_list"), "0, 1\n");
        }
        write("pci/virtio1/block/vda/vda1/partition".into(), "1\n");
        for (number, count, core) in interrupts {
            write(format!("pci/msi_irqs/{number}"), "msix\n");
            write(format!("sys/{number}/per_cpu_count"), count);
            write(format!("proc/{number}/effective_affinity_list"), core);
        }
        host
    }

    fn core_of(host: &Path, device: &str) -> Option<usize> {
        core(&host.join("pci/virtio1/block").join(device), &host.join("sys"), &host.join("proc"))
    }

    #[test]
    fn one_queue_has_one_core() {
        let host = host("one", 1, &[("35", "0,9\n", "0\n"), ("36", "5,3000\n", "1\n")]);
        assert_eq!(core_of(&host, "vda"), Some(1));
        assert_eq!(core_of(&host, "vda/vda1"), Some(1));
        fs::remove_dir_all(host).unwrap();
    }

    #[test]
    fn other_disks_have_none() {
        let several = host("several", 2, &[("35", "0,9\n", "0\n")]);
        let spread = host("spread", 1, &[("35", "0,9\n", "0-1\n")]);
        let silent = host("silent", 1, &[]);
        for host in [several, spread, silent] {
            assert_eq!(core_of(&host, "vda"), None, "{}", host.display());
            fs::remove_dir_all(host).unwrap();
        }
        assert_eq!(core(Path::new("/nowhere"), Path::new("/"), Path::new("/")), None);
    }
}
