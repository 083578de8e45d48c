//! Files in a directory of the host, or of whatever the platform has instead.

use crate::Buf;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

/// Bytes of a name at most, as on Linux.
pub const NAME_BYTES_MAX: usize = 255;
/// Bytes of a path at most, as on Linux.
pub const PATH_BYTES_MAX: usize = 4095;
/// Entries of a directory that [`Files::read_dir`] returns at most.
pub const ENTRIES_MAX: usize = 100_000;

/// A directory and everything below it. Handles are cheap to clone.
///
/// A path is a list of names with `/` between them, relative to the directory; the empty path is the directory itself. No path
/// leads out: `..` is refused, and a symbolic link is never followed ([`FileError::SymbolicLink`]). Many operations may be in flight.
/// An operation whose future is dropped may have happened or not.
pub trait Files: Clone + 'static {
    /// An open file.
    type File: File;

    /// Opens a file.
    async fn open(&self, path: &str, how: Open) -> Result<Self::File, FileError>;

    /// What is known of a file or directory, without opening it. Of a symbolic link, not of what it names.
    async fn metadata(&self, path: &str) -> Result<Metadata, FileError>;

    /// The entries of a directory, in no order, without `.`, `..` and names that are not UTF-8. Fails with [`FileError::TooMany`] when
    /// there are more than [`ENTRIES_MAX`].
    async fn read_dir(&self, path: &str) -> Result<Vec<DirectoryEntry>, FileError>;

    /// Makes a directory.
    async fn create_dir(&self, path: &str) -> Result<(), FileError>;

    /// Removes an empty directory.
    async fn remove_dir(&self, path: &str) -> Result<(), FileError>;

    /// Removes a file. Those who have it open can use it until they close it.
    async fn remove_file(&self, path: &str) -> Result<(), FileError>;

    /// Gives a file or directory another name, at once for all who open it; a file of that name is replaced.
    async fn rename(&self, from: &str, to: &str) -> Result<(), FileError>;
}

/// An open file. It is closed when it is dropped.
pub trait File: 'static {
    /// What is known of the file now.
    async fn metadata(&self) -> Result<Metadata, FileError>;

    /// Fills `buf` from byte `offset` on and returns how many bytes there were: fewer than its length only at the end of the file. Fails
    /// with [`FileError::Shared`] when `buf` is not the sole owner of its memory. The buffer is returned in every case.
    async fn read(&self, offset: u64, buf: Buf) -> (Result<usize, FileError>, Buf);

    /// Writes all of `buf` at byte `offset`. After an error, part of it may be written. Completion means that a later read sees the
    /// data, not that it survives a power cut: that takes [`File::sync`].
    async fn write(&self, offset: u64, buf: Buf) -> (Result<(), FileError>, Buf);

    /// Cuts or extends the file with zeros to `bytes` bytes.
    async fn truncate(&self, bytes: u64) -> Result<(), FileError>;

    /// Returns when what was written before is on stable storage.
    async fn sync(&self) -> Result<(), FileError>;
}

/// How to open a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Open {
    /// A file that exists, for reading.
    Read,
    /// A file that exists, for reading and writing.
    Write,
    /// For reading and writing; made if there is none.
    Create,
    /// For reading and writing; fails with [`FileError::Exists`] if there is one.
    CreateNew,
}

/// What is known of a file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metadata {
    /// What it is.
    pub kind: FileKind,
    /// Its length.
    pub bytes: u64,
    /// When its contents were changed last, since 1970-01-01T00:00:00Z.
    pub modified: Duration,
    /// When anything of it was changed last; no program can set this time.
    pub changed: Duration,
    /// Its number: two files that exist at the same time have different ones.
    pub number: u64,
    /// How many names it has: 0 once the last one was removed, or given to another file. Of an open file, and 1 where a file has one name.
    pub links: u32,
}

/// What has a name in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    SymbolicLink,
    /// A device, a socket, a pipe.
    Other,
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: FileKind,
}

