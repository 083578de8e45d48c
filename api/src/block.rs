//! A block device, which keeps what was flushed.

use crate::Buf;
use core::fmt;

/// A disk. Handles are cheap to clone; all clones name the same device.
///
/// Many requests may be in flight at the same time. They may complete in any order. Overlapping writes that are in flight at
/// the same time leave any mixture: await the first before you start the second.
///
/// A future that is dropped does not take its request back: a write may still happen later, after a newer one. Await a
/// write before you write to the same place.
///
/// After a power cut, each unit of 512 bytes that an unflushed write covers is either old or new. The data of a failed flush
/// may be lost even if a later flush succeeds: write it again.
pub trait Block: Clone + 'static {
    /// Size and limits. Constant for the life of the device.
    fn info(&self) -> BlockInfo;

    /// Fills `buf` from byte `offset` on. Offset and length must be multiples of
    /// [`BlockInfo::sector_bytes`]. The buffer is returned in every case; on error its contents are
    /// unspecified. In place of one that the device has not given back in time, another of its length is returned, or an empty one where there is no memory for that.
    /// Fails with [`BlockError::Shared`] when `buf` is not the sole owner of its memory.
    async fn read(&self, offset: u64, buf: Buf) -> (Result<(), BlockError>, Buf);

    /// Writes `buf` at byte `offset`, under the same rules. Completion means that a later read sees
    /// the data, not that it survives a power cut: that takes [`Block::flush`].
    async fn write(&self, offset: u64, buf: Buf) -> (Result<(), BlockError>, Buf);

    /// When it completes, every write that completed before `flush` was first polled is on stable storage.
    async fn flush(&self) -> Result<(), BlockError>;

    /// The `len` bytes from `offset` on are not needed any more, so the device may use their space for something else. Until
    /// they are written again, reads of them return anything. A device that cannot use that does nothing. Offset and length are
    /// multiples of [`BlockInfo::sector_bytes`]. Await it before you write to the same place.
    async fn discard(&self, offset: u64, len: usize) -> Result<(), BlockError> {
        check_change(self.info(), offset, len)
    }

    /// Sets the `len` bytes from `offset` on to zero, with the rules of a write. Where the device can, without bytes that pass
    /// through memory.
    async fn write_zeroes(&self, offset: u64, len: usize) -> Result<(), BlockError> {
        write_zeroes_as_bytes(self, offset, len).await
    }
}

/// The zeroes of one write of [`write_zeroes_as_bytes`].
const ZEROES_BYTES: usize = 64 << 10;

/// [`Block::write_zeroes`] for a device that has no such request. Fails with [`BlockError::Broken`] when there is no memory for
/// 64 KiB.
pub async fn write_zeroes_as_bytes<B: Block>(block: &B, offset: u64, len: usize) -> Result<(), BlockError> {
    check_change(block.info(), offset, len)?;
    let zeroes = Buf::zeroed(len.min(ZEROES_BYTES)).map_err(|_| BlockError::Broken("no memory for zeroes"))?;
    let mut done = 0;
    while done < len {
        let bytes = (len - done).min(ZEROES_BYTES);
        block.write(offset + done as u64, zeroes.slice(0..bytes)).await.0?;
        done += bytes;
    }
    Ok(())
}

/// Properties of a block device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockInfo {
    /// The unit of offsets and lengths, a power of two of at least 512.
    pub sector_bytes: u32,
    /// Size of the device, a multiple of `sector_bytes`.
    pub size_bytes: u64,
    /// Writes and flushes fail with [`BlockError::ReadOnly`].
    pub read_only: bool,
}

/// Why a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BlockError {
    /// The request reaches past the end of the device.
    OutOfRange {
        /// First byte of the request.
        offset: u64,
        /// Length of the request in bytes.
        len: usize,
        /// Size of the device in bytes.
        size: u64,
    },
    /// Offset or length is not a multiple of the sector size.
    Misaligned {
        /// First byte of the request.
        offset: u64,
        /// Length of the request in bytes.
        len: usize,
        /// The sector size in bytes.
        sector_bytes: u32,
    },
    /// The buffer to read into is shared: another [`Buf`] refers to the same memory.
    Shared,
    /// The device is read-only.
    ReadOnly,
    /// The device reported an error; the code is device-specific (virtio status or errno).
    Device(i32),
    /// The device violated its specification and was reset. Requests in flight failed; a VM restarts the device once, so a later
    /// request may succeed. Or it has not answered in time: what it was given may still happen, its requests fail until all that were in flight have ended, and
    /// then it is as before.
    Broken(&'static str),
}

impl fmt::Display for BlockError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            BlockError::OutOfRange { offset, len, size } => {
                write!(f, "{len} bytes at {offset} reach past the end of a device of {size} bytes")
            }
            BlockError::Misaligned { offset, len, sector_bytes } => {
                write!(f, "{len} bytes at {offset} are not whole sectors of {sector_bytes} bytes")
            }
            BlockError::Shared => write!(f, "the buffer to read into is shared"),
            BlockError::ReadOnly => write!(f, "the device is read-only"),
            BlockError::Device(code) => write!(f, "the device reported error {code}"),
            BlockError::Broken(why) => write!(f, "the device is broken: {why}"),
        }
    }
}

impl core::error::Error for BlockError {}

/// The checks of every implementation before it submits a request to the device.
pub fn check_request(info: BlockInfo, offset: u64, len: usize) -> Result<(), BlockError> {
    let sector = u64::from(info.sector_bytes);
    if !offset.is_multiple_of(sector) || !(len as u64).is_multiple_of(sector) {
        return Err(BlockError::Misaligned { offset, len, sector_bytes: info.sector_bytes });
    }
    match offset.checked_add(len as u64) {
        Some(end) if end <= info.size_bytes => Ok(()),
        _ => Err(BlockError::OutOfRange { offset, len, size: info.size_bytes }),
    }
}

/// The same before a request that changes the device without a buffer.
pub fn check_change(info: BlockInfo, offset: u64, len: usize) -> Result<(), BlockError> {
    check_request(info, offset, len)?;
    if info.read_only { Err(BlockError::ReadOnly) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn requests_are_checked_against_the_device() {
        let info = BlockInfo { sector_bytes: 512, size_bytes: 4096, read_only: false };
        assert_eq!(check_request(info, 512, 3584), Ok(()));
        let error = check_request(info, 512, 4096).unwrap_err();
        assert_eq!(error.to_string(), "4096 bytes at 512 reach past the end of a device of 4096 bytes");
        assert!(matches!(check_request(info, 1, 512), Err(BlockError::Misaligned { .. })));
        assert!(matches!(check_request(info, u64::MAX - 511, 512), Err(BlockError::OutOfRange { .. })));
    }
}
