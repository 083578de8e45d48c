//! The operator's files, such as certificates and tokens: in the shared directory, or on the second disk.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use glasshouse::fat::{Fat, FatFile};
use glasshouse::{Buf, DirectoryEntry, File, FileError, Files, Metadata, Open, Platform};

/// The number of the disk with files; the first one keeps the queue.
const DISK: usize = 1;

/// Where the files are.
pub(crate) enum OperatorFiles<P: Platform> {
    Shared(P::Files),
    /// A FAT file system.
    Disk(Fat<P::Block>),
}

/// The files, or what to do to have some: an error only for who needs them.
pub(crate) type FoundFiles<P> = Result<OperatorFiles<P>, String>;

impl<P: Platform> OperatorFiles<P> {
    /// The shared directory, or else the file system on the second disk. Call it once: a file system that is mounted has a cache.
    pub(crate) async fn open(p: &P) -> FoundFiles<P> {
        if let Some(files) = p.files() {
            return Ok(OperatorFiles::Shared(files));
        }
        let Some(disk) = p.block(DISK) else {
            return Err("start with --share DIRECTORY, or --files-disk FILE, which has it".into());
        };
        let mounted = Fat::mount(disk, p.clone()).await;
        mounted.map(OperatorFiles::Disk).map_err(|error| format!("the second disk cannot be used: {error}"))
    }
}

impl<P: Platform> Clone for OperatorFiles<P> {
    fn clone(&self) -> OperatorFiles<P> {
        match self {
            OperatorFiles::Shared(files) => OperatorFiles::Shared(files.clone()),
            OperatorFiles::Disk(files) => OperatorFiles::Disk(files.clone()),
        }
    }
}

/// Awaits the same operation of whichever it is.
macro_rules! either {
    ($type:ident, $self:ident, $inner:ident => $operation:expr) => {
        match $self {
            $type::Shared($inner) => $operation.await,
            $type::Disk($inner) => $operation.await,
        }
    };
}

impl<P: Platform> Files for OperatorFiles<P> {
    type File = OperatorFile<P>;

    async fn open(&self, path: &str, how: Open) -> Result<OperatorFile<P>, FileError> {
        Ok(match self {
            OperatorFiles::Shared(files) => OperatorFile::Shared(files.open(path, how).await?),
            OperatorFiles::Disk(files) => OperatorFile::Disk(files.open(path, how).await?),
        })
    }

    async fn metadata(&self, path: &str) -> Result<Metadata, FileError> {
        either!(OperatorFiles, self, files => files.metadata(path))
    }

    async fn read_dir(&self, path: &str) -> Result<Vec<DirectoryEntry>, FileError> {
        either!(OperatorFiles, self, files => files.read_dir(path))
    }

    async fn create_dir(&self, path: &str) -> Result<(), FileError> {
        either!(OperatorFiles, self, files => files.create_dir(path))
    }

    async fn remove_dir(&self, path: &str) -> Result<(), FileError> {
        either!(OperatorFiles, self, files => files.remove_dir(path))
    }

    async fn remove_file(&self, path: &str) -> Result<(), FileError> {
        either!(OperatorFiles, self, files => files.remove_file(path))
    }

    async fn rename(&self, from: &str, to: &str) -> Result<(), FileError> {
        either!(OperatorFiles, self, files => files.rename(from, to))
    }
}

/// A file of [`OperatorFiles`].
pub(crate) enum OperatorFile<P: Platform> {
    Shared(<P::Files as Files>::File),
    Disk(FatFile<P::Block>),
}

impl<P: Platform> File for OperatorFile<P> {
    async fn metadata(&self) -> Result<Metadata, FileError> {
        either!(OperatorFile, self, file => file.metadata())
    }

    async fn read(&self, offset: u64, buf: Buf) -> (Result<usize, FileError>, Buf) {
        either!(OperatorFile, self, file => file.read(offset, buf))
    }

    async fn write(&self, offset: u64, buf: Buf) -> (Result<(), FileError>, Buf) {
        either!(OperatorFile, self, file => file.write(offset, buf))
    }

    async fn truncate(&self, bytes: u64) -> Result<(), FileError> {
        either!(OperatorFile, self, file => file.truncate(bytes))
    }

    async fn sync(&self) -> Result<(), FileError> {
        either!(OperatorFile, self, file => file.sync())
    }
}
