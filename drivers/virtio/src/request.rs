//! What a disk is asked for, and what it says of itself.

use crate::error::SetupError;
use crate::transport::{self, Transport, feature};
use glass_api::{BlockError, BlockInfo, Buf};

/// The unit of offsets and of the capacity, whatever the device's block size is.
pub const VIRTIO_SECTOR_BYTES: u64 = 512;
const CONFIG_CAPACITY: u16 = 0;
pub const CONFIG_SIZE_MAX: u16 = 8;
pub const CONFIG_SEG_MAX: u16 = 12;
const CONFIG_BLK_SIZE: u16 = 20;

/// Something to do. The buffer comes back with the completion.
#[derive(Debug)]
pub enum Request {
    /// Fill the buffer from byte `offset` on.
    Read {
        /// A multiple of the sector size.
        offset: u64,
        /// Sole owner of its memory.
        buf: Buf,
    },
    /// Write the buffer at byte `offset`.
    Write {
        /// A multiple of the sector size.
        offset: u64,
        /// May be shared.
        buf: Buf,
    },
    /// Put on stable storage whatever has been completed.
    Flush,
}

/// Names a request until its completion; small and dense, then used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(crate) u16);

impl RequestId {
    /// A number below [`Blk::requests_max`](crate::Blk::requests_max), for tables of requests.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Why a request was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubmitError {
    /// As many requests are under way as can be: submit again after a completion.
    Full,
    /// It cannot succeed.
    Refused(BlockError),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    Read = 0,
    Write = 1,
    Flush = 4,
}

impl Kind {
    /// The trace's word for it.
    pub fn traced(self) -> glass_trace::Operation {
        match self {
            Kind::Read => glass_trace::Operation::Read,
            Kind::Write => glass_trace::Operation::Write,
            Kind::Flush => glass_trace::Operation::Flush,
        }
    }
}

/// A request that was taken.
pub struct Operation {
    pub kind: Kind,
    /// Next byte to ask for, on the disk and in memory, and how many are left.
    pub offset: u64,
    pub address: u64,
    pub left: usize,
    pub unsent: bool,
    /// What was asked for, for the trace: bytes, and a number that no other request of the disk has.
    pub bytes: u32,
    pub number: u64,
    pub pieces_in_flight: u16,
    pub result: Result<(), BlockError>,
    pub buf: Option<Buf>,
}

impl Operation {
    /// The request that it was made of, before a piece was sent.
    pub fn into_request(self) -> Request {
        match (self.kind, self.buf) {
            (Kind::Read, Some(buf)) => Request::Read { offset: self.offset, buf },
            (Kind::Write, Some(buf)) => Request::Write { offset: self.offset, buf },
            _ => Request::Flush,
        }
    }
}

pub fn read_u32(transport: &mut impl Transport, offset: u16) -> Result<u32, SetupError> {
    Ok(u32::from_le_bytes(transport::read_config(transport, offset)?))
}

pub fn read_info(transport: &mut impl Transport, features: u64) -> Result<BlockInfo, SetupError> {
    let capacity = u64::from_le_bytes(transport::read_config(transport, CONFIG_CAPACITY)?);
    let sector_bytes = match features & feature::BLK_BLK_SIZE {
        0 => VIRTIO_SECTOR_BYTES as u32,
        _ => read_u32(transport, CONFIG_BLK_SIZE)?,
    };
    if !sector_bytes.is_power_of_two() || !(VIRTIO_SECTOR_BYTES as u32..=1 << 16).contains(&sector_bytes) {
        return Err(SetupError::BadConfig("its sector size is no power of two from 512 to 65536"));
    }
    let size_bytes = capacity.checked_mul(VIRTIO_SECTOR_BYTES);
    let size_bytes = size_bytes.ok_or(SetupError::BadConfig("it has more than 2^64 bytes"))?;
    Ok(BlockInfo {
        sector_bytes,
        // A last sector that is not whole cannot be used.
        size_bytes: size_bytes & !(u64::from(sector_bytes) - 1),
        read_only: features & feature::BLK_RO != 0,
    })
}
