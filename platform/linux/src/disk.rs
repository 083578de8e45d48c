//! A file or a block device as a disk.

use crate::options::DiskOption;
use crate::requests::{Device, Request};
use crate::workers::Workers;
use glass_api::{Block, BlockError, BlockInfo, Buf, check_change, check_request, write_zeroes_as_bytes};
use glass_lib_executor::sync::yield_now;
use glass_lib_lock::{Access, Refused, in_use, lock};
use glass_lib_trace::Operation;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, IoSliceMut, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Files have no sectors; a VM's disk has the same size.
const SECTOR_BYTES: u32 = 512;

/// Reads as long as this are made by the thread of the service, if the page cache has them. To wake another one takes longer for a short
/// one, and on few cores it takes one from the client.
const AT_ONCE_BYTES_MAX: usize = 128 << 10;

/// A file or a block device, locked against other processes and VMs that lock it too. Requests go
/// through the page cache; [`Block::flush`] is an `fdatasync`.
#[derive(Clone)]
pub struct Disk {
    file: Arc<File>,
    info: BlockInfo,
    workers: Workers,
    device: Device,
}

/// Why a disk cannot be used. `Display` is one sentence with what to do.
#[derive(Debug)]
pub struct DiskError {
    path: PathBuf,
    why: Why,
}

#[derive(Debug)]
enum Why {
    Missing,
    NoFile,
    InUse(Option<u32>),
    OtherSize { is_bytes: u64, wanted_bytes: u64 },
    TooSmall { is_bytes: u64 },
    Denied,
    Other(io::Error),
}

impl fmt::Display for DiskError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let path = self.path.display();
        match &self.why {
            Why::Missing => write!(f, "disk {path} does not exist: give --disk-size, such as 1G, to create it"),
            Why::NoFile => write!(f, "disk {path} is neither a file nor a block device"),
            Why::InUse(pid) => f.write_str(&in_use(&self.path, *pid)),
            Why::OtherSize { is_bytes, wanted_bytes } => write!(
                f,
                "disk {path} has {is_bytes} bytes, not {wanted_bytes}: leave out --disk-size to use it, or delete it"
            ),
            Why::TooSmall { is_bytes } => {
                write!(f, "disk {path} has {is_bytes} bytes, less than a sector of {SECTOR_BYTES}: use a larger one")
            }
            Why::Denied => {
                write!(f, "no permission to read and write disk {path}: change its mode or run as its owner")
            }
            Why::Other(error) => write!(f, "disk {path} cannot be used: {error}"),
        }
    }
}

impl std::error::Error for DiskError {}

impl From<io::Error> for Why {
    fn from(error: io::Error) -> Why {
        match error.kind() {
            ErrorKind::NotFound => Why::Missing,
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Why::Denied,
            ErrorKind::IsADirectory => Why::NoFile,
            _ => Why::Other(error),
        }
    }
}

impl Disk {
    /// Opens the disk that is number `index` of the service.
    pub(crate) fn open(index: usize, option: &DiskOption, workers: Workers) -> Result<Disk, DiskError> {
        let opened = Disk::try_open(Device::new(&format!("disk {index}")), option, workers);
        opened.map_err(|why| DiskError { path: option.path.clone(), why })
    }

    fn try_open(device: Device, option: &DiskOption, workers: Workers) -> Result<Disk, Why> {
        let (mut file, access, is_new) = open_or_create(option)?;
        let file_type = file.metadata()?.file_type();
        if !file_type.is_file() && !file_type.is_block_device() {
            return Err(Why::NoFile);
        }
        lock(&file, access).map_err(|refused| match refused {
            Refused::InUse(pid) => Why::InUse(pid),
            Refused::Failed(error) => Why::Other(error),
        })?;
        if let (true, Some(bytes)) = (is_new, option.create_bytes) {
            file.set_len(bytes)?;
            sync_folder(&option.path)?;
        }
        // The metadata of a block device do not contain its size.
        let is_bytes = file.seek(SeekFrom::End(0))?;
        if let Some(wanted_bytes) = option.create_bytes.filter(|&wanted| wanted != is_bytes) {
            return Err(Why::OtherSize { is_bytes, wanted_bytes });
        }
        let size_bytes = is_bytes - is_bytes % u64::from(SECTOR_BYTES);
        if size_bytes == 0 {
            return Err(Why::TooSmall { is_bytes });
        }
        let info = BlockInfo { sector_bytes: SECTOR_BYTES, size_bytes, read_only: access == Access::Read };
        Ok(Disk { file: Arc::new(file), info, workers, device })
    }

