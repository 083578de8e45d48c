//! The files that may be disks of a VM: those that its VMM has open, and those that the user names. They are opened to be read only, before
//! this process gives up its rights; what is in them is parsed after that.
//!
//! What a VMM has open is known by `/proc`, so it does not matter how it was named: on a command line, by a descriptor, by a monitor, as what is below
//! another image. A disk that another process serves (vhost-user, a network) is not there.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use glass_profiler_core::disk::DiskFile;
use glass_profiler_core::elf::ReadAt;

use crate::error::GuestError;
use crate::files::open;
use crate::proc::without_deleted;

/// The most descriptors of a VMM that are looked at, and the most of them that are opened.
const DESCRIPTORS_MAX: usize = 4096;
const DISKS_MAX: usize = 64;
/// A smaller file is no disk.
const BYTES_MIN: u64 = 64 << 10;
/// Flags of a descriptor (`/proc/PID/fdinfo`): it can only be written, or only stands for a file that its owner may not even be able to read.
const WRITE_ONLY: u32 = 1;
const PATH_ONLY: u32 = 0o1000_0000;
/// How names of files in memory begin: the RAM of a VM.
const MEMORY: &str = "/memfd:";

/// A file of any length, or a device.
struct HostDisk {
    file: File,
    bytes: u64,
}

impl HostDisk {
    fn of(mut file: File) -> Option<HostDisk> {
        // A device has no length of its own.
        let bytes = file.seek(SeekFrom::End(0)).ok()?;
        Some(HostDisk { file, bytes })
    }
}

impl ReadAt for HostDisk {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> bool {
        self.file.read_exact_at(into, offset).is_ok()
    }
}

/// Opens the disks of a VMM, if there is one, and those at the paths that the user names.
///
/// # Errors
/// One that the user names cannot be read.
pub(crate) fn disks_of(vmm: Option<u32>, named: &[PathBuf]) -> Result<Vec<DiskFile>, GuestError> {
    let mut disks = Vec::new();
    let mut known = HashSet::new();
    for path in named {
        let failed = |error| GuestError::System { action: format!("open the disk {}", path.display()), error };
        let file = open::disk(path).map_err(failed)?;
        known.extend(identity(&file));
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.clone());
        disks.extend(disk(path.display().to_string(), file));
    }
    let descriptors = vmm.and_then(|pid| fs::read_dir(format!("/proc/{pid}/fd")).ok());
    for entry in descriptors.into_iter().flatten().flatten().take(DESCRIPTORS_MAX) {
        if disks.len() >= DISKS_MAX {
            break;
        }
        let Some(path) = disk_path(&entry.path()) else { continue };
        if let Ok(file) = open::disk(&entry.path())
            && identity(&file).is_some_and(|identity| known.insert(identity))
        {
            disks.extend(disk(path, file));
        }
    }
    Ok(disks)
}

fn disk(path: String, file: File) -> Option<DiskFile> {
    Some(DiskFile { path, file: Arc::new(HostDisk::of(file)?) })
}

fn identity(file: &File) -> Option<(u64, u64)> {
    let data = file.metadata().ok()?;
    Some((data.dev(), data.ino()))
}

/// The path of a file that a process has open, if that may be a disk.
fn disk_path(descriptor: &Path) -> Option<String> {
    let path = fs::read_link(descriptor).ok()?.to_string_lossy().into_owned();
    let data = fs::metadata(descriptor).ok()?;
    let is_large = data.is_file() && data.len() >= BYTES_MIN || data.file_type().is_block_device();
    let is_disk = is_large && !path.starts_with(MEMORY) && is_readable(descriptor)?;
    is_disk.then(|| without_deleted(&path).to_owned())
}

/// Whether the owner of a descriptor can read by it.
fn is_readable(descriptor: &Path) -> Option<bool> {
    let folder = descriptor.parent()?.parent()?;
    let text = fs::read_to_string(folder.join("fdinfo").join(descriptor.file_name()?)).ok()?;
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"))?;
    let flags = u32::from_str_radix(flags.trim(), 8).ok()?;
    Some(flags & (WRITE_ONLY | PATH_ONLY) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_tests::folder::Folder;
    use rustix::fs::{Mode, OFlags};
    use std::os::unix::fs::symlink;

    #[test]
    fn what_a_process_can_read_is_a_disk_and_nothing_else() {
        let folder = Folder::new("disks").unwrap();
        let make = |name: &str, bytes: u64| {
            let path = folder.file(name);
            File::create(&path).unwrap().set_len(bytes).unwrap();
            path
        };
        let (disk, small) = (make("disk", 1 << 20), make("small", 100));
        let (written, seen) = (make("written", 1 << 20), make("seen", 1 << 20));
        // This process stands for the VMM.
        let _held = [File::open(&disk).unwrap(), File::open(&disk).unwrap(), File::open(&small).unwrap()];
        let _written = File::options().write(true).open(&written).unwrap();
        let _seen = rustix::fs::open(&seen, OFlags::PATH, Mode::empty()).unwrap();
        let found = |named: &[PathBuf]| -> Vec<String> {
            let all = disks_of(Some(std::process::id()), named).unwrap();
            let prefix = folder.path().canonicalize().unwrap().display().to_string();
            all.into_iter().map(|disk| disk.path).filter(|path| path.starts_with(&prefix)).collect()
        };
        let expected = disk.canonicalize().unwrap().display().to_string();
        assert_eq!(found(&[]), std::slice::from_ref(&expected));
        // One that is named, too, is the same.
        let link = folder.file("link");
        symlink(&disk, &link).unwrap();
        assert_eq!(found(&[link]), [expected]);
        assert!(disks_of(None, &[]).unwrap().is_empty());
        for path in ["/nowhere", "/dev/null", "/"] {
            let error = disks_of(None, &[PathBuf::from(path)]).unwrap_err().to_string();
            assert!(error.contains(&format!("open the disk {path}")), "{error}");
        }
    }
}