/// Why an operation on files failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileError {
    /// The path is none of [`Files`]: a name is empty, `.`, `..` or too long, or contains a NUL.
    BadPath,
    /// A part of the path is a symbolic link.
    SymbolicLink,
    /// There is no such file or directory.
    NotFound,
    /// There is one already.
    Exists,
    /// The host does not permit it.
    Denied,
    /// A part of the path that should be a directory is none.
    NotADirectory,
    /// A directory is no file.
    IsADirectory,
    /// A directory that is to be removed or replaced has entries.
    NotEmpty,
    /// Nothing can be written here.
    ReadOnly,
    /// The host has no space.
    NoSpace,
    /// Too many open files, entries of a directory or requests.
    TooMany,
    /// There is no memory.
    OutOfMemory,
    /// The file is open, and cannot be removed or replaced here.
    Busy,
    /// A buffer for reading has other owners.
    Shared,
    /// Another error of the host; the number is its errno.
    Host(i32),
    /// The device gave an invalid answer, or is not used any more.
    Broken(&'static str),
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            FileError::BadPath => {
                f.write_str("the path is not valid: write names with / between them, without . and ..")
            }
            FileError::SymbolicLink => f.write_str("symbolic links are not followed"),
            FileError::NotFound => f.write_str("there is no such file or directory"),
            FileError::Exists => f.write_str("there is a file or directory of this name"),
            FileError::Denied => f.write_str("the host does not permit it"),
            FileError::NotADirectory => f.write_str("it is no directory"),
            FileError::IsADirectory => f.write_str("it is a directory"),
            FileError::NotEmpty => f.write_str("the directory is not empty"),
            FileError::ReadOnly => f.write_str("the files are read-only"),
            FileError::NoSpace => f.write_str("the host has no space"),
            FileError::TooMany => f.write_str("too many open files, entries or requests"),
            FileError::OutOfMemory => f.write_str("no memory for the request: give the service more memory"),
            FileError::Busy => f.write_str("the file is open"),
            FileError::Shared => f.write_str("the buffer to read into is shared"),
            FileError::Host(errno) => write!(f, "the host reported error {errno}"),
            FileError::Broken(why) => write!(f, "the device is broken: {why}"),
        }
    }
}

impl core::error::Error for FileError {}

impl FileError {
    /// The error that Linux has this number for.
    pub fn from_errno(errno: i32) -> FileError {
        match errno {
            1 | 13 => FileError::Denied,
            2 => FileError::NotFound,
            12 => FileError::OutOfMemory,
            16 => FileError::Busy,
            17 => FileError::Exists,
            20 => FileError::NotADirectory,
            21 => FileError::IsADirectory,
            // EINVAL is not among them: it has too many meanings.
            36 => FileError::BadPath,
            23 | 24 => FileError::TooMany,
            28 | 122 => FileError::NoSpace,
            30 => FileError::ReadOnly,
            39 => FileError::NotEmpty,
            40 => FileError::SymbolicLink,
            other => FileError::Host(other),
        }
    }
}

/// Whether a path is one of [`Files`].
pub fn check_path(path: &str) -> Result<(), FileError> {
    path_names(path).map(drop)
}

/// The names of a path, which every implementation checks by this.
pub fn path_names(path: &str) -> Result<impl Iterator<Item = &str>, FileError> {
    let is_valid =
        |name: &str| !matches!(name, "" | "." | "..") && name.len() <= NAME_BYTES_MAX && !name.contains('\0');
    let names = || path.split('/').filter(|_| !path.is_empty());
    if path.len() <= PATH_BYTES_MAX && names().all(is_valid) { Ok(names()) } else { Err(FileError::BadPath) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(path: &str) -> Result<Vec<&str>, FileError> {
        path_names(path).map(Iterator::collect)
    }

    #[test]
    fn a_path_leads_down_only() {
        assert_eq!(names(""), Ok(Vec::new()));
        assert_eq!(names("a/b c/...x"), Ok(["a", "b c", "...x"].to_vec()));
        let long = "x".repeat(NAME_BYTES_MAX);
        assert_eq!(names(&long), Ok([&long[..]].to_vec()));
        let deep = "x/".repeat(PATH_BYTES_MAX / 2) + "xx";
        for path in
            ["/", "/a", "a/", "a//b", ".", "a/.", "..", "a/../b", "a/..", "a\0b", "\0", &(long.clone() + "x"), &deep]
        {
            assert_eq!(names(path), Err(FileError::BadPath), "{path:?}");
        }
    }
}