    /// Makes a range of the file a hole or zeroes.
    async fn set_range(&self, how: FallocateFlags, offset: u64, len: usize) -> Result<(), BlockError> {
        check_change(self.info, offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let request = self.device.request(Operation::Other, len);
        let set = move |file: &File| {
            let set = fallocate(file, how | FallocateFlags::KEEP_SIZE, offset, len as u64);
            (set.map_err(io::Error::from), ())
        };
        self.run(request, set).await.0
    }

    /// Executes `request` by `work` on the file, on a worker thread.
    async fn run<T: Send + 'static>(
        &self,
        request: Request,
        work: impl FnOnce(&File) -> (io::Result<()>, T) + Send + 'static,
    ) -> (Result<(), BlockError>, T) {
        let (file, own) = (self.file.clone(), request.clone());
        let work = move || {
            let outcome = work(&file);
            own.completed(outcome.0.is_err());
            outcome
        };
        let (done, rest) = self.workers.run(request, work).await;
        (done.map_err(block_error), rest)
    }
}

/// The disk's file, its permissions, and whether it is new. A file on a read-only file system is a
/// read-only disk.
fn open_or_create(option: &DiskOption) -> Result<(File, Access, bool), Why> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    match (options.open(&option.path), option.create_bytes) {
        (Err(error), Some(_)) if error.kind() == ErrorKind::NotFound => {
            let created = options.create_new(true).open(&option.path);
            // The file's name exists now, so its folder is missing.
            let file = created.map_err(|error| match error.kind() {
                ErrorKind::NotFound => Why::Other(error),
                _ => Why::from(error),
            })?;
            Ok((file, Access::Write, true))
        }
        (Err(error), _) if error.kind() == ErrorKind::ReadOnlyFilesystem => {
            Ok((File::open(&option.path)?, Access::Read, false))
        }
        (opened, _) => Ok((opened?, Access::Write, false)),
    }
}

/// Makes the name of a new file survive a power cut: `fdatasync` of the file alone need not.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

/// Whether the page cache had all of it, which was read then.
fn read_from_cache(file: &File, offset: u64, buf: &mut Buf) -> bool {
    let Some(bytes) = buf.as_mut() else { return false };
    let wanted = bytes.len();
    let read = preadv2(file, &mut [IoSliceMut::new(bytes)], offset, ReadWriteFlags::NOWAIT);
    read.is_ok_and(|count| count == wanted)
}

fn block_error(error: io::Error) -> BlockError {
    // Without an error number: another process has truncated the file.
    BlockError::Device(error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()))
}

impl Block for Disk {
    fn info(&self) -> BlockInfo {
        self.info
    }

    async fn read(&self, offset: u64, mut buf: Buf) -> (Result<(), BlockError>, Buf) {
        if let Err(error) = check_request(self.info, offset, buf.len()) {
            return (Err(error), buf);
        }
        if buf.as_mut().is_none() {
            return (Err(BlockError::Shared), buf);
        }
        let mut request = self.device.request(Operation::Read, buf.len());
        if buf.len() <= AT_ONCE_BYTES_MAX {
            request.submit();
            if read_from_cache(&self.file, offset, &mut buf) {
                request.completed(false);
                // Other tasks have their turn as if it had waited.
                yield_now().await;
                return (Ok(()), buf);
            }
        }
        let read = move |file: &File| {
            // It has no other owner, so it cannot have been shared.
            let done =
                buf.as_mut().ok_or_else(|| io::Error::other("shared")).and_then(|b| file.read_exact_at(b, offset));
            (done, buf)
        };
        self.run(request, read).await
    }

    async fn write(&self, offset: u64, buf: Buf) -> (Result<(), BlockError>, Buf) {
        if let Err(error) = check_request(self.info, offset, buf.len()) {
            return (Err(error), buf);
        }
        if self.info.read_only {
            return (Err(BlockError::ReadOnly), buf);
        }
        let request = self.device.request(Operation::Write, buf.len());
        self.run(request, move |file| (file.write_all_at(&buf, offset), buf)).await
    }

    async fn flush(&self) -> Result<(), BlockError> {
        let request = self.device.request(Operation::Flush, 0);
        self.run(request, |file| (file.sync_data(), ())).await.0
    }

    async fn discard(&self, offset: u64, len: usize) -> Result<(), BlockError> {
        match self.set_range(FallocateFlags::PUNCH_HOLE, offset, len).await {
            // The file system has no holes.
            Err(BlockError::Device(code)) if code == Errno::OPNOTSUPP.raw_os_error() => Ok(()),
            result => result,
        }
    }

    async fn write_zeroes(&self, offset: u64, len: usize) -> Result<(), BlockError> {
        match self.set_range(FallocateFlags::ZERO_RANGE, offset, len).await {
            Err(BlockError::Device(code)) if code == Errno::OPNOTSUPP.raw_os_error() => {
                write_zeroes_as_bytes(self, offset, len).await
            }
            result => result,
        }
    }
}
