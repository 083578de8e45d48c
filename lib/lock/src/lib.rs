//! One writer of a disk at a time, whichever program opens it.
//!
//! The locks are those of QEMU (its `block/file-posix.c`): a reader's lock on one byte of the file for each permission
//! that is used, and one for each that is denied to others. After locking, a process checks whether a byte that
//! conflicts with its own is locked. The locks belong to the open file, so they end with the process, however it ends. Like
//! all locks of Linux they are advisory: a program that does not check them can still write.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod sys;

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};
use sys::{is_locked, lock_shared};

/// Offset of the bytes for permissions that are used; the number of the permission is added.
const USED_BASE: u64 = 100;
/// The same for permissions that are denied to others.
const NOT_SHARED_BASE: u64 = 200;

/// Numbers of QEMU's permissions (`include/block/block-common.h`).
const READ: u64 = 0;
const WRITE: u64 = 1;
const RESIZE: u64 = 3;
/// What no other process may do meanwhile.
const NOT_SHARED: [u64; 2] = [WRITE, RESIZE];

/// How long a lock that no process has is waited for. The kernel closes the files of a killed process later if requests of its io_uring were
/// in flight: after 8 of 30 kills of a VM during uploads the disk was still locked when all processes were gone, for 3 to 11 ms
/// (2026-11-30). Processes that we may not inspect look the same.
const ENDING_WAIT: Duration = Duration::from_secs(1);
const ENDING_POLL: Duration = Duration::from_millis(5);

/// How the owner of a lock uses the disk. No other process may write or resize it meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Others may read, too.
    Read,
    /// Others may neither write nor hold a lock that excludes writers.
    Write,
}

impl Access {
    fn used(self) -> &'static [u64] {
        if self == Access::Write { &[READ, WRITE] } else { &[READ] }
    }
}

/// Why a disk cannot be locked.
#[derive(Debug)]
pub enum Refused {
    /// Another process holds a conflicting lock; its pid if it can be found.
    InUse(Option<u32>),
    /// The file has no locks.
    Failed(io::Error),
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Refused {
        Refused::Failed(error)
    }
}

impl Refused {
    /// The sentence that refuses the disk `path`.
    pub fn sentence(&self, path: &Path) -> String {
        match self {
            Refused::InUse(pid) => in_use(path, *pid),
            Refused::Failed(error) => format!("cannot lock the disk {}: {error}", path.display()),
        }
    }
}

/// The sentence that refuses the disk `path`, which another process has locked; `pid` if it is known.
pub fn in_use(path: &Path, pid: Option<u32>) -> String {
    let path = path.display();
    match pid {
        Some(pid) => format!("disk {path} is in use by process {pid}: stop that or name another disk"),
        None => format!("disk {path} is in use by another process: stop that or name another disk"),
    }
}

/// Locks `file` for as long as it is open. Waits up to a second for a lock that no process has: that of one that was killed a moment ago.
pub fn lock(file: &File, access: Access) -> Result<(), Refused> {
    // First lock, then check: of two processes at the same moment, one or both are refused, but never none.
    for permission in access.used() {
        lock_shared(file, USED_BASE + permission)?;
    }
    for permission in NOT_SHARED {
        lock_shared(file, NOT_SHARED_BASE + permission)?;
    }
    unless_ending(|| {
        check_now(file, access)?;
        // Older versions of this platform take only this lock.
        let flock = if access == Access::Write { file.try_lock() } else { file.try_lock_shared() };
        flock.map_err(|error| match error {
            TryLockError::WouldBlock => Refused::InUse(owner(file)),
            TryLockError::Error(error) => Refused::Failed(error),
        })
    })
}

/// Whether [`lock`] would be refused because of QEMU or of this crate. Waits as that does.
pub fn check(file: &File, access: Access) -> Result<(), Refused> {
    unless_ending(|| check_now(file, access))
}

/// Repeats `attempt` while a lock is in its way that no process has, for [`ENDING_WAIT`] at most.
fn unless_ending(attempt: impl Fn() -> Result<(), Refused>) -> Result<(), Refused> {
    let end = Instant::now() + ENDING_WAIT;
    loop {
        match attempt() {
            Err(Refused::InUse(None)) if Instant::now() < end => std::thread::sleep(ENDING_POLL),
            outcome => return outcome,
        }
    }
}

