//! The disk of a snapshot: a file beside it, of which each copy of the VM gets a copy of its own.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{SeekFrom, ioctl_ficlone, seek};
use rustix::io::Errno;

use super::open_own;

/// What stands in a name of disks and TAP devices for the number of the copy.
pub const NUMBER: &str = "{}";

/// Where the disk of a snapshot is.
#[must_use]
pub fn path_of(snapshot: &Path) -> PathBuf {
    let mut path = snapshot.as_os_str().to_owned();
    path.push(".disk");
    path.into()
}

/// The next part of a file that has data, from `at` on.
pub fn next_data(file: &File, at: u64) -> Result<Option<(u64, u64)>> {
    let start = match seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(error) => return Err(error).context("cannot find what has data"),
    };
    let end = seek(file, SeekFrom::Hole(start)).context("cannot find what has data")?;
    ensure!(end > start, "a file has data behind its end");
    Ok(Some((start, end)))
}

/// Copies what was written of `bytes` bytes of `from`, of which the first one is at `first`, to the start of `to`; holes stay.
pub fn copy_data(from: &File, first: u64, bytes: u64, to: &File) -> Result<()> {
    let (mut at, last) = (first, first + bytes);
    while let Some((start, end)) = next_data(from, at)?.filter(|(start, _)| *start < last) {
        let length = end.min(last) - start;
        seek(from, SeekFrom::Start(start))?;
        seek(to, SeekFrom::Start(start - first))?;
        // It uses `copy_file_range` where both are on one file system.
        let copied = io::copy(&mut from.take(length), &mut &*to)?;
        ensure!(copied == length, "it has become shorter");
        at = end;
    }
    Ok(())
}

/// Makes `to`, which is new and empty, a copy of the `bytes` bytes of `from`, on stable storage. On file systems that can they share their blocks;
/// otherwise what was written is copied, and holes stay.
pub fn copy(from: &File, to: &File, bytes: u64) -> Result<()> {
    if ioctl_ficlone(to, from).is_err() {
        copy_data(from, 0, bytes, to)?;
    }
    to.set_len(bytes)?;
    to.sync_all()?;
    Ok(())
}

/// Makes the disk of a copy of a snapshot's VM at `path`, where there is nothing yet.
///
/// # Errors
/// The snapshot's disk is not as it was, there is a disk already, or it cannot be written.
pub fn make(snapshot: &Path, bytes: u64, path: &Path) -> Result<()> {
    let of_snapshot = path_of(snapshot);
    let unusable = || format!("cannot use the disk of the snapshot, {}", of_snapshot.display());
    let from = open_own(&of_snapshot).with_context(unusable)?;
    let found = from.metadata().with_context(unusable)?.len();
    ensure!(found == bytes, "{} has {found} bytes, and the disk of the snapshot had {bytes}", of_snapshot.display());
    let to = match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(to) => to,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => bail!(
            "there is a disk {} already, and a copy starts with that of the snapshot: boot a VM with it by `glass run IMAGE --disk`, or remove it",
            path.display()
        ),
        Err(error) => return Err(error).with_context(|| format!("cannot make the disk {}", path.display())),
    };
    let copied = copy(&from, &to, bytes).and_then(|()| {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok(File::open(folder)?.sync_all()?)
    });
    copied.with_context(|| format!("cannot write the disk {}", path.display())).inspect_err(|_| {
        // A part of a disk is none.
        let _ = std::fs::remove_file(path);
    })
}

/// The name of what belongs to copy number `index`: a disk, or a TAP device.
#[must_use]
pub fn name(pattern: &str, index: u16) -> String {
    pattern.replace(NUMBER, &index.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::fs;
    use std::os::unix::fs::{FileExt as _, MetadataExt as _};

    #[test]
    fn a_copy_has_the_data_and_the_holes() {
        let from = File::from(memfd_create("from", MemfdFlags::CLOEXEC).unwrap());
        from.set_len(8 << 20).unwrap();
        for (at, byte) in [(0, 1), (5 << 20, 2), ((8 << 20) - 1, 3)] {
            from.write_all_at(&[byte], at).unwrap();
        }
        let path = std::env::temp_dir().join(format!("glass-disk-copy-{}", std::process::id()));
        let to = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        let copied = copy(&from, &to, 8 << 20);
        fs::remove_file(&path).unwrap();
        copied.unwrap();
        let read = |file: &File| {
            let mut bytes = vec![0; 8 << 20];
            file.read_exact_at(&mut bytes, 0).unwrap();
            bytes
        };
        assert!(read(&from) == read(&to));
        assert!(to.metadata().unwrap().blocks() * 512 < 1 << 20);
    }

    #[test]
    fn a_disk_that_is_there_stays() {
        let folder = std::env::temp_dir().join(format!("glass-disk-there-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let snapshot = folder.join("snapshot");
        let made = |bytes: u64, name: &str| make(&snapshot, bytes, &folder.join(name)).map_err(|e| format!("{e:#}"));
        let missing = made(4096, "copy");
        fs::write(path_of(&snapshot), [7; 4096]).unwrap();
        let (other, whole, again) = (made(8192, "copy"), made(4096, "copy"), made(4096, "copy"));
        let copied = fs::read(folder.join(name("copy", 3)));
        fs::remove_dir_all(&folder).unwrap();
        assert!(missing.as_ref().is_err_and(|error| error.contains("snapshot.disk")), "{missing:?}");
        assert!(other.as_ref().is_err_and(|error| error.contains("had 8192")), "{other:?}");
        assert_eq!((whole, copied.unwrap()), (Ok(()), vec![7; 4096]));
        assert!(again.as_ref().is_err_and(|error| error.contains("already")), "{again:?}");
        assert_eq!(name("a-{}.img", 12), PathBuf::from("a-12.img"));
    }
}
