//! What a disk is read by.

use std::fs::File;
use std::io::{self, ErrorKind, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;

/// A disk that can be read at any place.
pub trait ReadAt {
    /// Its length in bytes.
    fn bytes(&self) -> u64;

    /// Fills `into` with what is at `offset`; fails if that is not all there.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;
}

/// A raw image, or a block device.
#[derive(Debug)]
pub struct FileDisk {
    file: File,
    bytes: u64,
}

impl FileDisk {
    /// Finds out how long it is.
    pub fn new(mut file: File) -> io::Result<FileDisk> {
        // The metadata of a block device do not contain its size.
        let bytes = file.seek(SeekFrom::End(0))?;
        Ok(FileDisk { file, bytes })
    }
}

impl ReadAt for FileDisk {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, offset)
    }
}

impl ReadAt for &[u8] {
    fn bytes(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let rest = usize::try_from(offset).ok().and_then(|offset| self.get(offset..));
        let found = rest.and_then(|rest| rest.get(..into.len())).ok_or(ErrorKind::UnexpectedEof)?;
        into.copy_from_slice(found);
        Ok(())
    }
}
