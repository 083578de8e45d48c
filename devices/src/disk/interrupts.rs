//! The core that takes the interrupts of a disk of the host, if all of them go to one.
//!
//! There they take a VM's core out of the guest, which costs more than the request itself where the host is a VM, too: 50 of 100 us
//! (bench/results/older/2026-11-25-xeon.md). So the thread that waits for them belongs on this core, and the VM's on another.

use rustix::fs::{FileType, fstat, major, minor};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fs::{self, File};
use std::path::Path;

/// The core that takes the interrupts of the disk that `file` is on, or is, if there is one.
pub(super) fn core_of(file: &File) -> Option<usize> {
    let stat = fstat(file).ok()?;
    let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
    let device = if is_device { stat.st_rdev } else { stat.st_dev };
    let device = fs::canonicalize(format!("/sys/dev/block/{}:{}", major(device), minor(device))).ok()?;
    core(&device, Path::new("/sys/kernel/irq"), Path::new("/proc/irq")).filter(|core| *core < CpuSet::MAX_CPU)
}

/// Moves this thread to a core, and the threads that it starts later.
pub(super) fn stay_on(core: usize) {
    let mut cores = CpuSet::new();
    cores.set(core);
    // An error: this process may not run there.
    let _ = sched_setaffinity(None, &cores);
}

/// Keeps this thread, and the threads that it starts later, off a core, if so many others are left.
pub(super) fn stay_off(core: usize, least: u32) {
    let Ok(mut cores) = sched_getaffinity(None) else { return };
    cores.unset(core);
    if cores.count() >= least {
        // As in `stay_on`.
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

    fn core_in(host: &Path, device: &str) -> Option<usize> {
        core(&host.join("pci/virtio1/block").join(device), &host.join("sys"), &host.join("proc"))
    }

    #[test]
    fn one_queue_has_one_core() {
        let host = host("one", 1, &[("35", "0,9\n", "0\n"), ("36", "5,3000\n", "1\n")]);
        assert_eq!(core_in(&host, "vda"), Some(1));
        assert_eq!(core_in(&host, "vda/vda1"), Some(1));
        fs::remove_dir_all(host).unwrap();
    }

    /// Threads have cores of their own: this is done on a new one.
    #[test]
    fn a_thread_moves_to_a_core_or_leaves_it() {
        let cores = || {
            let cores = sched_getaffinity(None).unwrap();
            (0..CpuSet::MAX_CPU).filter(|core| cores.is_set(*core)).collect::<Vec<usize>>()
        };
        let before = cores();
        let core = before[0];
        let after = |change: fn(usize, u32), least: usize| {
            std::thread::spawn(move || {
                change(core, least as u32);
                (cores(), std::thread::spawn(cores).join().unwrap())
            })
            .join()
            .unwrap()
        };
        let stays = (vec![core], vec![core]);
        assert_eq!(after(|core, _| stay_on(core), 0), stays);
        let others = before[1..].to_vec();
        if !others.is_empty() {
            assert_eq!(after(stay_off, others.len()), (others.clone(), others.clone()));
        }
        assert_eq!(after(stay_off, others.len() + 1), (before.clone(), before));
    }

    #[test]
    fn other_disks_have_none() {
        let several = host("several", 2, &[("35", "0,9\n", "0\n")]);
        let spread = host("spread", 1, &[("35", "0,9\n", "0-1\n")]);
        let silent = host("silent", 1, &[]);
        for host in [several, spread, silent] {
            assert_eq!(core_in(&host, "vda"), None, "{}", host.display());
            fs::remove_dir_all(host).unwrap();
        }
        assert_eq!(core(Path::new("/nowhere"), Path::new("/"), Path::new("/")), None);
    }
}