fn check_now(file: &File, access: Access) -> Result<(), Refused> {
    let by_use = access.used().iter().map(|permission| NOT_SHARED_BASE + permission);
    let by_others = NOT_SHARED.iter().map(|permission| USED_BASE + permission);
    for byte in by_use.chain(by_others) {
        if is_locked(file, byte)? {
            return Err(Refused::InUse(owner(file)));
        }
    }
    Ok(())
}

/// The process that has a lock on `file`. Locks of open files have no owner in `/proc/locks`, so this searches the
/// open files of all processes that we may inspect.
fn owner(file: &File) -> Option<u32> {
    let ours = file.metadata().ok()?;
    let own = std::process::id();
    let entries = fs::read_dir("/proc").ok()?.flatten();
    let mut pids =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).filter(|pid| *pid != own);
    pids.find(|pid| {
        let infos = fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
        // Only files with locks are opened: a file on a server that is gone would block.
        let mut locked =
            infos.filter(|info| fs::read_to_string(info.path()).is_ok_and(|text| text.contains("\nlock:")));
        locked.any(|info| {
            let found = fs::metadata(Path::new("/proc").join(pid.to_string()).join("fd").join(info.file_name()));
            found.is_ok_and(|found| (found.dev(), found.ino()) == (ours.dev(), ours.ino()))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A file of one test, opened a second time as another process would: locks belong to the open file.
    struct Image(PathBuf);

    impl Image {
        fn new(test: &str) -> Image {
            let path = std::env::temp_dir().join(format!("glass-lock-{}-{test}", std::process::id()));
            fs::write(&path, [0; 512]).unwrap();
            Image(path)
        }

        fn open(&self) -> File {
            File::options().read(true).write(true).open(&self.0).unwrap()
        }
    }

    impl Drop for Image {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    fn is_refused(outcome: Result<(), Refused>) -> bool {
        matches!(outcome, Err(Refused::InUse(None)))
    }

    #[test]
    fn one_writer_or_several_readers() {
        let image = Image::new("access");
        let (first, second) = (image.open(), image.open());
        check(&second, Access::Write).unwrap();
        lock(&first, Access::Write).unwrap();
        assert!(is_refused(check(&second, Access::Write)));
        assert!(is_refused(lock(&second, Access::Write)));
        drop(second);
        assert!(is_refused(lock(&image.open(), Access::Read)));
        drop(first);
        let (first, second) = (image.open(), image.open());
        lock(&first, Access::Read).unwrap();
        lock(&second, Access::Read).unwrap();
        assert!(is_refused(lock(&image.open(), Access::Write)));
    }

    #[test]
    fn the_bytes_are_those_of_qemu() {
        let image = Image::new("bytes");
        let (ours, other) = (image.open(), image.open());
        lock(&ours, Access::Write).unwrap();
        let locked: Vec<u64> = (0..400).filter(|&byte| is_locked(&other, byte).unwrap()).collect();
        assert_eq!(locked, [100, 101, 201, 203]);
        drop(ours);
        // QEMU as a writer: it uses 0 and 1 and shares neither 1 nor 3. Each byte of those alone is enough for us.
        for byte in [101, 103, 200, 201] {
            let qemu = image.open();
            lock_shared(&qemu, byte).unwrap();
            assert!(is_refused(lock(&image.open(), Access::Write)), "{byte}");
        }
        // A program that only reads and denies nothing to others.
        let qemu = image.open();
        lock_shared(&qemu, 100).unwrap();
        lock(&image.open(), Access::Write).unwrap();
    }

    #[test]
    fn the_lock_of_a_process_that_is_gone_is_waited_for() {
        let image = Image::new("gone");
        let by_version: [fn(&File); 2] = [|file| lock(file, Access::Write).unwrap(), |file| file.try_lock().unwrap()];
        for locks in by_version {
            // Our own process counts for no owner.
            let gone = image.open();
            locks(&gone);
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(50));
                    drop(gone);
                });
                lock(&image.open(), Access::Write).unwrap();
            });
        }
    }

    #[test]
    fn an_older_version_is_seen() {
        let image = Image::new("older");
        let older = image.open();
        older.try_lock().unwrap();
        assert!(is_refused(lock(&image.open(), Access::Write)));
    }
}
