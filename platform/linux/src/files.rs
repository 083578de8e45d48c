//! A directory of the host as the service's files. It is opened once; paths are resolved beneath it by the kernel (`openat2`).

use crate::requests::{Device, Request};
use crate::workers::Workers;
use glass_api::{Buf, DirectoryEntry, ENTRIES_MAX, File, FileError, FileKind, Files, Metadata, Open, check_path};
use glass_lib_trace::Operation;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::{Errno, ReadWriteFlags};
use std::io::{self, IoSliceMut};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How a path is resolved: it never leaves the directory, by whatever links there are.
const RESOLVE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A directory of the host.
#[derive(Clone)]
pub struct HostFiles {
    root: Arc<OwnedFd>,
    is_read_only: bool,
    workers: Workers,
    device: Device,
}

/// An open file of the host.
pub struct HostFile {
    file: Arc<std::fs::File>,
    files: HostFiles,
}

fn file_error(errno: Errno) -> FileError {
    match errno {
        // What `openat2` answers for a path that leads out.
        Errno::XDEV => FileError::SymbolicLink,
        // A socket, or a device without a driver: like other files that are neither files nor directories.
        Errno::NXIO => FileError::Denied,
        other => FileError::from_errno(other.raw_os_error()),
    }
}

fn io_error(error: io::Error) -> FileError {
    file_error(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

fn kind(file_type: FileType) -> FileKind {
    match file_type {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::SymbolicLink,
        _ => FileKind::Other,
    }
}

fn metadata(stat: &Stat) -> Metadata {
    // Times before 1970 are 1970.
    let time = |secs: i64, nanos: u64| {
        u64::try_from(secs).map_or(Duration::ZERO, |secs| Duration::from_secs(secs) + Duration::from_nanos(nanos))
    };
    Metadata {
        kind: kind(FileType::from_raw_mode(stat.st_mode)),
        bytes: u64::try_from(stat.st_size).unwrap_or(0),
        modified: time(stat.st_mtime, stat.st_mtime_nsec),
        changed: time(stat.st_ctime, stat.st_ctime_nsec),
        number: stat.st_ino,
        links: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
    }
}

/// Opens `path` beneath `root`.
fn open_at(root: &OwnedFd, path: &str, flags: OFlags) -> Result<OwnedFd, FileError> {
    let mode = if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(0o644) } else { Mode::empty() };
    let path = if path.is_empty() { "." } else { path };
    loop {
        match rustix::fs::openat2(root, path, flags | OFlags::CLOEXEC, mode, RESOLVE) {
            // The kernel could not prove that the path stays inside, as a directory was moved meanwhile.
            Err(Errno::AGAIN | Errno::INTR) => {}
            opened => return opened.map_err(file_error),
        }
    }
}

/// The directory of a path's last name, and that name; no name for the root.
fn parent<'a>(root: &OwnedFd, path: &'a str) -> Result<(OwnedFd, Option<&'a str>), FileError> {
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    Ok((open_at(root, above, DIRECTORY)?, Some(name).filter(|name| !name.is_empty())))
}

impl HostFiles {
    /// Opens the directory.
    pub(crate) fn open(path: &Path, is_read_only: bool, workers: Workers) -> io::Result<HostFiles> {
        let root = rustix::fs::open(path, DIRECTORY, Mode::empty())?;
        Ok(HostFiles { root: Arc::new(root), is_read_only, workers, device: Device::new("files") })
    }

    /// Executes `work` on a worker thread, after the path was checked.
    async fn run<T: Send + 'static>(
        &self,
        path: &str,
        is_write: bool,
        work: impl FnOnce(&OwnedFd, &str) -> Result<T, FileError> + Send + 'static,
    ) -> Result<T, FileError> {
        check_path(path)?;
        if is_write && self.is_read_only {
            return Err(FileError::ReadOnly);
        }
        let (root, path) = (self.root.clone(), path.to_owned());
        run(self, (Operation::Other, 0), Result::is_err, move || work(&root, &path)).await
    }
}

/// Executes `work` on a worker thread; `has_failed` of its outcome is for the trace.
async fn run<T: Send + 'static>(
    files: &HostFiles,
    (operation, bytes): (Operation, usize),
    has_failed: fn(&T) -> bool,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let request: Request = files.device.request(operation, bytes);
    let own = request.clone();
    let work = move || {
        let outcome = work();
        own.completed(has_failed(&outcome));
        outcome
    };
    files.workers.run(request, work).await
}

impl Files for HostFiles {
    type File = HostFile;

    async fn open(&self, path: &str, how: Open) -> Result<HostFile, FileError> {
        // Opening a pipe must not wait for its other end.
        let flags = OFlags::NONBLOCK
            | match how {
                Open::Read => OFlags::RDONLY,
                Open::Write => OFlags::RDWR,
                Open::Create => OFlags::RDWR | OFlags::CREATE,
                Open::CreateNew => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
            };
        let open = move |root: &OwnedFd, path: &str| {
            let file = open_at(root, path, flags)?;
            match metadata(&rustix::fs::fstat(&file).map_err(file_error)?).kind {
                FileKind::File => Ok(std::fs::File::from(file)),
                FileKind::Directory => Err(FileError::IsADirectory),
                _ => Err(FileError::Denied),
            }
        };
        let file = self.run(path, how != Open::Read, open).await?;
        Ok(HostFile { file: Arc::new(file), files: self.clone() })
    }

    async fn metadata(&self, path: &str) -> Result<Metadata, FileError> {
        let get = |root: &OwnedFd, path: &str| {
            let (parent, name) = parent(root, path)?;
            let stat = match name {
                Some(name) => rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW),
                None => rustix::fs::fstat(&parent),
            };
            stat.map(|stat| metadata(&stat)).map_err(file_error)
        };
        self.run(path, false, get).await
    }

    async fn read_dir(&self, path: &str) -> Result<Vec<DirectoryEntry>, FileError> {
        let read = |root: &OwnedFd, path: &str| {
            let directory = open_at(root, path, OFlags::RDONLY | OFlags::DIRECTORY)?;
            let mut entries = Vec::new();
            for entry in Dir::new(directory).map_err(file_error)? {
                let entry = entry.map_err(file_error)?;
                let name = entry.file_name().to_str().ok().filter(|name| check_path(name).is_ok());
                if let Some(name) = name {
                    entries.push(DirectoryEntry { name: name.to_owned(), kind: kind(entry.file_type()) });
                }
                if entries.len() > ENTRIES_MAX {
                    return Err(FileError::TooMany);
                }
            }
            Ok(entries)
        };
        self.run(path, false, read).await
    }

    async fn create_dir(&self, path: &str) -> Result<(), FileError> {
        let create = |root: &OwnedFd, path: &str| {
            let (parent, name) = parent(root, path)?;
            let name = name.ok_or(FileError::Exists)?;
            rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o755)).map_err(file_error)
        };
        self.run(path, true, create).await
    }

    async fn remove_dir(&self, path: &str) -> Result<(), FileError> {
        self.remove(path, AtFlags::REMOVEDIR, FileError::Denied).await
    }

    async fn remove_file(&self, path: &str) -> Result<(), FileError> {
        self.remove(path, AtFlags::empty(), FileError::IsADirectory).await
    }

    async fn rename(&self, from: &str, to: &str) -> Result<(), FileError> {
        check_path(to)?;
        let to = to.to_owned();
        let rename = move |root: &OwnedFd, from: &str| {
            let ((old, name), (new, new_name)) = (parent(root, from)?, parent(root, &to)?);
            let (name, new_name) = (name.ok_or(FileError::Denied)?, new_name.ok_or(FileError::Denied)?);
            rustix::fs::renameat(&old, name, &new, new_name).map_err(file_error)
        };
        self.run(from, true, rename).await
    }
}

impl HostFiles {
    async fn remove(&self, path: &str, flags: AtFlags, of_root: FileError) -> Result<(), FileError> {
        let remove = move |root: &OwnedFd, path: &str| {
            let (parent, name) = parent(root, path)?;
            rustix::fs::unlinkat(&parent, name.ok_or(of_root)?, flags).map_err(file_error)
        };
        self.run(path, true, remove).await
    }
}

/// Fills `buf` from `offset` on, as far as the file goes.
fn read_at(file: &std::fs::File, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match file.read_at(&mut buf[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

impl File for HostFile {
    async fn metadata(&self) -> Result<Metadata, FileError> {
        // It needs no disk, so no thread.
        rustix::fs::fstat(&*self.file).map(|stat| metadata(&stat)).map_err(file_error)
    }

    async fn read(&self, offset: u64, mut buf: Buf) -> (Result<usize, FileError>, Buf) {
        let Some(bytes) = buf.as_mut() else { return (Err(FileError::Shared), buf) };
        // What is in the page cache needs no thread: some 20 us less.
        let length = bytes.len();
        let cached = rustix::io::preadv2(&*self.file, &mut [IoSliceMut::new(bytes)], offset, ReadWriteFlags::NOWAIT);
        if cached == Ok(length) {
            return (Ok(length), buf);
        }
        let file = self.file.clone();
        let read = move || {
            // It has no other owner, so it cannot have been shared.
            let done =
                buf.as_mut().map_or(Err(FileError::Shared), |bytes| read_at(&file, offset, bytes).map_err(io_error));
            (done, buf)
        };
        run(&self.files, (Operation::Read, length), |outcome| outcome.0.is_err(), read).await
    }

    async fn write(&self, offset: u64, buf: Buf) -> (Result<(), FileError>, Buf) {
        let (file, length) = (self.file.clone(), buf.len());
        let write = move || (file.write_all_at(&buf, offset).map_err(io_error), buf);
        run(&self.files, (Operation::Write, length), |outcome| outcome.0.is_err(), write).await
    }

    async fn truncate(&self, bytes: u64) -> Result<(), FileError> {
        let file = self.file.clone();
        run(&self.files, (Operation::Other, 0), Result::is_err, move || file.set_len(bytes).map_err(io_error)).await
    }

    async fn sync(&self) -> Result<(), FileError> {
        let file = self.file.clone();
        run(&self.files, (Operation::Flush, 0), Result::is_err, move || file.sync_all().map_err(io_error)).await
    }
}
